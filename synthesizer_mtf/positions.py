"""Where tokens stand: packing, positions within segments, rows of tables.

T5 packs several examples into one row. A synthesized row or column belongs to a
position within its example and not to a slot of the row, so that training on
packed rows and decoding unpacked ones read the same weights.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import tensorflow.compat.v1 as tf


def segment_id(context):
  """The ids which separate the examples of a row, as stock attention sees them.

  Args:
    context: a `transformer.Context`.

  Returns:
    <int32>[batch, length] with 0 for padding, or None where nothing is marked.
  """
  for ids in (context.subsequence_id, context.sequence_id):
    if isinstance(ids, mtf.Tensor):
      return ids if context.length_dim in ids.shape.dims else None
  return None


def is_packed(context, declared=None):
  """Whether rows of the batch may hold several examples.

  This is decided while the graph is built. Mesh TensorFlow makes the ids up as
  `mtf.minimum(inputs, 1)` when the features carry no segmentation; such ids mark
  padding only. All other ids may separate examples.

  Args:
    context: a `transformer.Context`.
    declared: the user's word for it, True or False; or None.

  Returns:
    a boolean; always False where nothing is marked.
  """
  ids = segment_id(context)
  if ids is None:
    return False
  if declared is not None:
    return declared
  return not isinstance(ids.operation, mtf.ops.MinMaxOperation)


def segment_position(context):
  """<int32>[batch, length]: each token's position within its segment.

  Mesh TensorFlow drops the positions of packed rows where the model has no
  positional embedding, so they are counted from the ids, once per stack.
  """
  def count():
    slot = mtf.range(context.mesh, context.length_dim, tf.int32)
    other = mtf.Dimension("memory_length", context.length_dim.size)
    earlier = mtf.greater(slot, mtf.range(context.mesh, other, tf.int32))
    same = mtf.logical_and(earlier, _same_segment(context, other))
    return mtf.reduce_sum(mtf.cast(same, tf.int32), reduced_dim=other)

  return once_per_stack(context, "segment_position", count)


def segment_length(context, packed):
  """The number of tokens in the example of each token, without padding.

  Args:
    context: a `transformer.Context`.
    packed: whether rows may hold several examples.

  Returns:
    <int32>[batch, length] if packed, else <int32>[batch] or, where nothing is
    marked, <int32>[].
  """
  def count():
    ids = segment_id(context)
    if ids is None:
      return mtf.constant(
          context.mesh, context.length_dim.size, dtype=tf.int32)
    if packed:
      other = mtf.Dimension("memory_length", context.length_dim.size)
      return mtf.reduce_sum(mtf.cast(
          _same_segment(context, other), tf.int32), reduced_dim=other)
    slot = mtf.range(context.mesh, context.length_dim, tf.int32)
    seen = mtf.cast(mtf.not_equal(ids, 0), tf.int32)
    # An example of padding alone counts as one token, so that nothing is empty.
    return mtf.maximum(mtf.reduce_max(
        (slot + 1) * seen, reduced_dim=context.length_dim), 1)

  return once_per_stack(context, ("segment_length", packed), count)


def _same_segment(context, other):
  """<bool>[batch, length, other]: whether two slots have the same id."""
  ids = segment_id(context)
  return mtf.equal(ids, mtf.replace_dimensions(ids, context.length_dim, other))


def once_per_stack(context, key, make):
  """What `make` returns, made once for all layers of a stack.

  Layers that run again in the backward pass cannot share tensors, so there each
  makes its own.

  Args:
    context: a `transformer.Context`.
    key: a hashable name.
    make: a function without arguments.

  Returns:
    the return value of `make`.
  """
  stack = context.model.layer_stack
  if (isinstance(stack, transformer.ReversibleLayerStack) or
      getattr(stack, "_recompute_grads", False)):
    return make()
  key = "synthesizer_mtf", key
  if key not in context.cache:
    context.cache[key] = make()
  return context.cache[key]


def cut(table, dim_name, size):
  """The first `size` entries of `table` along the dimension `dim_name`."""
  if table.shape.get_dim_by_name(dim_name).size == size:
    return table
  return mtf.slice(table, 0, size, dim_name)


def tile(table, dim_name, size):
  """Repeats `table` along `dim_name` until it holds `size` entries."""
  dim = table.shape.get_dim_by_name(dim_name)
  times = -(-size // dim.size)
  axis = table.shape.dims.index(dim)
  tiles = mtf.Dimension("tiles", times)
  dims = table.shape.dims[:axis] + [tiles] + table.shape.dims[axis:]
  tiled = mtf.replace_dimensions(
      mtf.broadcast(table, dims), [tiles, dim],
      mtf.Dimension(dim_name, times * dim.size))
  return cut(tiled, dim_name, size)


def gather_rows(table, position):
  """Rows of `table` for one decoding step. It has no gradient.

  `mtf.gather` multiplies the table with a one-hot matrix; this reads the rows.

  Args:
    table: <float>[..., length, ...]
    position: <int32>[batch]

  Returns:
    <float>[batch, ...] without `length`.
  """
  length = table.shape.get_dim_by_name("length")
  axis = table.shape.dims.index(length)
  rank = position.shape.ndims

  def gather(table_slice, position_slice):
    # Sequences that have reached their end move on until all have.
    position_slice = tf.minimum(position_slice, length.size - 1)
    rows = tf.gather(table_slice, position_slice, axis=axis)
    order = list(range(axis, axis + rank)) + list(range(axis)) + list(
        range(axis + rank, rows.shape.ndims))
    return tf.transpose(rows, order)

  rest = table.shape - length
  return mtf.slicewise(
      gather, [table, position],
      output_shape=mtf.Shape(position.shape.dims + rest.dims),
      output_dtype=table.dtype,
      splittable_dims=position.shape.dims + rest.dims, grad_function=0)


def gather_table(table, rows, columns):
  """Entries of each head's table at the given rows and columns.

  Args:
    table: <float>[heads, table_length, table_memory_length]
    rows: <int32>[batch, length]
    columns: <int32>[batch, memory_length]

  Returns:
    <float>[batch, heads, length, memory_length]
  """
  return GatherTableOperation(table, rows, columns).outputs[0]


def _flat_index(table_shape, rows, columns):
  """Index of [batch, heads, length, memory_length] into the flattened table."""
  heads, _, width = table_shape
  index = rows[..., :, None] * width + columns[..., None, :]
  offset = tf.range(heads) * table_shape[1] * width
  return index[..., None, :, :] + offset[:, None, None]


class GatherTableOperation(mtf.Operation):
  """See `gather_table`. `length` and `memory_length` cannot be split."""

  def __init__(self, table, rows, columns):
    super().__init__([table, rows, columns], name="gather_table")
    shape = mtf.Shape(rows.shape.dims[:-1] + [table.shape.dims[0]] +
                      rows.shape.dims[-1:] + columns.shape.dims[-1:])
    self._outputs = [mtf.Tensor(self, shape, table.dtype)]

  def gradient(self, grad_ys):
    return [GatherTableGradOperation(self, grad_ys[0]).outputs[0], None, None]

  def lower(self, lowering):
    def gather(table, rows, columns):
      index = _flat_index(table.shape.as_list(), rows, columns)
      return tf.gather(tf.reshape(table, [-1]), index)

    lowering.set_tensor_lowering(
        self.outputs[0],
        lowering.mesh_impl(self).slicewise(
            gather, *[lowering.tensors[x] for x in self.inputs]))


class GatherTableGradOperation(mtf.Operation):
  """Adds the gradients of all places which read an entry of the table."""

  def __init__(self, forward, grad):
    table, rows, columns = forward.inputs
    super().__init__([rows, columns, grad], name="gather_table_grad")
    self._outputs = [mtf.Tensor(self, table.shape, table.dtype)]

  def lower(self, lowering):
    mesh_impl = lowering.mesh_impl(self)
    shape = mesh_impl.slice_shape(self.outputs[0].shape)

    def scatter(rows, columns, grad):
      flat = tf.math.unsorted_segment_sum(
          tf.reshape(grad, [-1]),
          tf.reshape(_flat_index(shape, rows, columns), [-1]),
          shape[0] * shape[1] * shape[2])
      return tf.reshape(flat, shape)

    grad = mesh_impl.slicewise(
        scatter, *[lowering.tensors[x] for x in self.inputs])
    batch_axes = [
        axis for axis in map(mesh_impl.tensor_dimension_to_mesh_axis,
                             self.inputs[0].shape.dims[:-1])
        if axis is not None]
    if batch_axes:
      def add_counter():
        lowering.add_counter(f"allreduce/{batch_axes}/gather_table_grad",
                             mesh_impl.laid_out_size(self.outputs[0].shape))
      grad = mtf.LazyAllreduceSum(
          mesh_impl, grad, batch_axes, add_counter_fn=add_counter)
    lowering.set_tensor_lowering(self.outputs[0], grad)
