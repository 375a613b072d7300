"""Embedding lookup: reads the rows of a table at given ids.

`mtf.gather` multiplies the whole table with one-hot rows, forward and backward. This
module reads the rows, and adds their gradients to zeros. On TPUs the product is faster.
If the mesh splits the rows, only the product works.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.context import splits
from synthesizer_mtf.context import tables
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
  return LookupOperation(table, ids, rows).outputs[0]


def _is_row(ids, rows):
  return (ids >= 0) & (ids < rows)


class LookupOperation(mtf.Operation):
  """See `lookup`. All dimensions except `rows` can be split."""

  def __init__(self, table: mtf.Tensor, ids: mtf.Tensor, rows: mtf.Dimension):
    super().__init__([table, ids], name="lookup")
    self._rows = rows
    self._lead = table.shape.dims.index(rows)
    self._outputs = [mtf.Tensor(
        self, ids.shape + table.shape.dims[self._lead + 1:], table.dtype)]

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    table, ids = self.inputs
    return [LookupGradOperation(
        ids, grad_ys[0], table, self._lead).outputs[0], None]

  def lower(self, lowering: mtf.Lowering) -> None:
    def read(table, ids):
      is_row = _is_row(ids, self._rows.size)
      found = tf.gather(table, tf.where_v2(is_row, ids, 0), axis=self._lead,
                        batch_dims=self._lead)
      return tf.where_v2(
          tf.expand_dims(is_row, -1), found, tf.zeros([], found.dtype))

    lowering.set_tensor_lowering(
        self.outputs[0], lowering.mesh_impl(self).slicewise(
            read, *[lowering.tensors[x] for x in self.inputs]))


class LookupGradOperation(mtf.Operation):
  """Adds up the gradients of all reads of each row, in float32."""

  def __init__(self, ids: mtf.Tensor, grad: mtf.Tensor, table: mtf.Tensor,
               lead: int):
    """Declares the inputs.

    Args:
      ids: <int32>[lead..., batch, length]
      grad: <float>[lead..., batch, length, d_model]
      table: <float>[lead..., rows, d_model]; only its shape and dtype are used.
      lead: the number of leading dimensions.
    """
    super().__init__([ids, grad], name="lookup_grad")
    self._lead = lead
    self._outputs = [mtf.Tensor(self, table.shape, table.dtype)]

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
