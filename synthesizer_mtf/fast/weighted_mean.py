"""An operation that returns a weighted mean and holds its gradient."""

from collections.abc import Sequence
import math

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast import one_hot_tables
import tensorflow.compat.v1 as tf


class WeightedMeanOperation(mtf.Operation):
  """Returns the mean, with the gradients of all tensors that it was computed from.

  `mtf.custom_gradient` would suffice, but does not work in layers that run again in the
  backward pass (`LayerStack.recompute_grads`).
  """

  def __init__(self, weights: mtf.Tensor, mean: mtf.Tensor, values: mtf.Tensor,
               features: list[mtf.Tensor], table: list[mtf.Tensor],
               padding: Sequence[mtf.Tensor] = (),
               read_at: one_hot_tables.Positions | None = None):
    """Declares the inputs, which may lack `batch`.

    Args:
      weights: <float>[batch, heads, length, memory_length]
      mean: <float>[batch, heads, length, d_kv]
      values: <float>[batch, heads, memory_length, d_kv], 0 where masked.
      features: [] or [query, key], <float32>[batch, heads, length, channels] and
        <float32>[batch, heads, memory_length, channels].
      table: tensors with any dimensions, which were added to the products.
      padding: () if weights are 0 for padding; else [total] or [total, seen]: the
        divisors of the mean, <float>[batch, heads, length], and the padding mask,
        <float>[batch, memory_length], 1 if left out.
      read_at: the positions at which `pick` has read the table, or None.
    """
    where = read_at.tensors if read_at else []
    super().__init__([weights, mean, values, *features, *table, *padding, *where],
                     name="weighted_mean")
    self._outputs = [mtf.Tensor(self, mean.shape, mean.dtype)]
    self._sizes = [len(features), len(table), len(padding), len(where)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.tensors[self.inputs[1]])

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    grad_mean, = grad_ys
    weights, mean, values, *rest = self.inputs
    features, table, padding, where = (
        [rest.pop(0) for _ in range(size)] for size in self._sizes)
    if padding:
      grad_mean /= padding[0]
    grad_logits = _grad_logits(weights, values, mean, grad_mean, padding[1:])
    grads = [None, None,
             mtf.einsum([weights, grad_mean], output_shape=values.shape)]
    grads += [
        mtf.cast(mtf.einsum([grad_logits, mtf.cast(other, grad_logits.dtype)],
                            output_shape=feature.shape), feature.dtype)
        for feature, other in zip(features, reversed(features))]
    lead = [d for d in grad_logits.shape.dims[:-2] if any(
        d in t.shape.dims for t in table)]
    if where:
      total = one_hot_tables.add_picked(
          grad_logits, one_hot_tables.Positions(*where), lead)
    else:
      total = mtf.cast(grad_logits, tf.float32)
    # A sum that is still pending over the mesh must not be cast: see `plan_pod`.
    grads += [mtf.cast(_sum_to(total, t.shape), t.dtype) for t in table]
    return grads + [None] * len(padding + where)


class SumOfExamplesOperation(mtf.Operation):
  """The sum over all dimensions except the last ones; it has no gradient."""

  def __init__(self, x: mtf.Tensor, shape: mtf.Shape):
    """Declares the input.

    Args:
      x: <float32>[..., heads, length, memory_length]
      shape: the last dimensions of x.
    """
    super().__init__([x], name="sum_of_examples")
    self._outputs = [mtf.Tensor(self, shape, x.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    x, = self.inputs
    total, = self.outputs
    examples = x.shape.dims[:-total.shape.ndims]

    def compute(x):  # [examples..., rest...] -> [rest...]
      shape = x.shape.as_list()
      rows = tf.reshape(x, [math.prod(shape[:len(examples)]), -1])
      return tf.reshape(mixed_precision.sum_of_rows(rows), shape[len(examples):])

    laid_out = lowering.mesh_impl(self).slicewise(compute, lowering.tensors[x])
    lowering.set_tensor_lowering(total, splits.add_parts(
        lowering, self, examples, laid_out, total))


def _sum_to(total, shape):
  """The sum of a gradient over the dimensions that a table lacks."""
  if total.shape == shape:
    return total
  if mixed_precision.is_marked() and total.shape.dims[-shape.ndims:] == shape.dims:
    return SumOfExamplesOperation(total, shape).outputs[0]
  return mtf.reduce_sum(total, output_shape=shape)


def exponential(logits: mtf.Tensor) -> mtf.Tensor:
  """exp(logits - the maximum of each row), without a gradient.

  Args:
    logits: <float32>[..., memory_length]

  Returns:
    a tensor with the shape and dtype of logits.
  """
  def compute(x):  # [..., memory_length] -> the same
    return tf.exp(x - tf.reduce_max(x, -1, keepdims=True))

  return splits.slicewise(
      compute, [logits], splittable_dims=logits.shape.dims[:-1], grad_function=0)


def divided_mean(weights: mtf.Tensor, values: mtf.Tensor, shape: list[mtf.Dimension],
                 features: list[mtf.Tensor], table: list[mtf.Tensor],
                 read_at: one_hot_tables.Positions | None = None
                 ) -> tuple[mtf.Tensor, mtf.Tensor]:
  """The mean of the values for weights whose rows do not sum to 1.

  Other arguments are as in `WeightedMeanOperation`.

  Args:
    weights: <float>[batch, heads, length, memory_length]
    values: <float>[batch, heads, memory_length, d_kv]
    shape: [batch, heads, length, d_kv]

  Returns:
    <float>[batch, heads, length, d_kv], 0 for rows whose weights are all 0; and the
    row sums, <float>[batch, heads, length], with 1 instead of 0.
  """
  total = mtf.reduce_sum(
      mtf.cast(weights, tf.float32), reduced_dim=weights.shape.dims[-1])
  total = mtf.cast(
      total + mtf.cast(mtf.equal(total, 0), tf.float32), values.dtype)
  mean = mtf.einsum([weights, values], output_shape=shape) / total
  return WeightedMeanOperation(
      weights, mean, values, features, table, [total], read_at).outputs[0], total


def append_channel(features: mtf.Tensor, values: mtf.Tensor) -> mtf.Tensor:
  """Features with one more channel, for a product over the channels.

  Args:
    features: <float>[batch, heads, positions, channels]
    values: <float> with any of these dimensions except the last.

  Returns:
    <float>[batch, heads, positions, channels + 1], or with more channels of zeros.
  """
  *lead, channels = features.shape.dims
  channel = mtf.Dimension(channels.name, 1)
  values = mtf.broadcast(mtf.reshape(values, values.shape + channel), lead + [channel])
  zeros = mtf.Dimension(
      channels.name, mixed_precision.padding_of_channels(channels.size + 1))
  return mtf.concat([features, values] + (
      [mtf.zeros(features.mesh, lead + [zeros], features.dtype)] if zeros.size else []),
                    channels.name)


def _grad_logits(weights, values, mean, grad_mean, seen):
  """weights * (G - sum(weights * G)) with G the gradient of the weights.

  G is grad_mean . values, and sum(weights * G) is grad_mean . mean. One more channel of
  the same product subtracts this sum, except at padding. XLA subtracts it while it
  multiplies with the weights, and GPUs are slow at products of 65 channels. (XLA would
  write G - sum as a product that adds a tensor as large as the weights.) The result has
  the shape and the dtype of the weights, because products would round it to this dtype
  anyway.
  """
  delta = mtf.reduce_sum(grad_mean * mean, reduced_dim=values.shape.dims[-1])
  if not seen and splits.is_compiled(values.mesh) and set(
      delta.shape.dims) <= set(weights.shape.dims):
    grad_weights = mtf.einsum([grad_mean, values], output_shape=weights.shape)
    return weights * grad_weights + weights * -delta
  seen, = seen or [mtf.ones(values.mesh, [], values.dtype)]
  centered = mtf.einsum([append_channel(grad_mean, -delta),
                         append_channel(values, seen)],
                        output_shape=weights.shape)
  return mtf.cwise(mixed_precision.multiply, [weights, centered])
