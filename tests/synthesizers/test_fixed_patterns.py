"""The hand-written heads of arXiv:2002.10260, beside what random cases draw of them."""

import numpy as np
import pytest
from support import harness
from support import reference
from support.examples import tokens
from support.patterns import expected_weights
from support.patterns import NAMES
import synthesizer_mtf


def layer(patterns, notation="Pattern", **kwargs):
  return synthesizer_mtf.attention_layer(
      notation, **{"num_heads": len(patterns), "key_value_size": 5,
                   "dropout_rate": 0.0, "patterns": patterns, **kwargs})


def test_long_examples_have_exactly_the_weights_of_their_patterns():
  x = tokens(batch=1, length=300)
  y, graph = harness.forward(layer(NAMES), x, False)
  assert set(graph.variables) == {"v", "o"}
  weights = expected_weights(NAMES, np.ones((1, 300), int), False)
  expected = reference.output(
      np.log(np.maximum(weights, 1e-30)), graph.variables, x,
      np.ones((1, 300, 300), bool), len(NAMES))
  np.testing.assert_allclose(y, expected, atol=2e-5)


def test_learned_logits_can_outweigh_a_pattern():
  """alpha and q get a gradient even where the pattern has a single token."""
  _, _, grads = harness.forward(
      layer(["previous"] * 3, "Pattern+V"), tokens(), False, gradients=True)
  assert np.abs(grads["alpha"]).max() > 1e-6 and np.abs(grads["q"]).max() > 1e-6


def test_a_decoder_refuses_patterns_that_look_right_and_says_why():
  for name in ("next", "right_context", "end"):
    with pytest.raises(ValueError) as error:
      harness.forward(layer(["current", name]), tokens(), True)
    assert str(error.value).startswith(
        f"`FixedPatterns.patterns` names {name!r} in a decoder, but it needs tokens "
        "after the query, which a decoder has not made yet; bind "
        "`decoder/FixedPatterns.patterns` to some of current, previous, "
        "left_context, start, uniform, or")
  # A list whose first heads look left has no such heads.
  y, _ = harness.forward(layer(["current", "next"], num_heads=1), tokens(), True)
  assert np.isfinite(y).all()


def test_the_default_is_the_papers_seven_patterns():
  function, = synthesizer_mtf.attention_layer(
      "Pattern", num_heads=2, key_value_size=4).mixture.synthesizers
  assert list(function.patterns) == NAMES[:-1]
