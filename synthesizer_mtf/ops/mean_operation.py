"""The operation that passes a weighted mean on and has the gradient of its making."""

from collections.abc import Sequence

import mesh_tensorflow as mtf
from synthesizer_mtf.context import tables
import tensorflow.compat.v1 as tf


class WeightedMeanOperation(mtf.Operation):
  """Passes the mean on and has the gradient of all that made it.

  `mtf.custom_gradient` would do, but layers that run again in the backward pass
  (`LayerStack.recompute_grads`) cannot hold one.
  """

  def __init__(self, weights: mtf.Tensor, mean: mtf.Tensor, values: mtf.Tensor,
               features: list[mtf.Tensor], table: list[mtf.Tensor],
               padding: Sequence[mtf.Tensor] = (),
               places: Sequence[mtf.Tensor] = ()):
    """Declares the inputs, where all but `table` may lack `batch`.

    Args:
      weights: <float>[batch, heads, length, memory_length]
      mean: <float>[batch, heads, length, d_kv]
      values: <float>[batch, heads, memory_length, d_kv], 0 where not seen.
      features: [] or [query, key], <float32>[batch, heads, length, channels] and
        <float32>[batch, heads, memory_length, channels].
      table: what was added to their products, tensors with any dimensions.
      padding: (), where weights are 0 for padding, or [total, seen]: the sums
        of weights, <float>[batch, heads, length], which the mean was divided by,
        and <float>[batch, memory_length], which tells what they count; 1 where
        that is left out.
      places: (), or what put the positions of the table in their places, as of
        `tables.pick`.
    """
    super().__init__(
        [weights, mean, values, *features, *table, *padding, *places],
        name="weighted_mean")
    self._outputs = [mtf.Tensor(self, mean.shape, mean.dtype)]
    self._sizes = [len(features), len(table), len(padding), len(places)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.tensors[self.inputs[1]])

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    grad_mean, = grad_ys
    weights, mean, values, *rest = self.inputs
    features, table, padding, places = (
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
    total = (tables.add_picked(grad_logits, *places, lead) if places
             else mtf.cast(grad_logits, tf.float32))
    # A sum that the mesh has still to make is not cast without need: see `plan_pod`.
    grads += [mtf.cast(total if total.shape == t.shape else mtf.reduce_sum(
        total, output_shape=t.shape), t.dtype) for t in table]
    return grads + [None] * len(padding + places)


def exponential(logits: mtf.Tensor) -> mtf.Tensor:
  """exp(logits - their maximum), of each row, without a gradient.

  Args:
    logits: <float32>[..., memory_length]

  Returns:
    a tensor with the shape and dtype of logits.
  """
  def of_slice(x):
    return tf.exp(x - tf.reduce_max(x, -1, keepdims=True))

  return mtf.slicewise(of_slice, [logits], splittable_dims=logits.shape.dims[:-1],
                       grad_function=0)


def divided_mean(weights: mtf.Tensor, values: mtf.Tensor, shape: list[mtf.Dimension],
                 features: list[mtf.Tensor], table: list[mtf.Tensor],
                 places: Sequence[mtf.Tensor] = ()) -> tuple[mtf.Tensor, mtf.Tensor]:
  """The mean of the values for weights whose rows do not sum to 1.

  Args:
    weights: <float>[batch, heads, length, memory_length]
    values: <float>[batch, heads, memory_length, d_kv]
    shape: [batch, heads, length, d_kv]
    features: as of `WeightedMeanOperation`.
    table: likewise.
    places: likewise.

  Returns:
    <float>[batch, heads, length, d_kv]; 0 for rows of which the weights are. And
    the sums of the rows, <float>[batch, heads, length], 1 in the place of 0.
  """
  total = mtf.reduce_sum(
      mtf.cast(weights, tf.float32), reduced_dim=weights.shape.dims[-1])
  total = mtf.cast(
      total + mtf.cast(mtf.equal(total, 0), tf.float32), values.dtype)
  mean = mtf.einsum([weights, values], output_shape=shape) / total
  return WeightedMeanOperation(
      weights, mean, values, features, table, [total], places).outputs[0], total


def append_channel(features: mtf.Tensor, values: mtf.Tensor) -> mtf.Tensor:
  """Features with one more channel.

  Args:
    features: <float>[batch, heads, positions, channels]
    values: <float> with any of the dimensions but the last.

  Returns:
    <float>[batch, heads, positions, channels + 1]
  """
  channel = mtf.Dimension(features.shape.dims[-1].name, 1)
  values = mtf.broadcast(mtf.reshape(values, values.shape + channel),
                         features.shape.dims[:-1] + [channel])
  return mtf.concat([features, values], channel.name)


def _grad_logits(weights, values, mean, grad_mean, seen):
  """weights * (G - sum(weights * G)) with G the gradient of the weights.

  G is grad_mean . values, and sum(weights * G) is grad_mean . mean, which is
  subtracted, from what is seen, by one more channel of the same product. It is as
  large as the weights, of whose dtype it is, too: products round it to that anyway.
  """
  delta = mtf.reduce_sum(grad_mean * mean, reduced_dim=values.shape.dims[-1])
  seen, = seen or [mtf.ones(values.mesh, [], values.dtype)]
  centered = mtf.einsum([append_channel(grad_mean, -delta),
                         append_channel(values, seen)],
                        output_shape=weights.shape)
  return mtf.cast(
      mtf.cast(weights, tf.float32) * mtf.cast(centered, tf.float32), weights.dtype)
