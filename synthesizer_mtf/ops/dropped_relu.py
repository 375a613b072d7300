"""Relu and dropout in one operation, with one pass over the gradient."""

import mesh_tensorflow as mtf
from synthesizer_mtf.ops import between_products
import tensorflow.compat.v1 as tf


class DroppedReluOperation(mtf.Operation):
  """max(x, 0) where tokens are kept, else 0.

  The result is positive exactly where the gradient passes. So relu's gradient at the
  result is that of both, and neither x nor the mask is read again.
  """

  def __init__(self, x: mtf.Tensor, kept: mtf.Tensor | None):
    """Declares the inputs.

    Args:
      x: <float>
      kept: <float>, 0 or 1, with some of the dimensions of x in the same order; None
        if all are kept.
    """
    super().__init__([x] + ([] if kept is None else [kept]), name="dropped_relu")
    self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    dims = self.inputs[0].shape.dims
    missing = [axis for axis, dim in enumerate(dims)
               if dim not in self.inputs[-1].shape.dims]

    def of_slice(x, kept=None):
      for axis in missing:
        kept = tf.expand_dims(kept, axis)
      return between_products.dropped_relu(x, kept)

    lowering.set_tensor_lowering(self.outputs[0], lowering.mesh_impl(self).slicewise(
        of_slice, *[lowering.tensors[x] for x in self.inputs]))

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    grad, = grad_ys
    result, = self.outputs
    grad_x = mtf.cwise(
        lambda grad, result: tf.raw_ops.ReluGrad(gradients=grad, features=result),
        [grad, result])
    return [grad_x] + [None] * (len(self.inputs) - 1)
