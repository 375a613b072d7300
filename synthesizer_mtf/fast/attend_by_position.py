"""Attention in packed rows on TPUs, for logits that depend on no token.

Such logits depend only on the positions of query and key in their segment. So the
exponential is computed once for all segments, by position. `tables.pick` gathers its
entries for each row, the attention mask hides other segments, and the division by the
row sums comes last. A softmax of each row would read and write several tensors
[batch, heads, length, memory_length] in float32.

As in `kernels._without_batch`, the maximum of a row includes positions beyond the end
of its segment.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.fast import cases
from synthesizer_mtf.fast import weighted_mean


def attend_by_position(inputs: cases.PackedRowsOnTpu, logits: mtf.Tensor,
                       terms: list[mtf.Tensor], values: mtf.Tensor,
                       mask: attention_inputs.AttentionMask,
                       of_rows: bool) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    inputs: the inputs of the call.
    logits: <float32>[heads, length, memory_length], by position.
    terms: the tensors whose sum is `logits`; they get the gradient.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: an `AttentionMask`, whose `pairs` hide other segments.
    of_rows: whether logits depend on more than the distance between query and key, so
      that each packed row has to gather them by position.

  Returns:
    <float>[batch, heads, length, d_kv] in the dtype of the values.
  """
  one_hot = inputs.one_hot_positions() if of_rows else []
  ensemble = [d for d in inputs.batch_dims if d in logits.shape.dims]
  logits = mtf.broadcast(
      logits, [*ensemble, inputs.heads, inputs.length, inputs.memory_length])
  weights = mtf.cast(weighted_mean.exponential(logits), values.dtype)
  if one_hot:
    weights = tables.pick(weights, *one_hot)
  weights = mtf.multiply(
      weights, mtf.cast(mask.pairs, weights.dtype),
      output_shape=inputs.logit_dims())
  mean, total = weighted_mean.divided_mean(
      weights, values, inputs.query_dims + [inputs.d_kv], [], terms, one_hot)
  intermediates.sow_weights(lambda: weights / total, mask, inputs)
  return mean
