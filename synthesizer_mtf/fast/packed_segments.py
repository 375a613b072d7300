"""The segments of packed rows, computed separately.

Each segment is laid out from its first position on, and attention is computed within
the segment. Nothing is computed across segments. Tables are sliced; masked rows would
have to gather their entries. The graph finds the number and the lengths of the
segments while it runs. It computes segments of similar length together. The cost grows
with the sum of the squared lengths.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import stack_cache
import tensorflow.compat.v1 as tf

# In each group but the last, no segment is shorter than this share of the group's
# longest. The last group holds all shorter segments. So the worst case, many segments
# of few tokens, costs about as much as masked rows. Rows of n tokens have at most n
# groups. Padding to the longest at most doubles a segment's products, by 1 / 0.7^2. Six
# groups reach down to 0.7^5, a sixth of the longest.
_SHARE = 0.7
_GROUPS = 6


def can_be_separate(context: transformer.Context) -> bool:
  """Whether the segments of packed rows can be computed separately.

  They cannot in ensembles, or if the layout splits the length. TPUs need static shapes,
  so `cases.choose` does not call this function there.
  """
  return not context.model.ensemble_dim and splits.is_whole(
      context.model, context.length_dim)


def find(context: transformer.Context) -> "SegmentsOperation":
  """The segments in the rows of a stack, found once per stack."""
  return stack_cache.once_per_stack(
      context, "packed_segments",
      lambda: SegmentsOperation(segments.segment_id(context)))


class Group(NamedTuple):
  """Segments of similar length, as TensorFlow tensors.

  Attributes:
    indices: <int32>[segments, positions], indices of the tokens among all tokens of
      the batch; arbitrary beyond the end of a segment.
    is_token: <float32>[segments, positions], 0 beyond the end of a segment.
  """
  indices: tf.Tensor
  is_token: tf.Tensor

  @property
  def length(self) -> tf.Tensor:
    """<int32>[]: the length of the longest segment, or 0 if the group is empty."""
    return tf.shape(self.indices)[1]


class SegmentsOperation(mtf.Operation):
  """Finds the segments of each processor's rows.

  The shapes of its results are unknown before the graph runs, so they cannot be Mesh
  tensors. Operations that are lowered later read `layout`.

  Attributes:
    layout: a list of laid-out tensors, for `Layout.from_slices`.
  """

  def __init__(self, ids: mtf.Tensor):
    """Declares the input.

    Args:
      ids: <int32>[batch, length], 0 for padding; see `segments.segment_id`.
    """
    super().__init__([ids], name="packed_segments")
    self._outputs = []
    self.layout: list = []

  def lower(self, lowering: mtf.Lowering) -> None:
    ids, = self.inputs
    splits.require_whole(lowering, self, ids.shape.dims[-1:])
    self.layout = lowering.mesh_impl(self).slicewise(
        lambda ids: Layout.from_ids(ids).slices, lowering.tensors[ids])


class Layout(NamedTuple):
  """The order of the tokens of one processor's rows.

  Attributes:
    groups: a list of `Group`, the longest segments first.
    rows: <int32>[tokens of the batch], the row of each token in the joined rows
      of all groups, counted from 1; 0 for padding.
  """
  groups: list[Group]
  rows: tf.Tensor

  @property
  def slices(self) -> tuple[tf.Tensor, ...]:
    """All tensors, for `from_slices`."""
    return (self.rows, *(t for group in self.groups for t in group))

  @classmethod
  def from_slices(cls, slices: Sequence[tf.Tensor]) -> "Layout":
    """The inverse of `slices`."""
    rows, *rest = slices
    return cls([Group(*pair) for pair in zip(rest[::2], rest[1::2])], rows)

  @classmethod
  def from_ids(cls, ids: tf.Tensor) -> "Layout":
    """The layout of rows.

    Args:
      ids: <int32>[batch, length], 0 for padding.
    """
    length = ids.shape.as_list()[-1]
    order, first, sizes = _sorted_segments(tf.reshape(ids, [-1, length]))
    groups = [Group(*_indices(order, first[start:stop], sizes[start:stop]))
              for start, stop in _bounds(sizes, min(_GROUPS, length))]
    indices = tf.concat([tf.reshape(g.indices, [-1]) for g in groups], 0)
    is_token = tf.concat([tf.reshape(g.is_token, [-1]) for g in groups], 0)
    # Beyond the end of a segment the index is -1, which the sum drops.
    tokens = tf.size(order)
    rows = tf.math.unsorted_segment_sum(
        tf.range(1, tf.size(indices) + 1),
        tf.where_v2(is_token > 0, indices, -1), tokens)
    return cls(groups, rows)

  def unjoin(self, rows: tf.Tensor, group: Group) -> tf.Tensor:
    """Rows of a group's tokens.

    Args:
      rows: [tokens of the batch, heads, channels]

    Returns:
      [heads, segments, positions, channels]
    """
    _, heads, channels = rows.shape.as_list()
    tokens = tf.gather(tf.reshape(rows, [-1, heads * channels]), group.indices)
    tokens = tf.reshape(tokens, tf.concat(
        [tf.shape(group.indices), [heads, channels]], 0))
    return tf.transpose(tokens, [2, 0, 1, 3])

  def join(self, parts: list[tf.Tensor]) -> tf.Tensor:
    """The inverse of `unjoin`: rows of all tokens, 0 for padding.

    Args:
      parts: [heads, segments, positions, channels] for each group.

    Returns:
      [tokens of the batch, heads, channels]
    """
    heads, _, _, channels = parts[0].shape.as_list()
    rows = [tf.reshape(tf.transpose(part, [1, 2, 0, 3]), [-1, heads * channels])
            for part in parts]
    nothing = tf.zeros([1, heads * channels], parts[0].dtype)
    return tf.reshape(tf.gather(tf.concat([nothing] + rows, 0), self.rows),
                      [-1, heads, channels])


def _sorted_segments(ids):
  """Sorts the tokens by segment, and the segments by size.

  Args:
    ids: <int32>[rows, length]

  Returns:
    <int32>[tokens]: the indices of the tokens, segment by segment; and for each
    segment, the longest first, its start in these indices, and its size. There are
    as many entries as tokens; those without a segment have the size 0.
  """
  rows, length = ids.shape.as_list()
  low, high = (tf.cast(end, tf.int64)
               for end in (tf.reduce_min(ids), tf.reduce_max(ids)))
  key = tf.cast(ids, tf.int64) - low + tf.range(rows, dtype=tf.int64)[:, None] * (
      high - low + 1)
  real = tf.reshape(tf.not_equal(ids, 0), [-1])
  key = tf.where_v2(real, tf.reshape(key, [-1]), rows * (high - low + 1))
  indices = tf.range(rows * length, dtype=tf.int64)
  ordered = tf.sort(key * (rows * length) + indices)
  order = tf.cast(ordered % (rows * length), tf.int32)
  key, real = ordered // (rows * length), tf.gather(real, order)
  begins = tf.concat([[True], tf.not_equal(key[1:], key[:-1])], 0)
  segment = tf.cumsum(tf.cast(begins, tf.int32)) - 1
  sizes = tf.math.unsorted_segment_sum(
      tf.cast(real, tf.int32), segment, rows * length)
  first = tf.cumsum(sizes, exclusive=True)
  sizes, longest = tf.math.top_k(sizes, rows * length)
  return order, tf.gather(first, longest), sizes


def _bounds(sizes, groups):
  """The start and end of each group among segments sorted by size."""
  longest = tf.cast(sizes[0], tf.float32)
  limits = [longest * _SHARE ** (i + 1) for i in range(groups - 1)] + [0.]
  ends = [tf.reduce_sum(tf.cast(tf.cast(sizes, tf.float32) > limit, tf.int32))
          for limit in limits]
  return zip([0] + ends, ends)


def _indices(order, first, sizes):
  """Indices and mask of a group of segments, [segments, positions] each."""
  length = tf.reduce_max(tf.concat([sizes, [0]], 0))
  position = tf.range(length)
  is_token = position < sizes[:, None]
  index = tf.where_v2(is_token, first[:, None] + position, 0)
  return tf.gather(order, index), tf.cast(is_token, tf.float32)
