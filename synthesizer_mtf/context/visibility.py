"""Which keys a query may see, as the `transformer.Context` says."""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.context import attention_inputs
from synthesizer_mtf.context import segments
from synthesizer_mtf.context import stack_cache
import tensorflow.compat.v1 as tf

# Added to the logits of keys that may not be seen, as Mesh TensorFlow does.
HIDDEN = -1e9


class Visibility(NamedTuple):
  """What may be seen. A key is seen if both attributes allow it.

  Attributes:
    keys: <bool>[batch, memory_length], False for padding; or None.
    pairs: <bool>[batch, length, memory_length], <bool>[length, memory_length]
      or, in incremental mode, <bool>[batch, memory_length]; or None.
  """
  keys: mtf.Tensor | None
  pairs: mtf.Tensor | None


def visibility(inputs: attention_inputs.AttentionInputs) -> Visibility:
  """The visibility for one stack; computed once in each.

  Args:
    inputs: an `AttentionInputs`.

  Returns:
    a `Visibility`.
  """
  return stack_cache.once_per_stack(
      inputs.context, ("visibility", inputs.packed, inputs.apart),
      lambda: _from_context(inputs))


def _from_context(inputs):
  context = inputs.context
  ids = segments.segment_id(context)
  keys = pairs = None
  if ids is not None and not inputs.apart:
    if inputs.packed:
      pairs = mtf.equal(ids, _of_keys(ids, inputs))
    else:
      keys = mtf.not_equal(_of_keys(ids, inputs), 0)
  if context.read_priority is not None and not priorities(inputs):
    ordered = mtf.greater_equal(
        context.read_priority, _of_keys(context.write_priority, inputs))
    pairs = ordered if pairs is None else mtf.logical_and(ordered, pairs)
  return Visibility(keys, pairs)


def priorities(inputs: attention_inputs.AttentionInputs) -> list[mtf.Tensor]:
  """What tells the order of tokens where each example has its own.

  Examples that are computed each for itself have different prefixes; a query sees
  the keys which are written no later than it reads.

  Args:
    inputs: an `AttentionInputs`.

  Returns:
    <int32>[batch, length] of queries and of keys; nothing where all examples have
    one order, or none.
  """
  read, write = inputs.context.read_priority, inputs.context.write_priority
  if not inputs.apart or read is None or not inputs.has_batch(read):
    return []
  return [read, write]


def _of_keys(tensor, inputs):
  return mtf.replace_dimensions(tensor, inputs.length, inputs.memory_length)


def bias(visible: mtf.Tensor, dtype: tf.DType = tf.float32) -> mtf.Tensor:
  """0 where `visible` is True and `HIDDEN` elsewhere."""
  return mtf.cast(mtf.logical_not(visible), dtype) * HIDDEN
