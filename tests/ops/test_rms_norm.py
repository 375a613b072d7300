"""In training, T5's RMS normalization and its gradient equal stock's."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import harness
from synthesizer_mtf.ops import rms_norm

BATCH, LENGTH, EPSILON = 3, 4, 1e-2
PADDED = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
GENERATOR = np.random.RandomState(0)
X, WEIGHTS = GENERATOR.randn(2, BATCH, LENGTH, harness.D_MODEL)


class Norm:
  """A layer of T5's norm and T5's mask of padding, made fast by `faster`."""

  def __init__(self, masked, change=lambda context, y: y):
    self.masked, self.change = masked, change

  def call(self, context, x, losses=None):
    del losses
    y = transformer.sublayer_rms_norm(x, None, context, epsilon=EPSILON)
    if self.masked:
      y = transformer.sublayer_mask_padding(y, None, context)
    self.stock, self.made = y, self.change(context, y)
    return self.made


def run(layer, mode="train", **kwargs):
  """The output, and the gradients of sum(output * WEIGHTS) by name."""
  graph = harness.LayerGraph(layer, False, BATCH, LENGTH, **kwargs)
  with graph.tf_graph.as_default():
    dims = graph.batch_dim, graph.length_dim, graph.d_model
    x, weights = graph.constant(X, *dims), graph.constant(WEIGHTS, *dims)
    context = graph.context(mode, sequence_id=graph.constant(PADDED, *dims[:2]))
    y = graph.call(context, x)
    scale, = graph.graph.trainable_variables
    grads = mtf.gradients([mtf.reduce_sum(y * weights)], [x, scale.outputs[0]])
    return dict(zip(("y", "x", "scale"), graph.run(y, *grads))), graph.variables


def norm(x, scale, mask):
  """RMSNorm (Zhang and Sennrich, arXiv:1910.07467, equation 4)."""
  mean = (x ** 2).mean(-1, keepdims=True)
  return x / np.sqrt(mean + EPSILON) * scale * mask


@pytest.mark.parametrize("masked", [False, True])
def test_output_and_gradients_equal_those_of_the_formula(masked):
  layer = Norm(masked, rms_norm.faster)
  found, variables = run(layer)
  assert layer.made is not layer.stock
  scale, = variables.values()
  mask = PADDED[..., None] if masked else 1
  np.testing.assert_allclose(found["y"], norm(X, scale, mask), atol=1e-5)
  for name, value, other in (("x", X, scale), ("scale", scale, X)):
    direction, step = GENERATOR.randn(*value.shape), 1e-5
    ends = [norm(*((value + s, other) if name == "x" else (other, value + s)), mask)
            for s in (step * direction, -step * direction)]
    expected = ((ends[0] - ends[1]) * WEIGHTS).sum() / (2 * step)
    np.testing.assert_allclose((found[name] * direction).sum(), expected, atol=1e-4)


def test_the_gradients_equal_those_of_stock():
  expected, found = (run(Norm(True, change))[0] for change in (
      lambda context, y: y, rms_norm.faster))
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_evaluation_tpus_and_other_dtypes_keep_stock():
  for options in ({"mode": "eval"}, {"tpu": True}, {"activation": "bfloat16"}):
    layer = Norm(True, rms_norm.faster)
    run(layer, **options)
    assert layer.made is layer.stock, options


def test_stock_normalizes_tensors_that_a_mesh_splits():
  layer = Norm(True, rms_norm.faster)
  graph = harness.LayerGraph(layer, False, BATCH, LENGTH)
  with graph.tf_graph.as_default():
    context = graph.context("train")
    context.model.mesh_shape, context.model.layout = "all:3", "batch:all"
    dims = graph.batch_dim, graph.length_dim, graph.d_model
    graph.call(context, graph.constant(X, *dims))
  assert layer.made is layer.stock


@pytest.mark.parametrize("change", [
    lambda context, y: y + 1, lambda context, y: y * y,
    lambda context, y: mtf.reduce_sum(y, output_shape=y.shape.dims[:2]) * y,
], ids=["sum", "square", "product"])
def test_other_tensors_stay(change):
  def faster(context, y):
    changed = change(context, y)
    assert rms_norm.faster(context, changed) is changed
    return changed

  run(Norm(False, faster))
