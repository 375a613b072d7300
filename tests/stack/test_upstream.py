"""Agreement with mesh_tensorflow's own layers."""

from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import cases
from support import harness
from support.examples import both_stacks
from support.examples import PADDED
from support.examples import tokens


def authors(mode):
  return transformer_layers.Synthesizer(
      num_heads=3, key_value_size=5, synthesize_mode=mode)


@both_stacks
def test_v_equals_stock_self_attention(decoder):
  x = tokens()
  y, graph = harness.forward(cases.make_layer("V"), x, decoder, PADDED)
  stock = transformer_layers.SelfAttention(num_heads=3, key_value_size=5)
  z, _ = harness.forward(stock, x, decoder, PADDED, values=graph.variables)
  np.testing.assert_allclose(y[PADDED > 0], z[PADDED > 0], atol=1e-5)


@pytest.mark.parametrize("notation, mode, decoder", [
    ("R", "random", False), ("D", "dense_minus", True),
    ("R+V", "random_plus_alpha", True), ("D+V", "dense_plus_alpha", False)])
def test_equals_the_authors_layer_on_unpacked_rows(notation, mode, decoder):
  x = tokens()
  dense = {"share_query": True, "share_heads": True} if "D" in notation else {}
  ours = cases.make_layer(notation, max_length=512, **dense)
  if "V" in notation:
    ours.mixture.weights = "per_layer"
  y, graph = harness.forward(ours, x, decoder, PADDED)
  p = graph.variables
  theirs = {"q": p.get("q"), "k": p.get("k"), "v": p["v"], "kv": p["v"],
            "o": p["o"]}
  if "R" in p:
    theirs["R"] = p["R"].transpose(1, 0, 2)
  if "W2" in p:
    theirs["pi/kernel"] = p["W2"]
  if "alpha" in p:  # sigmoid(alpha) weighs the synthetic part, which is first
    theirs["alpha"] = p["alpha"][:1] - p["alpha"][1:]
  z, other = harness.forward(authors(mode), x, decoder, PADDED, values=theirs)
  assert set(other.variables) <= set(theirs)
  np.testing.assert_allclose(y[PADDED > 0], z[PADDED > 0], atol=2e-5)


def test_the_initial_logits_of_r_have_standard_deviation_1():
  _, graph = harness.forward(
      cases.make_layer("R", max_length=64), tokens(), False, scale=None)
  assert 0.9 < graph.variables["R"].std() < 1.1
