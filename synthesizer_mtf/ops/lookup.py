"""Rows of a table, read at the places that ids tell.

`mtf.gather` multiplies the whole table with one-hot rows, forward and backward;
here rows are read, and their gradients are added to zeros. On TPUs the product is
the faster way, and it is the only one where the rows are split over the mesh.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.context import splits
import tensorflow.compat.v1 as tf


def lookup(table: mtf.Tensor, ids: mtf.Tensor, rows: mtf.Dimension) -> mtf.Tensor:
  """What `mtf.gather` returns, without a product.

  Args:
    table: <float>[lead..., rows, d_model], where the leading dimensions, such as
      `ensemble`, are the first of the ids.
    ids: <int32>[lead..., batch, length]
    rows: a dimension of the table, which no layout splits.

  Returns:
    <float>[lead..., batch, length, d_model]; zeros for ids that are no row.
  """
  return LookupOperation(table, ids, rows).outputs[0]


def _flat(ids, rows, lead):
  """<int64>[ids]: places in tables one below the other, and whether there are any.

  Args:
    ids: <int32>[lead..., batch, length], a TensorFlow tensor.
    rows: an integer.
    lead: how many leading dimensions there are.
  """
  is_row = (ids >= 0) & (ids < rows)
  table = tf.range(tf.reduce_prod(tf.shape(ids)[:lead]), dtype=tf.int64) * rows
  table = tf.reshape(table, ids.shape.as_list()[:lead] + [1] * (ids.shape.ndims - lead))
  return tf.reshape(tf.cast(ids, tf.int64) + table, [-1]), tf.reshape(is_row, [-1])


class LookupOperation(mtf.Operation):
  """See `lookup`. All dimensions but `rows` can be split."""

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
      rest = table.shape.as_list()[self._lead + 1:]
      places, is_row = _flat(ids, self._rows.size, self._lead)
      found = tf.gather(tf.reshape(table, [-1] + rest),
                        tf.where_v2(is_row, places, 0))
      found = tf.where_v2(tf.expand_dims(is_row, -1), found, tf.zeros([], found.dtype))
      return tf.reshape(found, ids.shape.as_list() + rest)

    lowering.set_tensor_lowering(
        self.outputs[0], lowering.mesh_impl(self).slicewise(
            read, *[lowering.tensors[x] for x in self.inputs]))


class LookupGradOperation(mtf.Operation):
  """Adds the gradients of all places that read a row, in float32."""

  def __init__(self, ids: mtf.Tensor, grad: mtf.Tensor, table: mtf.Tensor,
               lead: int):
    """Declares the inputs.

    Args:
      ids: <int32>[lead..., batch, length]
      grad: <float>[lead..., batch, length, d_model]
      table: <float>[lead..., rows, d_model]; only its shape and dtype are used.
      lead: how many leading dimensions there are.
    """
    super().__init__([ids, grad], name="lookup_grad")
    self._lead = lead
    self._outputs = [mtf.Tensor(self, table.shape, table.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(self)
    table, = self.outputs
    shape = mesh_impl.slice_shape(table.shape)
    tables = mtf.Shape(table.shape.dims[:self._lead])
    count = mtf.list_product(mesh_impl.slice_shape(tables))

    def add(ids, grad):
      places, is_row = _flat(ids, shape[self._lead], self._lead)
      grad = tf.reshape(tf.cast(grad, tf.float32), [-1] + shape[self._lead + 1:])
      # A segment that is negative counts nowhere.
      total = tf.math.unsorted_segment_sum(
          grad, tf.where_v2(is_row, places, -1), count * shape[self._lead])
      return tf.cast(tf.reshape(total, shape), table.dtype)

    total = mesh_impl.slicewise(add, *[lowering.tensors[x] for x in self.inputs])
    ids, _ = self.inputs
    lowering.set_tensor_lowering(table, splits.add_parts(
        lowering, self, ids.shape.dims[self._lead:], total, table))
