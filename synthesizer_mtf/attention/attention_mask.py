"""The attention mask that follows from a `transformer.Context`."""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
import tensorflow.compat.v1 as tf

# Added to the logits of masked keys, as in Mesh TensorFlow.
MASK_VALUE = -1e9


class AttentionMask(NamedTuple):
  """A query attends to a key only if both attributes allow it.

  Attributes:
    keys: <bool>[batch, memory_length], False for padding; or None.
    pairs: <bool>[batch, length, memory_length], <bool>[length, memory_length]
      or, in incremental mode, <bool>[batch, memory_length]; or None.
  """
  keys: mtf.Tensor | None
  pairs: mtf.Tensor | None


def for_stack(inputs: attention_inputs.AttentionInputs) -> AttentionMask:
  """The attention mask, computed once per stack."""
  return stack_cache.once_per_stack(
      inputs.context, ("attention_mask", type(inputs)),
      lambda: _from_context(inputs))


def _from_context(inputs):
  context = inputs.context
  ids = segments.segment_id(context)
  keys = pairs = None
  if ids is not None:
    keys, pairs = inputs.seen_by_id(ids, inputs.as_keys(ids))
  if context.read_priority is not None and not inputs.own_order():
    ordered = mtf.greater_equal(
        context.read_priority, inputs.as_keys(context.write_priority))
    pairs = ordered if pairs is None else mtf.logical_and(ordered, pairs)
  return AttentionMask(keys, pairs)


def bias(mask: mtf.Tensor, dtype: tf.DType = tf.float32) -> mtf.Tensor:
  """0 where `mask` is True and `MASK_VALUE` elsewhere."""
  return mtf.cast(mtf.logical_not(mask), dtype) * MASK_VALUE
