"""The operands of `attend_per_segment`, one class for each kind.

Tensors with `batch` belong to tokens, tensors without it to positions in a segment. The
last dimension of a table is always a position.
"""

from collections.abc import Sequence
import dataclasses
from typing import ClassVar
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.fast import cases
from synthesizer_mtf.fast import packed_segments
import tensorflow.compat.v1 as tf


@dataclasses.dataclass
class Operand:
  """An input of the operation; its class says what it means.

  Attributes:
    tensor: [batch, length, heads, last], or without `batch` [heads, length, last].
    of_tokens: whether it has a batch.
    learned: whether it has a gradient.
    belongs_to_keys: whether its tokens or positions belong to keys instead of queries.
  """
  tensor: mtf.Tensor
  of_tokens: bool
  learned: ClassVar[bool] = True
  belongs_to_keys: ClassVar[bool] = False

  @classmethod
  def of(cls, tensor: mtf.Tensor, inputs: cases.PackedSegments) -> "Operand":
    """Makes an operand; the dimensions before the last may have any order."""
    *others, last = tensor.shape.dims
    tensor = mtf.rename_dimension(tensor, last.name, "last")
    of_tokens = inputs.has_batch(tensor)
    positions = inputs.memory_length if cls.belongs_to_keys else inputs.length
    order = ([*inputs.batch_dims, positions, inputs.heads] if of_tokens
             else [inputs.heads, positions])
    last = tensor.shape.dims[-1:]
    ordered = mtf.transpose(tensor, [d for d in order if d in others] + last)
    return cls(mtf.broadcast(ordered, order + last), of_tokens)

  def term(self, laid_out: tf.Tensor, layout: packed_segments.Layout,
           group: packed_segments.Group, length: tf.Tensor) -> "Term":
    """The operand's `Term` in a group.

    Args:
      laid_out: [tokens, heads, last], or without `batch` [heads, length, last].
      length: <int32>[], the length of the group's longest segment.
    """
    if self.of_tokens:
      return Term(layout.unjoin(laid_out, group), True)
    return Term(tf.expand_dims(laid_out[:, :length], 1), False)

  def join(self, layout: packed_segments.Layout, parts: Sequence[tf.Tensor],
           shape: list[int]) -> tf.Tensor:
    """[tokens, heads, last], joined from each group's part."""
    del shape
    return layout.join(list(parts))


class Priority(Operand):
  """Read priorities of queries or write priorities of keys: <float32>, integral."""

  learned = False

  @classmethod
  def of(cls, tensor: mtf.Tensor, inputs: cases.PackedSegments) -> "Operand":
    dims = [*inputs.batch_dims, inputs.length]
    return cls(mtf.reshape(
        mtf.cast(mtf.transpose(tensor, dims), tf.float32),
        dims + [mtf.Dimension("one", 1), mtf.Dimension("last", 1)]), True)


class Query(Operand):
  """The queries of an inner product."""


class Key(Operand):
  """The keys of an inner product."""

  belongs_to_keys = True


class Values(Key):
  """The values of attention."""


class Factor(Operand):
  """A factor of `Products`; the repeated factor comes before the tiled factor."""


class Table(Operand):
  """A table of logits; its last dimension is the position of the key."""

  def term(self, laid_out: tf.Tensor, layout: packed_segments.Layout,
           group: packed_segments.Group, length: tf.Tensor) -> "Term":
    if self.of_tokens:
      return Term(layout.unjoin(laid_out, group)[..., :length], True)
    return Term(tf.expand_dims(laid_out[:, :length, :length], 1), False)

  def join(self, layout: packed_segments.Layout, parts: Sequence[tf.Tensor],
           shape: list[int]) -> tf.Tensor:
    parts = [pad(part, [None, None, None, shape[-1]]) for part in parts]
    for part in parts:
      part.set_shape([shape[-2], None, None, shape[-1]])
    return layout.join(parts)


class Term(NamedTuple):
  """One operand, in one group.

  Attributes:
    block: [heads, segments, positions, last]; one segment if it has no batch.
    of_tokens: whether it has a batch.
  """
  block: tf.Tensor
  of_tokens: bool


def pad(tensor: tf.Tensor, sizes: Sequence[int | None] | tf.Tensor) -> tf.Tensor:
  """Pads the end of each dimension with zeros, except where a size is None."""
  shape = tf.shape(tensor)
  if isinstance(sizes, list):
    sizes = tf.stack([shape[i] if size is None else size
                      for i, size in enumerate(sizes)])
  return tf.pad(tensor, tf.stack([tf.zeros_like(sizes), sizes - shape], 1))
