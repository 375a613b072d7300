"""T5's RMS normalization and its gradient, in few passes over its input.

Stock `sublayer_rms_norm` computes scale * x * r, r = (mean(x^2) + epsilon)^-0.5
(arXiv:1910.07467, section 3). Mesh TensorFlow computes the gradient of each of its
operations. This module computes the gradients of the whole norm at once. Let g be the
gradient of the result, and `sum` the sum over d_model:

  gradient of scale = sum over positions of r * g * x
  gradient of x = r * (scale * g - x * r^2 * sum(scale * g * x) / d_model)

So g * x is made once, and two products with a vector take its sums. T5 then multiplies
padding by 0. In all three formulas this is the same as r = 0.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.context import splits
import tensorflow.compat.v1 as tf


def faster(context: transformer.Context, y: mtf.Tensor) -> mtf.Tensor:
  """A layer's input, computed another way if stock `sublayer_rms_norm` made it.

  Args:
    context: a `transformer.Context`.
    y: <float>[batch, length, d_model]

  Returns:
    an equal tensor, whose gradient is equal, too; y itself without training, on TPUs,
    if the mesh splits it, or if anything else made it.
  """
  if not context.train or splits.is_on_tpu(context.mesh) or any(
      splits.mesh_dimension(context.model, dim) for dim in y.shape.dims):
    return y
  parts = _parts(y)
  return rms_norm(*parts) if parts else y


def _parts(y):
  """[x, r, scale], if y is their product and r is made by rsqrt; else None."""
  *positions, d_model = y.shape.dims
  masked = _factors(y, positions)
  seen = [masked[1]] if masked and _is_made_by("cast", masked[1]) else []
  scaled = _factors(masked[0] if seen else y, [d_model])
  normalized = scaled and _factors(scaled[0], positions)
  if not normalized or not _is_made_by("rsqrt", normalized[1]) or (
      y.dtype != tf.float32):
    return None
  x, r = normalized
  return [x, r * seen[0] if seen else r, scaled[1]]


def _factors(tensor, dims):
  """The factors of an element-wise product whose second one has these dimensions."""
  made = tensor.operation
  if not isinstance(made, mtf.EinsumOperation) or len(made.inputs) != 2:
    return None
  one, other = made.inputs
  return made.inputs if (one.shape, other.shape.dims) == (tensor.shape, dims) else None


def _is_made_by(name, tensor):
  return tensor.operation.name.rpartition("/")[2].startswith(name)


def rms_norm(x: mtf.Tensor, r: mtf.Tensor, scale: mtf.Tensor) -> mtf.Tensor:
  """scale * x * r, with the gradient of the whole norm.

  Args:
    x: <float32>[batch, length, d_model]
    r: <float32>[batch, length]; its gradient is part of the gradient of x.
    scale: <float32>[d_model]

  Returns:
    a tensor with the shape and dtype of x.
  """
  return mtf.slicewise(
      lambda x, r, scale: x * tf.expand_dims(r, -1) * scale, [x, r, scale],
      splittable_dims=[], grad_function=_gradients, name="rms_norm")


def _gradients(operation, grad):
  x, _, scale = inputs = operation.inputs
  grad_x, grad_scale = mtf.slicewise(
      _of_slice, [grad, *inputs], output_shape=[x.shape, scale.shape],
      output_dtype=[x.dtype, scale.dtype], splittable_dims=[], grad_function=0)
  return [grad_x, None, grad_scale]


def _of_slice(grad_y, x, r, scale):
  d_model = scale.shape.as_list()[0]
  r = tf.expand_dims(r, -1)
  products = tf.reshape(grad_y * x, [-1, d_model])
  grad_scale = tf.matmul(tf.reshape(r, [1, -1]), products)
  sums = tf.matmul(products, tf.expand_dims(scale, -1))
  centers = tf.reshape(sums, tf.shape(r)) * r * r / d_model
  return (grad_y * scale - x * centers) * r, tf.reshape(grad_scale, [d_model])
