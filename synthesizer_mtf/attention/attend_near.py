"""Attention to the keys near each query, in time that is linear in the length.

A layer whose only logits are a `Near` has no weights for other keys, so it computes no
[length, memory_length]. `local_sum` adds up the values of the window.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
from synthesizer_mtf.attention.others import local_sum
import tensorflow.compat.v1 as tf


def lone(logits: list[logit_forms.Logits]) -> logit_forms.Near | None:
  """The `Near` of a layer with no other logits but T5's relative position bias."""
  near, *others = logits
  is_alone = all(isinstance(term, logit_forms.PositionBias) for term in others)
  return near if is_alone and isinstance(near, logit_forms.Near) else None


def is_possible(inputs: AttentionInputs) -> bool:
  """Whether `attend_near` can compute a call.

  A step of decoding has one query. Captured weights are those of all keys.
  """
  return bool(inputs.length_dims) and not intermediates.are_captured() and (
      splits.is_whole(inputs.context.model, inputs.length))


def attend_near(inputs: AttentionInputs,
                logits: list[logit_forms.Logits], values: mtf.Tensor) -> mtf.Tensor:
  """The mean of the values near each query, weighted by the softmax of the logits.

  In decoders the window must end with the query.

  Args:
    inputs: the inputs of the call.
    logits: a `Near`, and T5's relative position bias if there is one.
    values: <float>[batch, heads, memory_length, d_kv]

  Returns:
    <float>[batch, length, heads, d_kv] in the dtype of the values.
  """
  near = lone(logits)
  assert near is not None
  first, window = near.first, near.values.shape.dims[-1]
  biases = [term.for_offsets(first, window) for term in logits
            if isinstance(term, logit_forms.PositionBias)]
  seen = inputs.once_per_stack(
      ("near", window, first), lambda: _seen(inputs, window, first))
  dims = inputs.batch_dims + [inputs.length, window, inputs.heads]
  total = mtf.transpose(mtf.cast(near.values, tf.float32), dims)
  for term in [seen, *biases]:
    total = mtf.add(total, mtf.cast(term, tf.float32), output_shape=dims)
  values = mtf.transpose(
      mtf.replace_dimensions(values, inputs.memory_length, inputs.length),
      inputs.batch_dims + [inputs.length, inputs.heads, inputs.d_kv])
  return local_sum.predicted_kernel(values, total, first)


def _seen(inputs, window, first):
  """<float32>[batch, length, near]: 0 in the segment of the query, elsewhere -1e9."""
  ids = segments.segment_id(inputs.context)
  if ids is None:
    ids = mtf.ones(inputs.context.mesh, [inputs.length], tf.int32)
  return (1 - local_sum.same_segment(ids, window, first)) * masks.MASK_VALUE


def outside(inputs: AttentionInputs, near: logit_forms.Near) -> logit_forms.Table:
  """Logits that mask all keys but those near the query."""
  ones = mtf.ones(near.values.mesh, inputs.batch_dims + inputs.length_dims + [
      near.values.shape.dims[-1]])
  is_near = mtf.not_equal(inputs.near(ones, near.first), 0)
  return logit_forms.Table(masks.mask_bias(is_near))
