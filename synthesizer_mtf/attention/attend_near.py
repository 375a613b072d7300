"""Attention to the keys near each query, in time that is linear in the length.

A layer whose only logits are a `Near` has no weights for other keys, so it computes no
[length, memory_length]. `local_sum` adds up the values of the window.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.others import local_sum
import tensorflow.compat.v1 as tf


def is_possible(inputs: attention_inputs.AttentionInputs) -> bool:
  """Whether `attend_near` can compute a call.

  A step of decoding has one query. Captured weights are those of all keys.
  """
  is_step = isinstance(inputs, attention_inputs.DecodingStep)
  return not is_step and not intermediates.are_captured() and splits.is_whole(
      inputs.context.model, inputs.length)


def attend_near(inputs: attention_inputs.AttentionInputs, term: logit_forms.Near,
                bias: mtf.Tensor | None, values: mtf.Tensor) -> mtf.Tensor:
  """The mean of the values near each query, weighted by the softmax of the logits.

  In decoders the window must end with the query.

  Args:
    inputs: the inputs of the call.
    term: the logits.
    bias: <float>[heads, near] to add to them, or None.
    values: <float>[batch, heads, memory_length, d_kv]

  Returns:
    <float>[batch, length, heads, d_kv] in the dtype of the values.
  """
  near = term.values.shape.dims[-1]
  seen = inputs.once_per_stack(
      ("near", near, term.first), lambda: _seen(inputs, near, term.first))
  dims = inputs.batch_dims + [inputs.length, near, inputs.heads]
  logits = mtf.transpose(mtf.cast(term.values, tf.float32), dims)
  logits = mtf.add(logits, seen, output_shape=dims)
  if bias is not None:
    logits = mtf.add(logits, mtf.cast(bias, tf.float32), output_shape=dims)
  values = mtf.transpose(
      mtf.replace_dimensions(values, inputs.memory_length, inputs.length),
      inputs.batch_dims + [inputs.length, inputs.heads, inputs.d_kv])
  return local_sum.predicted_kernel(values, logits, term.first)


def _seen(inputs, near, first):
  """<float32>[batch, length, near]: 0 in the segment of the query, elsewhere -1e9."""
  ids = segments.segment_id(inputs.context)
  if ids is None:
    ids = mtf.ones(inputs.context.mesh, [inputs.length], tf.int32)
  return (1 - local_sum.same_segment(ids, near, first)) * attend.MASK_VALUE


def as_table(inputs: attention_inputs.AttentionInputs,
             term: logit_forms.Near) -> list[logit_forms.Logits]:
  """The same logits as terms for all keys, of which only those near the query count."""
  ones = mtf.ones(term.values.mesh, inputs.batch_dims + inputs.length_dims + [
      term.values.shape.dims[-1]])
  outside = mtf.equal(inputs.near(ones, term.first), 0)
  return [term, logit_forms.Table(attend.mask_bias(mtf.logical_not(outside)))]
