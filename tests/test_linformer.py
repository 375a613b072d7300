"""Linformer against NumPy, and where it is refused."""

import harness
import numpy as np
import pytest
import reference
import synthesizer_mtf
from test_synthesizers import PACKED
from test_synthesizers import PADDED
from test_synthesizers import tokens


def make(**kwargs):
  return synthesizer_mtf.attention_layer(
      "Linformer", num_heads=3, key_value_size=5, max_length=9, rank=4, **kwargs)


@pytest.mark.parametrize("share, names", [
    ({}, {"E": (3, 9, 4), "F": (3, 9, 4)}),
    ({"share_heads": True}, {"E": (9, 4), "F": (9, 4)}),
    ({"share_kv": True}, {"E": (3, 9, 4)}),
    ({"share_layers": True}, {"E": (9, 4)})])
def test_equals_the_papers_formula_with_padding_zeroed(share, names):
  x = tokens()
  y, graph, grads = harness.forward(make(**share), x, False, PADDED,
                                    gradients=True)
  p = graph.variables
  assert {k: v.shape for k, v in p.items() if k in "EF"} == names
  assert all(np.abs(grads[name]).max() > 0 for name in names)
  e = np.broadcast_to(p["E"], (3, 9, 4))[:, :7]
  f = np.broadcast_to(p.get("F", p["E"]), (3, 9, 4))[:, :7]
  q, k, v = [np.einsum("bnd,dhk->bhnk", x, reference.per_head(p[name], 3))
             for name in "qkv"]
  seen = (PADDED > 0)[:, None, :, None]
  k = np.einsum("bhjc,hjr->bhrc", k * seen, e)
  v = np.einsum("bhjc,hjr->bhrc", v * seen, f)
  weights = reference.softmax(np.einsum("bhic,bhrc->bhir", q, k))
  mean = np.einsum("bhir,bhrc->bhic", weights, v)
  expected = np.einsum("bhic,hcd->bid", mean, p["o"].reshape(3, 5, -1))
  np.testing.assert_allclose(y, expected, atol=2e-5)


def test_layers_can_share_one_projection():
  layer = make(share_layers=True)
  graph = harness.LayerGraph(layer, False, 2, 7)
  with graph.tf_graph.as_default():
    import mesh_tensorflow as mtf  # pylint: disable=g-import-not-at-top
    import tensorflow.compat.v1 as tf  # pylint: disable=g-import-not-at-top
    x = graph.constant(tokens(), graph.batch_dim, graph.length_dim,
                       mtf.Dimension("d_model", harness.D_MODEL))
    context = graph.context()
    for block in ("a", "b"):
      with tf.variable_scope(block):
        x = layer.call(context, x)
  names = [v.name for v in graph.graph.all_variables if v.name[-2:] == "/E"]
  assert names == ["a/E"]


def test_a_decoder_refuses_it_and_says_why():
  with pytest.raises(ValueError, match="is Linformer in a decoder, but it mixes "
                     "all positions.*`decoder/synthesizer_stack.attention`"):
    harness.forward(make(), tokens(), True)


def test_packed_rows_are_refused():
  with pytest.raises(ValueError, match="bind `mesh_train_dataset_fn.pack = "
                     "False`"):
    harness.forward(make(), tokens(), False, PACKED, packed=True)


@pytest.mark.parametrize("kwargs, message", [
    ({"rank": 0}, "`Linformer.rank` is 0"),
    ({"max_length": 0}, "`Linformer.max_length` is 0"),
    ({"num_heads": 0}, "`Linformer.num_heads` is 0")])
def test_a_bad_parameter_is_named(kwargs, message):
  with pytest.raises(ValueError, match=message):
    synthesizer_mtf.attention_layer(
        "Linformer", **{"num_heads": 2, "key_value_size": 4, **kwargs})


def test_a_longer_sequence_names_max_length():
  with pytest.raises(ValueError, match="`Linformer.max_length` is 9 but the "
                     "sequence has length 10"):
    harness.forward(make(), tokens(length=10), False)
