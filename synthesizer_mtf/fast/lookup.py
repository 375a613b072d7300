"""Embedding lookup: reads the rows of a table at given ids.

`mtf.gather` multiplies the whole table with one-hot rows, forward and backward. This
module reads the rows, and adds their gradients to zeros. On TPUs the product is faster.
If the mesh splits the rows, only the product works.
"""

from typing import Any

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import tables
import tensorflow.compat.v1 as tf


def lookup(table: mtf.Tensor, ids: mtf.Tensor, rows: mtf.Dimension) -> mtf.Tensor:
  """Gathers rows as `mtf.gather` does, but without a product.

  Args:
    table: <float>[lead..., rows, d_model]; its leading dimensions, such as `ensemble`,
      are also the first of the ids.
    ids: <int32>[lead..., batch, length]
    rows: a dimension of the table, which no layout splits.

  Returns:
    <float>[lead..., batch, length, d_model]; zeros for ids out of range.
  """
  lead = table.shape.dims.index(rows)

  def read(table, ids):
    is_row = _is_row(ids, rows.size)
    entries = tf.gather(
        table, tf.where_v2(is_row, ids, 0), axis=lead, batch_dims=lead)
    return tf.where_v2(tf.expand_dims(is_row, -1), entries, tf.zeros([], entries.dtype))

  def gradient(operation, grad):
    table, ids = operation.inputs
    return [LookupGradOperation(ids, grad, table, lead).outputs[0], None]

  shape = ids.shape + table.shape.dims[lead + 1:]
  return splits.slicewise(
      read, [table, ids], output_shape=shape, splittable_dims=shape.dims,
      grad_function=gradient, name="lookup", remedy=splits.NAME_A_LAYOUT)


def _is_row(ids, rows):
  return (ids >= 0) & (ids < rows)


class RowGradients(mtf.Tensor):
  """The gradient of a table, which is 0 except in the rows that were read.

  Mesh TensorFlow adds up the gradients of all uses of a table. These rows are added to
  the sum of the other gradients, so that no tensor as large as the table is needed for
  them.
  """

  def __add__(self, other: Any) -> mtf.Tensor:
    is_whole = (isinstance(other, mtf.Tensor) and other.dtype == tf.float32 and
                other.shape == self.shape)
    return (AddRowsOperation(other, self).outputs[0] if is_whole and
            self.dtype == tf.float32 else super().__add__(other))

  __radd__ = __add__


class LookupGradOperation(mtf.Operation):
  """Adds up the gradients of all reads of each row, in float32."""

  def __init__(self, ids: mtf.Tensor, grad: mtf.Tensor, table: mtf.Tensor,
               lead: int):
    """Declares the inputs.

    Args:
      ids: <int32>[lead..., batch, length]
      grad: <float>[lead..., batch, length, d_model]
      table: <float>[lead..., rows, d_model], whose shape and dtype are used.
      lead: the number of leading dimensions.
    """
    super().__init__([ids, grad], name="lookup_grad")
    self._lead = lead
    self._outputs = [RowGradients(self, table.shape, table.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(self)
    table, = self.outputs
    rows = table.shape.dims[self._lead].size  # No layout splits it.

    def add(ids, grad):
      total = tables.sum_at(
          tf.cast(grad, tf.float32), tf.where_v2(_is_row(ids, rows), ids, -1),
          self._lead, rows)
      return tf.cast(total, table.dtype)

    total = mesh_impl.slicewise(add, *[lowering.tensors[x] for x in self.inputs])
    ids, _ = self.inputs
    lowering.set_tensor_lowering(table, splits.add_parts(
        lowering, self, ids.shape.dims[self._lead:], total, table))


class AddRowsOperation(mtf.Operation):
  """Adds `RowGradients` to another gradient of the table.

  Processors that hold all ids add row by row. TensorFlow does this in the memory of the
  other gradient, or in a copy if something else still reads that. Processors that hold
  a part of the ids add whole tables.
  """

  def __init__(self, total: mtf.Tensor, rows: RowGradients):
    """Declares the inputs.

    Args:
      total: <float32>[lead..., rows, d_model]
      rows: <float32>[lead..., rows, d_model]
    """
    super().__init__([total, rows, *rows.operation.inputs], name="add_rows")
    self._outputs = [mtf.Tensor(self, total.shape, total.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(self)
    total, rows, *read = [lowering.tensors[x] for x in self.inputs]
    is_split = any(mesh_impl.tensor_dimension_to_mesh_axis(dim) is not None
                   for dim in self.inputs[2].shape.dims)
    lowering.set_tensor_lowering(
        self.outputs[0], mesh_impl.slicewise(tf.add, total, rows) if is_split else
        mesh_impl.slicewise(_add_rows, total, *read))


def _add_rows(total, ids, grad):
  """Adds gradients [lead..., batch, length, d_model] to the rows of their ids."""
  shape = total.shape.as_list()
  *lead, rows, d_model = shape
  is_row = _is_row(ids, rows)
  tables = int(np.prod(lead))
  index = tf.reshape(tf.where_v2(is_row, ids, 0), [tables, -1])
  index += tf.range(tables)[:, None] * rows
  added = tf.reshape(
      tf.where_v2(is_row[..., None], tf.cast(grad, total.dtype), 0.), [-1, d_model])
  table = tf.reshape(total, [-1, d_model])
  if "cpu" not in total.device.lower():
    # On GPUs two additions in place to one row would lose one of them.
    total = tf.tensor_scatter_nd_add(table, tf.reshape(index, [-1, 1]), added)
  else:
    # A snapshot is the memory itself, or a copy if something else still reads it.
    total = tf.raw_ops.InplaceAdd(
        x=tf.raw_ops.Snapshot(input=table), i=tf.reshape(index, [-1]), v=added)
  return tf.reshape(total, shape)
