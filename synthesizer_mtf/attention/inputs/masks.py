"""The mask of a call: which keys a query may attend to."""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import layer_call
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
import tensorflow.compat.v1 as tf

# Added to the logits of masked keys, as in Mesh TensorFlow.
MASK_VALUE = -1e9


def mask_bias(mask: mtf.Tensor, dtype: tf.DType = tf.float32) -> mtf.Tensor:
  """0 where `mask` is True and `MASK_VALUE` elsewhere: <dtype> in the mask's shape."""
  return mtf.cast(mtf.logical_not(mask), dtype) * MASK_VALUE


class AttentionMask(NamedTuple):
  """A query attends to a key only if both attributes allow it.

  Attributes:
    keys: <bool>[batch, memory_length], False for padding; or None.
    pairs: <bool>[batch, length, memory_length], <bool>[length, memory_length]
      or, in incremental mode, <bool>[batch, memory_length]; or None.
  """
  keys: mtf.Tensor | None = None
  pairs: mtf.Tensor | None = None


class Masks(layer_call.LayerCall):
  """The mask of padding, later tokens and other segments."""

  def mask(self) -> AttentionMask:
    """The attention mask that follows from the context, computed once per stack."""
    return stack_cache.once_per_stack(
        self.context, ("attention_mask", type(self)), self._mask)

  def _mask(self):
    context = self.context
    ids = segments.segment_id(context)
    mask = AttentionMask()
    if ids is not None:
      mask = self.mask_from_ids(ids, self.as_keys(ids))
    if context.read_priority is None:
      return mask
    ordered = mtf.greater_equal(
        context.read_priority, self.as_keys(context.write_priority))
    return mask._replace(pairs=(
        ordered if mask.pairs is None else mtf.logical_and(ordered, mask.pairs)))

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> AttentionMask:
    """The mask that segment ids alone imply.

    Args:
      queries: <int32>[batch, length], the segment ids of the queries.
      keys: <int32>[batch, memory_length], those of the keys.
    """
    del queries
    return AttentionMask(keys=mtf.not_equal(keys, 0))
