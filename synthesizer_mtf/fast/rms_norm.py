"""T5's RMS normalization, with a gradient in few passes over its input.

The norm is scale * x * r, r = (mean(x^2) + epsilon)^-0.5 (arXiv:1910.07467, section 3).
Mesh TensorFlow computes the gradient of each of its operations. This module computes
the gradients of the whole norm at once. Let g be the gradient of the result, and `sum`
the sum over d_model:

  gradient of scale = sum over positions of r * g * x
  gradient of x = r * (scale * g - x * r^2 * sum(scale * g * x) / d_model)

So g * x is made once, and two products with a vector take its sums. T5 then multiplies
padding by 0. In all three formulas this is the same as r = 0.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def rms_norm(x: mtf.Tensor, r: mtf.Tensor, scale: mtf.Tensor) -> mtf.Tensor:
  """scale * x * r, with the gradient of the whole norm.

  The mesh may split all dimensions.

  Args:
    x: <float32>[batch, length, d_model]
    r: <float32>[batch, length], made of x as above, or 0; the gradient of x includes
      its own.
    scale: <float32>[d_model]

  Returns:
    a tensor with the shape and dtype of x.
  """
  return mtf.slicewise(
      lambda x, r, scale: x * tf.expand_dims(r, -1) * scale, [x, r, scale],
      splittable_dims=x.shape.dims, grad_function=_gradients, name="rms_norm")


def _gradients(operation, grad):
  grad_x, grad_scale = RmsNormGradOperation(grad, *operation.inputs).outputs
  return [grad_x, None, grad_scale]


class RmsNormGradOperation(mtf.Operation):
  """The gradients of `rms_norm` for x and for the scale."""

  def __init__(self, grad: mtf.Tensor, x: mtf.Tensor, r: mtf.Tensor,
               scale: mtf.Tensor):
    super().__init__([mtf.transpose(grad, x.shape), x, r, scale], name="rms_norm_grad")
    self._outputs = [mtf.Tensor(self, t.shape, t.dtype) for t in (x, scale)]

  def lower(self, lowering: mtf.Lowering) -> None:
    _, x, r, scale = self.inputs
    d_model, = scale.shape.dims
    mesh_impl = lowering.mesh_impl(self)
    tensors = [lowering.tensors[t] for t in self.inputs]
    sums, grad_scale = mesh_impl.slicewise(_sums, *tensors)
    sums = splits.add_parts(lowering, self, [d_model], sums, r)
    grad_scale = splits.add_parts(lowering, self, r.shape.dims, grad_scale, scale)
    grad_x = mesh_impl.slicewise(
        lambda sums, *slices: _of_x(sums / d_model.size, *slices), sums, *tensors)
    for output, grad in zip(self.outputs, (grad_x, grad_scale)):
      lowering.set_tensor_lowering(output, grad)


def _sums(grad, x, r, scale):
  """The sums of scale * g * x over d_model, and those of r * g * x over positions."""
  d_model = scale.shape.as_list()[0]
  products = tf.reshape(grad * x, [-1, d_model])
  return (tf.reshape(tf.matmul(products, scale[:, None]), r.shape),
          tf.reshape(tf.matmul(tf.reshape(r, [1, -1]), products), [d_model]))


def _of_x(mean, grad, x, r, scale):
  r = tf.expand_dims(r, -1)
  return (grad * scale - x * (tf.expand_dims(mean, -1) * r * r)) * r
