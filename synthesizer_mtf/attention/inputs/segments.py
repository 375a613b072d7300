"""The segments of packed rows, and positions within segments.

T5 packs several examples into one row. A synthesized row or column belongs to a
position in its segment, not to an index in the row. So training on packed rows and
decoding unpacked rows read the same weights.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import stack_cache
import tensorflow.compat.v1 as tf


def segment_id(context: transformer.Context) -> mtf.Tensor | None:
  """The segment ids of a row, as stock attention reads them.

  Returns:
    <int32>[batch, length] with 0 for padding, or None if the context has no ids.
  """
  for ids in (context.subsequence_id, context.sequence_id):
    if isinstance(ids, mtf.Tensor):
      return ids if context.length_dim in ids.shape.dims else None
  return None


def is_packed(context: transformer.Context, declared: bool | None = None) -> bool:
  """Whether rows of the batch may hold several examples.

  This is decided while the graph is built. If the features have no segmentation, Mesh
  TensorFlow makes ids with `mtf.minimum(inputs, 1)`. No id is above 1 then, whoever
  made them, so they mark padding only. All other ids may separate segments.

  A user's setting, `declared`, decides if there are ids. Without ids no row is packed.
  """
  ids = segment_id(context)
  if ids is None:
    return False
  if declared is not None:
    return declared
  return not _is_at_most_one(ids)


def _is_at_most_one(ids):
  """Whether ids are visibly the minimum of a tensor and the constant 1."""
  made = ids.operation
  if type(made) is not mtf.MinMaxOperation or made._tf_fn is not tf.minimum:
    return False
  bound = made.inputs[1].operation
  return (type(bound) is mtf.ImportOperation and
          tf.get_static_value(bound._tf_tensor) == 1)


def segment_position(context: transformer.Context) -> mtf.Tensor:
  """<int32>[batch, length]: each token's position within its segment.

  Mesh TensorFlow drops the positions of packed rows if the model has no positional
  embedding. So they are counted from the ids, once per stack.
  """
  def count():
    index = mtf.range(context.mesh, context.length_dim, tf.int32)
    other = mtf.Dimension("memory_length", context.length_dim.size)
    earlier = mtf.greater(index, mtf.range(context.mesh, other, tf.int32))
    same = mtf.logical_and(earlier, _same_segment(context, other))
    return mtf.reduce_sum(mtf.cast(same, tf.int32), reduced_dim=other)

  return stack_cache.once_per_stack(context, "segment_position", count)


def segment_length(context: transformer.Context) -> mtf.Tensor:
  """<int32>[batch, length]: the length of each token's segment in packed rows."""
  def count():
    other = mtf.Dimension("memory_length", context.length_dim.size)
    return mtf.reduce_sum(mtf.cast(
        _same_segment(context, other), tf.int32), reduced_dim=other)

  return stack_cache.once_per_stack(context, "segment_length", count)


def row_length(context: transformer.Context) -> mtf.Tensor:
  """The length of each row without padding: <int32>[batch], or [] without ids."""
  def count():
    ids = segment_id(context)
    if ids is None:
      return mtf.constant(
          context.mesh, context.length_dim.size, dtype=tf.int32)
    index = mtf.range(context.mesh, context.length_dim, tf.int32)
    seen = mtf.cast(mtf.not_equal(ids, 0), tf.int32)
    # A row of padding alone counts as one token, so that no row is empty.
    return mtf.maximum(mtf.reduce_max(
        (index + 1) * seen, reduced_dim=context.length_dim), 1)

  return stack_cache.once_per_stack(context, "row_length", count)


def _same_segment(context, other):
  """<bool>[batch, length, other]: whether two tokens have the same id."""
  ids = segment_id(context)
  return mtf.equal(ids, mtf.replace_dimensions(ids, context.length_dim, other))
