"""T5's RMS normalization and its gradient equal the formula, on any mesh."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import harness
from support import reference
from synthesizer_mtf.ops import rms_norm

BATCH, LENGTH, D_MODEL, EPSILON = 2, 4, 6, 1e-2
PADDED = np.array([[1, 1, 1, 0], [1, 0, 0, 0]])
GENERATOR = np.random.RandomState(0)
X, WEIGHTS = GENERATOR.randn(2, BATCH, LENGTH, D_MODEL)
SCALE = GENERATOR.randn(D_MODEL)


def run(masked, mesh_shape, layout):
  """The output, and the gradients of sum(output * WEIGHTS) by name."""
  graph = harness.LayerGraph(
      None, False, BATCH, LENGTH, d_model=D_MODEL, mesh_shape=mesh_shape,
      layout=layout)
  with graph.tf_graph.as_default():
    dims = graph.batch_dim, graph.length_dim, graph.d_model
    x, weights = graph.constant(X, *dims), graph.constant(WEIGHTS, *dims)
    scale = graph.constant(SCALE, graph.d_model)
    mean = mtf.reduce_mean(mtf.square(x), reduced_dim=graph.d_model)
    r = mtf.rsqrt(mean + EPSILON)
    if masked:
      r *= mtf.to_float(graph.constant(PADDED, *dims[:2]))
    y = rms_norm.rms_norm(x, r, scale)
    grads = mtf.gradients([mtf.reduce_sum(y * weights)], [x, scale])
    return dict(zip(("y", "x", "scale"), graph.run(y, *grads)))


def norm(x, scale, mask):
  """RMSNorm (Zhang and Sennrich, arXiv:1910.07467, equation 4)."""
  mean = (x ** 2).mean(-1, keepdims=True)
  return x / np.sqrt(mean + EPSILON) * scale * mask


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mesh_shape, layout", [
    ("", ""), ("a:2", "d_model:a"), ("a:2,b:2", "batch:a,length:b")])
def test_output_and_gradients_equal_those_of_the_formula(masked, mesh_shape, layout):
  found = run(masked, mesh_shape, layout)
  mask = PADDED[..., None] if masked else 1
  np.testing.assert_allclose(found["y"], norm(X, SCALE, mask), atol=1e-5)
  reference.check_gradients(
      {name: found[name] for name in ("x", "scale")}, {"x": X, "scale": SCALE},
      lambda values: (norm(**values, mask=mask) * WEIGHTS).sum())
