"""Tables over positions: slicing, tiling and gathering.

`mtf.gather` multiplies with a one-hot matrix; these functions read the entries.
"""

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def cut(table: mtf.Tensor, dim_name: str, size: int) -> mtf.Tensor:
  """The first `size` entries of `table` along the dimension `dim_name`."""
  if table.shape.get_dim_by_name(dim_name).size == size:
    return table
  return mtf.slice(table, 0, size, dim_name)


def tile(table: mtf.Tensor, dim_name: str, size: int) -> mtf.Tensor:
  """Repeats or cuts `table` along `dim_name` so that it holds `size` entries."""
  dim = table.shape.get_dim_by_name(dim_name)
  if dim.size >= size:
    return cut(table, dim_name, size)
  times = -(-size // dim.size)
  axis = table.shape.dims.index(dim)
  tiles = mtf.Dimension("tiles", times)
  dims = table.shape.dims[:axis] + [tiles] + table.shape.dims[axis:]
  tiled = mtf.replace_dimensions(
      mtf.broadcast(table, dims), [tiles, dim],
      mtf.Dimension(dim_name, times * dim.size))
  return cut(tiled, dim_name, size)


def take(tensor: mtf.Tensor, name: str, index: mtf.Tensor) -> mtf.Tensor:
  """Gathers entries of `tensor` along the dimension `name` at the indices `index`.

  Args:
    tensor: [lead..., name, rest...]
    index: <int32>[lead..., entries] below the size of `name`. Its leading dimensions
      may differ from those of the tensor. Only leading dimensions can be split.

  Returns:
    [lead..., entries, rest...] with the leading dimensions of both.
  """
  dims = tensor.shape.dims
  axis = dims.index(tensor.shape.get_dim_by_name(name))
  lead = dims[:axis] + [d for d in index.shape.dims[:-1] if d not in dims]
  tensor = mtf.broadcast(tensor, lead + dims[axis:])
  index = mtf.broadcast(index, lead + index.shape.dims[-1:])

  def read(tensor_slice, index_slice):
    return tf.gather(
        tensor_slice, index_slice, axis=len(lead), batch_dims=len(lead))

  def gradient(operation, grad):
    # Mesh TensorFlow's own gradient does not accept a sum that is still pending over
    # the mesh. A layer that runs again has its own operation.
    tensor, index = operation.inputs
    return [_add_back(grad, index, tensor.shape, lead), None]

  return splits.slicewise(
      read, [tensor, index],
      output_shape=index.shape.dims + dims[axis + 1:],
      splittable_dims=lead + dims[axis + 1:], grad_function=gradient)


def _add_back(grad, index, shape, lead):
  """Adds up the gradients of all reads of each entry: [*shape]."""
  size, *rest = shape.dims[len(lead):]

  return splits.slicewise(
      lambda grad, index: sum_at(grad, index, len(lead), size.size), [grad, index],
      output_shape=shape, splittable_dims=lead + rest, grad_function=0)


def sum_at(values: tf.Tensor, index: tf.Tensor, lead: int, size: int) -> tf.Tensor:
  """Adds up the values that have the same index.

  Args:
    values: [lead..., entries..., rest...], a TensorFlow tensor.
    index: <int32>[lead..., entries...] below `size`; negative ones are dropped.
    lead: how many leading dimensions there are.
    size: an integer.

  Returns:
    [lead..., size, rest...]
  """
  lead_sizes = index.shape.as_list()[:lead]
  rest_sizes = values.shape.as_list()[index.shape.ndims:]
  rows = int(np.prod(lead_sizes))
  index = tf.reshape(index, [rows, -1])
  flat = tf.where_v2(index < 0, -1, index + (tf.range(rows) * size)[:, None])
  total = tf.math.unsorted_segment_sum(
      tf.reshape(values, [-1] + rest_sizes), tf.reshape(flat, [-1]), rows * size)
  return tf.reshape(total, lead_sizes + [size] + rest_sizes)


def take_by_distance(table: mtf.Tensor, index: mtf.Tensor,
                     lead: list[mtf.Dimension]) -> mtf.Tensor:
  """The entries of a table at the distance of each pair, such as queries and keys.

  Args:
    table: [lead..., distance]
    index: <int32> with any dimensions, below the size of `distance`.
    lead: the dimensions that can be split, such as batch and heads.

  Returns:
    [lead..., ...] with the dimensions of both except `distance`.
  """
  first = [d for d in index.shape.dims if d in lead]
  pairs = [d for d in index.shape.dims if d not in lead]
  entries = mtf.Dimension("pairs", mtf.Shape(pairs).size)
  flat = mtf.reshape(mtf.transpose(index, first + pairs), first + [entries])
  return mtf.replace_dimensions(take(table, "distance", flat), entries, pairs)


def take_near(values: mtf.Tensor, first: int, offset: mtf.Tensor) -> mtf.Tensor:
  """The entries of each query's window at the distances of its keys, or 0.

  Args:
    values: <float>[batch, heads, length, near], for the distances from `first` on.
    first: an integer.
    offset: <int32>[batch, length, memory_length], the distances. It may lack dimensions
      that `values` has.

  Returns:
    [batch, heads, length, memory_length]
  """
  near = values.shape.dims[-1]
  index = offset - first
  inside = mtf.logical_and(mtf.greater_equal(index, 0), mtf.less(index, near.size))
  taken = take(values, near.name, mtf.minimum(mtf.maximum(index, 0), near.size - 1))
  return mtf.multiply(taken, mtf.cast(inside, taken.dtype), output_shape=taken.shape)


def gather_rows(table: mtf.Tensor, position: mtf.Tensor) -> mtf.Tensor:
  """Rows of `table` for one decoding step, without a gradient.

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
    # Positions of finished sequences keep growing until all have finished.
    position_slice = tf.minimum(position_slice, length.size - 1)
    rows = tf.gather(table_slice, position_slice, axis=axis)
    order = list(range(axis, axis + rank)) + list(range(axis)) + list(
        range(axis + rank, rows.shape.ndims))
    return tf.transpose(rows, order)

  rest = table.shape - length
  return splits.slicewise(
      gather, [table, position],
      output_shape=mtf.Shape(position.shape.dims + rest.dims),
      output_dtype=table.dtype,
      splittable_dims=position.shape.dims + rest.dims, grad_function=0)


def gather_table(table: mtf.Tensor, rows: mtf.Tensor,
                 columns: mtf.Tensor) -> mtf.Tensor:
  """Entries of each head's table at the given rows and columns.

  Args:
    table: <float>[heads, table_length, table_memory_length]
    rows: <int32>[batch, length]
    columns: <int32>[batch, memory_length]

  Returns:
    <float>[batch, heads, length, memory_length]; the first two can be split.
  """
  *batch, length = rows.shape.dims
  heads, memory_length = table.shape.dims[0], columns.shape.dims[-1]

  def gather(table, rows, columns):
    index = _flat_index(table.shape.as_list(), rows, columns)
    return tf.gather(tf.reshape(table, [-1]), index)

  return splits.slicewise(
      gather, [table, rows, columns],
      output_shape=[*batch, heads, length, memory_length],
      splittable_dims=[*batch, heads], grad_function=_gather_table_grad,
      name="gather_table")


def _gather_table_grad(operation, grad):
  table, rows, columns = operation.inputs
  return [GatherTableGradOperation(table, rows, columns, grad).outputs[0], None, None]


def _flat_index(table_shape, rows, columns):
  """Index of [batch, heads, length, memory_length] into the flattened table."""
  heads, _, width = table_shape
  index = rows[..., :, None] * width + columns[..., None, :]
  offset = tf.range(heads) * table_shape[1] * width
  return index[..., None, :, :] + offset[:, None, None]


class GatherTableGradOperation(mtf.Operation):
  """Adds up the gradients of all reads of each table entry."""

  def __init__(self, table: mtf.Tensor, rows: mtf.Tensor, columns: mtf.Tensor,
               grad: mtf.Tensor):
    super().__init__([rows, columns, grad], name="gather_table_grad")
    self._outputs = [mtf.Tensor(self, table.shape, table.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
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
    lowering.set_tensor_lowering(self.outputs[0], splits.add_parts(
        lowering, self, self.inputs[0].shape.dims[:-1], grad, self.outputs[0]))


def where(condition: mtf.Tensor, new: mtf.Tensor, old: mtf.Tensor) -> mtf.Tensor:
  """`new` where the condition holds and `old` elsewhere, in one pass.

  `mtf.where` multiplies and adds, in four passes over `old`.

  Args:
    condition: <bool> with any of the dimensions of `old`.
    new: a tensor with any of the dimensions of `old`.
    old: a tensor.

  Returns:
    a tensor with the shape and dtype of `old`.
  """
  dims = old.shape.dims
  picked = [mtf.transpose(x, [d for d in dims if d in x.shape.dims])
            for x in (condition, new)]
  missing = [[i for i, d in enumerate(dims) if d not in x.shape.dims]
             for x in picked]

  def pick_slices(*slices):
    aligned = []
    for x, axes in zip(slices, missing):
      for axis in axes:
        x = tf.expand_dims(x, axis)
      aligned.append(x)
    return tf.where_v2(*aligned, slices[-1])

  return mtf.slicewise(pick_slices, [*picked, old], output_shape=dims,
                       output_dtype=old.dtype, splittable_dims=dims,
                       grad_function=0)
