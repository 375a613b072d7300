"""Attention in packed rows where XLA compiles, for logits that depend on no token.

The weights belong to positions. If each row holds one example, one table is multiplied
with the values of all rows, as for unpacked rows. Else each row reads its entries of
the table (`one_hot_tables.py`). The program decides, so the gradient does, too.
"""

import math

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import one_hot_tables
import tensorflow.compat.v1 as tf


def is_possible(inputs: attention_inputs.AttentionInputs,
                positions: one_hot_tables.Positions) -> bool:
  """Whether the functions here can compute a call: that of an encoder, in most cases.

  Elsewhere queries see different keys of their example, the weights are captured, or
  the mesh splits what has to be whole.
  """
  return (positions.are_indices is not None and not intermediates.are_captured() and
          inputs.context.read_priority is None and
          splits.is_whole(inputs.context.model, inputs.d_kv))


def attend(weights: mtf.Tensor, terms: list[mtf.Tensor], values: mtf.Tensor,
           ids: mtf.Tensor, positions: one_hot_tables.Positions) -> mtf.Tensor:
  """The weighted mean of the values of each token's example.

  Args:
    weights: <float>[heads, length, memory_length], by position; their rows need not
      sum to 1.
    terms: tensors of which exp(the sum) are the weights, except for a factor of each
      row. They get the gradient.
    values: <float>[batch, heads, memory_length, d_kv]
    ids: <int32>[batch, length], the example of each token, 0 for padding.
    positions: those of the tokens.

  Returns:
    <float>[batch, heads, length, d_kv]; any finite numbers for padding.
  """
  return MeanOperation(weights, values, ids, positions, terms).outputs[0]


class MeanOperation(mtf.Operation):
  """Returns the mean, its divisors, and the weights if rows hold several examples."""

  def __init__(self, weights: mtf.Tensor, values: mtf.Tensor, ids: mtf.Tensor,
               positions: one_hot_tables.Positions, terms: list[mtf.Tensor]):
    """Declares the inputs, which are those of `attend`."""
    super().__init__([weights, values, ids, *positions, *terms],
                     name="mean_by_position")
    length, memory_length = weights.shape.dims[-2:]
    *lead, _, d_kv = values.shape.dims
    # Keys come before queries, or XLA would transpose the weights for the gradient.
    self._outputs = [mtf.Tensor(self, mtf.Shape(lead + dims), values.dtype)
                     for dims in ([length, d_kv], [length], [memory_length, length])]

  def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
    grad_values, total = GradientOperation(
        grad_ys[0], self.inputs[:6], self.outputs).outputs
    return [None, grad_values, None, None, None, None, *(
        mtf.cast(mtf.reduce_sum(total, output_shape=t.shape), t.dtype)
        for t in self.inputs[6:])]

  def lower(self, lowering: mtf.Lowering) -> None:
    products = one_hot_tables.Products(lowering.mesh_impl(self))

    def compute(weights, values, ids, rows, columns, are_indices):
      def alone():
        seen = tf.cast(tf.not_equal(ids, 0), values.dtype)
        mean, total = _divided(
            tf.einsum("hij,bhjd->bhid", weights, values * seen[:, None, :, None]),
            tf.einsum("hij,bj->bhi", weights, seen))
        return mean, total, tf.zeros(
            values.shape.as_list()[:-1] + ids.shape.as_list()[-1:], values.dtype)

      def packed():
        picked = products.read(weights, rows, columns, "bhji") * tf.cast(
            tf.equal(ids[:, None, :, None], ids[:, None, None]), values.dtype)
        total = tf.reduce_sum(tf.cast(picked, tf.float32), -2)
        return *_divided(tf.einsum("bhji,bhjd->bhid", picked, values),
                         tf.cast(total, values.dtype)), picked

      return one_hot_tables.if_all(are_indices, alone, packed)

    for output, laid_out in zip(self.outputs, _lowered(
        self, lowering, compute, self.inputs[:6])):
      lowering.set_tensor_lowering(output, laid_out)


class GradientOperation(mtf.Operation):
  """The gradients of the values, and of the logits by position."""

  def __init__(self, grad: mtf.Tensor, inputs: list[mtf.Tensor],
               outputs: list[mtf.Tensor]):
    """Declares the inputs: of the mean, its gradient, its inputs and its outputs."""
    super().__init__([*inputs, grad, *outputs], name="gradient_by_position")
    weights, values = inputs[:2]
    self._outputs = [mtf.Tensor(self, t.shape, t.dtype) for t in (values, weights)]

  def lower(self, lowering: mtf.Lowering) -> None:
    products = one_hot_tables.Products(lowering.mesh_impl(self))

    def compute(weights, values, ids, rows, columns, are_indices,
                grad, mean, total, picked):
      # See `weighted_mean`: weights * (G - sum(weights * G)), G = grad . values.
      grad = grad / total[..., None]
      delta = tf.reduce_sum(grad * mean, -1)

      def alone():
        seen = tf.cast(tf.not_equal(ids, 0), values.dtype)
        mask = seen[:, None, :, None]
        return tf.einsum("hij,bhid->bhjd", weights, grad) * mask, weights * (
            tf.einsum("bhid,bhjd->hij", grad, values * mask) -
            tf.einsum("bhi,bj->hij", delta, seen))

      def packed():
        grad_logits = picked * (
            tf.einsum("bhid,bhjd->bhji", grad, values) - delta[..., None, :])
        return (tf.einsum("bhji,bhid->bhjd", picked, grad),
                products.add(grad_logits, rows, columns, "bhji"))

      return one_hot_tables.if_all(are_indices, alone, packed)

    grad_values, total = _lowered(self, lowering, compute, self.inputs)
    batch = self.inputs[2].shape.dims[:-1]
    lowering.set_tensor_lowering(self.outputs[0], grad_values)
    lowering.set_tensor_lowering(self.outputs[1], splits.add_parts(
        lowering, self, batch, total, self.outputs[1]))


def _lowered(operation, lowering, compute, inputs):
  """What `compute` returns on each core, for the outputs of the operation.

  Args:
    operation: the operation.
    lowering: its lowering.
    compute: a function of the slices of the inputs, which have one dimension of batch.
    inputs: the weights, which have no batch, the values, the ids, and others.
  """
  batch = inputs[2].shape.dims[:-1]

  def on_slices(weights, *others):
    lead = others[1].shape.as_list()[:-1]
    size = math.prod(lead)
    results = compute(weights, *(
        tf.reshape(x, [size, *x.shape.as_list()[len(lead):]]) for x in others))
    return tuple(
        tf.reshape(x, lead + x.shape.as_list()[1:])
        if output.shape.dims[:len(batch)] == batch else x
        for output, x in zip(operation.outputs, results))

  dims = [d for x in inputs[:2] for d in x.shape.dims[-2:]]
  splits.require_whole(lowering, operation, dims, splits.NAME_A_LAYOUT)
  return lowering.mesh_impl(operation).slicewise(
      on_slices, *[lowering.tensors[x] for x in inputs])


def _divided(mean, total):
  """The mean and its divisors, where 1 stands for 0."""
  total += tf.cast(tf.equal(total, 0), total.dtype)
  return mean / total[..., None], total
