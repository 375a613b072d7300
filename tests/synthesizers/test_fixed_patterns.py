"""The hand-written heads of arXiv:2002.10260 against NumPy."""

import numpy as np
import pytest
from support import cases
from support import harness
from support import reference
from support.decoding import check_greedy_decoding
from support.decoding import parse
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens
from support.patterns import expected_weights
from support.patterns import LEFT
from support.patterns import NAMES
import synthesizer_mtf


def layer(patterns, notation="Pattern", **kwargs):
  return synthesizer_mtf.attention_layer(
      notation, **{"num_heads": len(patterns), "key_value_size": 5,
                   "dropout_rate": 0.0, "patterns": patterns, **kwargs})


def output(weights, p, x):
  heads = weights.shape[1]
  values = np.einsum("bnd,dhk->bhnk", x, reference.per_head(p["v"], heads))
  mean = np.einsum("bhij,bhjk->bhik", weights, values)
  return np.einsum("bhik,hkd->bid", mean, p["o"].reshape(heads, 5, -1))


@pytest.mark.parametrize("decoder, names", [(False, NAMES), (True, LEFT)],
                         ids=["encoder", "decoder"])
@pytest.mark.parametrize("ids", [np.ones((2, 7), int), PADDED, PACKED],
                         ids=["full", "padded", "packed"])
def test_each_head_has_exactly_the_weights_of_its_pattern(ids, decoder, names):
  x = tokens()
  y, graph = harness.forward(
      layer(names), x, decoder, None if ids.min() else ids,
      packed=ids is PACKED)
  assert set(graph.variables) == {"v", "o"}
  expected = output(expected_weights(names, ids, decoder), graph.variables, x)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=1e-5)


@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_mixes_with_learned_logits(ids):
  x = tokens()
  y, graph = harness.forward(
      layer(NAMES, "Pattern+V"), x, False, ids, packed=ids is PACKED)
  p = graph.variables
  alpha = reference.softmax(p["alpha"].astype(np.float64))[..., None, None]
  patterns = np.log(np.maximum(expected_weights(NAMES, ids, False), 1e-13))
  logits = alpha[:, 0] * patterns + alpha[:, 1] * cases.dot_product(
      p, cases.Call(x, ids, len(NAMES)))
  expected = reference.output(
      logits, p, x, reference.mask(ids, False), len(NAMES))
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=5e-5)


def test_learned_logits_can_outweigh_a_pattern():
  """alpha and q get a gradient even where the pattern has a single token."""
  _, _, grads = harness.forward(
      layer(["previous"] * 3, "Pattern+V"), tokens(), False, gradients=True)
  assert np.abs(grads["alpha"]).max() > 1e-6 and np.abs(grads["q"]).max() > 1e-6


@pytest.mark.parametrize("length", [1, 300])
def test_one_token_and_long_examples_work(length):
  x = tokens(batch=1, length=length)
  ids = np.ones((1, length), int)
  y, graph = harness.forward(layer(NAMES), x, False)
  expected = output(expected_weights(NAMES, ids, False), graph.variables, x)
  np.testing.assert_allclose(y, expected, atol=2e-5)


def test_a_shorter_list_is_repeated_and_a_longer_one_is_cut():
  x = tokens()
  repeated, _ = harness.forward(layer(["end", "next"], num_heads=5), x, False)
  written, _ = harness.forward(
      layer(["end", "next", "end", "next", "end"]), x, False)
  cut, _ = harness.forward(
      layer(["end", "next"] * 4, num_heads=5), x, False)
  np.testing.assert_array_equal(repeated, written)
  np.testing.assert_array_equal(cut, written)


def test_an_example_of_padding_alone_is_finite():
  ids = np.array([[1] * 7, [0] * 7])
  for notation in ("Pattern", "Pattern+V"):
    y, _, grads = harness.forward(
        layer(NAMES, notation), tokens(), False, ids, gradients=True)
    assert np.isfinite(y).all()
    assert all(np.isfinite(grad).all() for grad in grads.values())


@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_heads_and_batch_can_be_split(ids):
  one, _ = harness.forward(layer(NAMES), tokens(), False, ids,
                           packed=ids is PACKED)
  many, _ = harness.forward(
      layer(NAMES), tokens(), False, ids, packed=ids is PACKED,
      mesh_shape="b:2,m:2", layout="batch:b,heads:m")
  np.testing.assert_allclose(many, one, atol=1e-5)


@pytest.mark.slow
def test_decoding_gives_the_argmax_of_the_full_pass():
  parse("Pattern+V", f"FixedPatterns.patterns = {LEFT}", "num_heads = 5",
        "encoder/FixedPatterns.patterns = ['next', 'end', 'start']")
  check_greedy_decoding()


@pytest.mark.parametrize("name", ["next", "right_context", "end"])
def test_a_decoder_refuses_patterns_that_look_right_and_says_why(name):
  with pytest.raises(ValueError) as error:
    harness.forward(layer(["current", name]), tokens(), True)
  assert str(error.value).startswith(
      f"`FixedPatterns.patterns` names {name!r} in a decoder, but it needs tokens "
      "after the query, which a decoder has not made yet; bind "
      "`decoder/FixedPatterns.patterns` to some of current, previous, "
      "left_context, start, uniform, or")


def test_a_decoder_takes_a_list_whose_first_heads_look_left():
  y, _ = harness.forward(layer(["current", "next"], num_heads=1), tokens(), True)
  assert np.isfinite(y).all()


@pytest.mark.parametrize("patterns, message", [
    (["current", "prev"], "`FixedPatterns.patterns` names 'prev', which is not a "
     "pattern; use some of current, previous, next"),
    ([], "`FixedPatterns.patterns` is [] but must be a list"),
    ("current", "`FixedPatterns.patterns` is 'current' but must be a list")])
def test_a_wrong_list_is_named(patterns, message):
  with pytest.raises(ValueError) as error:
    synthesizer_mtf.attention_layer(
        "Pattern", num_heads=2, key_value_size=4, patterns=patterns)
  assert message in str(error.value)


def test_the_default_is_the_papers_seven_patterns():
  function, = synthesizer_mtf.attention_layer(
      "Pattern", num_heads=2, key_value_size=4).mixture.synthesizers
  assert list(function.patterns) == NAMES[:-1]


def test_a_pattern_tells_the_order_so_there_is_no_warning(caplog):
  layer_with_positions = layer(["previous"] * 3, "Pattern+V")
  harness.forward(layer_with_positions, tokens(), False)
  assert "cannot tell the order" not in caplog.text
  harness.forward(cases.make_layer("V"), tokens(), False)
  assert "cannot tell the order" in caplog.text
