"""Agreement with mesh_tensorflow's own layers, and their defects, which ours lack."""

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


def rows_of_attention(layer, values):
  """The mean over heads of each query's weights, on an unpadded row."""
  eye = np.eye(harness.D_MODEL, dtype=np.float32)
  x = eye[None, :7]
  each = np.concatenate([eye] * 3, axis=1)
  values = dict(values, v=each, kv=each, o=each.T / 3)
  y, _ = harness.forward(layer, x, False, values=values)
  return y[0, :, :7]


def test_the_authors_factorized_rows_are_all_alike_and_ours_are_not():
  generator = np.random.RandomState(0)
  r1, r2 = generator.randn(2, 3, 512, 16).astype(np.float32)
  theirs = transformer_layers.Synthesizer(
      num_heads=3, key_value_size=11, synthesize_mode="factorized")
  ours = cases.make_layer("FR", key_value_size=11, max_length=512, rank=16)
  alike = rows_of_attention(theirs, {"R1": r1.transpose(2, 0, 1),
                                     "R2": r2.transpose(2, 0, 1)})
  differ = rows_of_attention(ours, {"R1": r1, "R2": r2})
  assert np.abs(alike - alike[:1]).max() < 1e-6
  assert np.abs(differ - differ[:1]).max() > 0.1


def test_the_authors_random_reads_other_rows_when_packed_and_ours_does_not():
  x = tokens(batch=1, length=6)
  ids = np.array([[1, 1, 1, 2, 2, 2]])
  y, graph = harness.forward(
      cases.make_layer("R", max_length=512), x, False, ids, packed=True)
  p = graph.variables
  alone, _ = harness.forward(cases.make_layer("R", max_length=512), x[:, 3:],
                             False, values=p)
  theirs = {"R": p["R"].transpose(1, 0, 2), "kv": p["v"], "o": p["o"]}
  z, _ = harness.forward(authors("random"), x, False, ids, packed=True,
                         values=theirs)
  np.testing.assert_allclose(y[:, 3:], alone, atol=1e-5)
  assert np.abs(z[:, 3:] - alone).max() > 0.1


def test_the_initial_logits_of_r_have_standard_deviation_1():
  _, graph = harness.forward(
      cases.make_layer("R", max_length=64), tokens(), False, scale=None)
  assert 0.9 < graph.variables["R"].std() < 1.1
