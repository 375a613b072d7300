"""Relu and dropout in one operation, with one pass over the gradient."""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.functions import dense
from synthesizer_mtf.fast import bfloat16_operations
import tensorflow.compat.v1 as tf


def dropped_relu(x: mtf.Tensor, keep_mask: mtf.Tensor | None) -> mtf.Tensor:
  """max(x, 0) where `keep_mask` is 1, and 0 elsewhere.

  The result is positive exactly where the gradient passes. So the gradient of both
  operations is relu's gradient at the result, and reads neither of the inputs again.

  Args:
    x: <float>
    keep_mask: <float>, 0 or 1, with some of the dimensions of x in the same order; None
      to keep all.

  Returns:
    a tensor with the shape and dtype of x.
  """
  dims = x.shape.dims
  optional = [] if keep_mask is None else [keep_mask]
  missing = [i for i, d in enumerate(dims) for t in optional if d not in t.shape.dims]

  def of_slice(x, keep_mask=None):  # The shape of x.
    for axis in missing:
      keep_mask = tf.expand_dims(keep_mask, axis)
    return bfloat16_operations.dropped_relu(x, keep_mask)

  return mtf.slicewise(of_slice, [x, *optional], splittable_dims=dims,
                       grad_function=dense.relu_gradient, name="dropped_relu")
