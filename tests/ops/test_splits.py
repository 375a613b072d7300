"""Operations on slices, where the mesh splits what products sum over."""

import mesh_tensorflow as mtf
import numpy as np
from support import decoding
from support import models
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def test_gradients_are_those_of_whole_tensors_if_processors_hold_parts_of_sums():
  rows, inner, d_model = [mtf.Dimension(name, size) for name, size in (
      ("rows", 3), ("inner", 5), ("d_model", 4))]
  generator = np.random.RandomState(0)
  x = generator.randn(3, 4).astype(np.float32)
  w = generator.randn(4, 5).astype(np.float32)
  decoding.parse("V")
  m = models.Model(mesh_shape="all:2", layout="d_model:all")
  with m.tf_graph.as_default():
    mx, mw = [mtf.import_fully_replicated(m.mesh, tf.constant(array), mtf.Shape(dims))
              for array, dims in ((x, [rows, d_model]), (w, [d_model, inner]))]
    # Input and gradient are sums over d_model, of which each processor has a part.
    cubes = splits.slicewise(lambda a: a ** 3, [mtf.einsum([mx, mw], [rows, inner])],
                             splittable_dims=[rows, inner])
    loss = mtf.reduce_sum(mtf.square(mtf.einsum([cubes, mw], [rows, d_model])))
    ((grad,),), _ = m.run(*mtf.gradients([loss], [mx]))
  product = x @ w
  grad_cubes = 2 * product ** 3 @ w.T @ w
  np.testing.assert_allclose(grad, 3 * product ** 2 * grad_cubes @ w.T, rtol=1e-4)
