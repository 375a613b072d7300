"""Linformer against NumPy and on meshes, and the errors that refuse it."""

import numpy as np
import pytest
from support import classifiers
from support import harness
from support import reference
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens
import synthesizer_mtf
from synthesizer_mtf.attention import attend
import tensorflow.compat.v1 as tf


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


def test_bfloat16_stays_within_its_error_and_has_a_float32_softmax(monkeypatch):
  seen = []
  softmax = attend.softmax
  monkeypatch.setattr(attend, "softmax", lambda logits, gradient: (
      seen.append(logits.dtype), softmax(logits, gradient))[1])
  x = tokens()
  y, graph = harness.forward(make(), x, False, PADDED)
  z, _ = harness.forward(make(), x, False, PADDED, activation="bfloat16",
                         values=graph.variables)
  assert np.abs(z - y)[PADDED > 0].max() < 0.04 * np.abs(y).max()
  assert seen == [tf.float32, tf.float32]


def test_dropout_is_for_training_alone_and_keeps_the_mean():
  layer, x = make(dropout_rate=0.5), tokens(batch=400)
  plain, graph = harness.forward(
      layer, x, False, values={"q": np.zeros((11, 15))})
  dropped, _ = harness.forward(layer, x, False, mode="train",
                               values=graph.variables)
  same, _ = harness.forward(make(), x, False, values=graph.variables)
  np.testing.assert_allclose(same, plain, atol=1e-5)
  assert np.abs(dropped - plain).max() > 0.1
  # The slope of the projection of `dropped` on `plain`, over all examples.
  slope = (dropped * plain).sum() / np.square(plain).sum()
  assert 0.8 < slope < 1.2


@pytest.mark.slow
def test_a_projection_of_all_layers_is_split_and_can_run_again_in_the_backward_pass():
  expected, numbers = [classifiers.loss_and_gradients(
      "Linformer.max_length = 16", "Linformer.rank = 3",
      "Linformer.share_layers = True", *more, attention="Linformer", mesh_shape=mesh)
                     for more, mesh in (
          ([], ""), (["LayerStack.recompute_grads = True"], "model:2"))]
  assert len([n for n in expected if n.endswith("/E")]) == 1
  reference.check_same(numbers, expected)


@pytest.mark.parametrize("ids, length, message", [
    (PACKED, 7, "bind `mesh_train_dataset_fn.pack = False`"),
    (None, 10, "`Linformer.max_length` is 9 but the sequence has length 10")],
                         ids=["packed", "longer"])
def test_what_it_cannot_compute_is_refused(ids, length, message):
  with pytest.raises(ValueError, match=message):
    harness.forward(make(), tokens(length=length), False, ids, packed=ids is PACKED)
