"""Entries of tables over positions where XLA compiles: slices, or products.

TPUs are fast at products with one-hot rows; reading a table entry by entry costs more
than everything else. If each row holds one example, as in T5's span corruption,
positions are indices and the table itself is the result. Only the data tell, so a
conditional of the program does: each TPU core looks at its own rows.
"""

from collections.abc import Callable
import math
from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf

# The class itself: where JAX runs the model, its module has another one by this name.
from mesh_tensorflow.placement_mesh_impl import PlacementMeshImpl
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.python import xla


class Positions(NamedTuple):
  """Positions of queries and keys in the examples of packed rows.

  Attributes:
    rows: <float>[batch, length, position], one-hot; `position` has the size of
      `length`.
    columns: <float>[batch, memory_length, memory_position], one-hot;
      `memory_position` has the size of `memory_length`.
    are_indices: <int32>[batch], 1 where the position of each token, except padding, is
      its index in the row, and 0 elsewhere. None in ensembles and if the mesh splits
      `length`: then Mesh TensorFlow's own products read the table.
  """
  rows: mtf.Tensor
  columns: mtf.Tensor
  are_indices: mtf.Tensor | None = None

  @property
  def tensors(self) -> list[mtf.Tensor]:
    """The attributes without None: `Positions(*tensors)` is the same."""
    return [t for t in self if t is not None]


def pick(table: mtf.Tensor, positions: Positions) -> mtf.Tensor:
  """Entries of each head's table at the positions of queries and keys.

  Args:
    table: <float>[heads, length, memory_length]; in ensembles with their dimension.
    positions: where to read.

  Returns:
    <float>[batch, heads, length, memory_length] in the dtype of `rows`. Padding gets
    entries of padding's positions or, in rows of one example, of its indices.
  """
  rows, columns, are_indices = positions
  *batch, length, position = rows.shape.dims
  memory_length, memory_position = columns.shape.dims[-2:]
  lead = [d for d in table.shape.dims[:-2] if d not in batch]
  table = mtf.cast(table, rows.dtype)
  if are_indices is not None:
    return PickOperation(table, positions, batch + lead).outputs[0]
  table = mtf.replace_dimensions(
      table, table.shape.dims[-2:], [position, memory_position])
  some = mtf.einsum([rows, table],
                    output_shape=batch + lead + [length, memory_position])
  return mtf.einsum([some, columns],
                    output_shape=batch + lead + [length, memory_length])


def add_picked(grad: mtf.Tensor, positions: Positions,
               lead: list[mtf.Dimension]) -> mtf.Tensor:
  """The gradient of `pick` for its table.

  Args:
    grad: <float>[batch, heads, length, memory_length]
    positions: those of `pick`.
    lead: the table's dimensions before `length`.

  Returns:
    <float>[heads, length, memory_length] in the dtype of `rows`.
  """
  rows, columns, are_indices = positions
  grad = mtf.cast(grad, rows.dtype)
  if are_indices is not None:
    return AddPickedOperation(grad, positions, lead).outputs[0]
  position, memory_position = (x.shape.dims[-1] for x in (rows, columns))
  some = mtf.einsum([grad, columns],
                    output_shape=grad.shape.dims[:-1] + [memory_position])
  total = mtf.einsum([rows, some], output_shape=lead + [position, memory_position])
  return mtf.replace_dimensions(
      total, [position, memory_position], grad.shape.dims[-2:])


class PickOperation(mtf.Operation):
  """Reads a table at the positions of queries and keys: `pick`."""

  def __init__(self, table: mtf.Tensor, positions: Positions,
               lead: list[mtf.Dimension]):
    """Declares the inputs of `pick`; `lead` is [batch, heads]."""
    super().__init__([table, *positions], name="pick")
    dims = [positions.rows.shape.dims[-2], positions.columns.shape.dims[-2]]
    self._outputs = [mtf.Tensor(self, mtf.Shape(lead + dims), table.dtype)]

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    table, *positions = self.inputs
    return [add_picked(grad_ys[0], Positions(*positions), table.shape.dims[:-2]),
            None, None, None]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl, picked = lowering.mesh_impl(self), self.outputs[0]
    products = Products(mesh_impl)

    def read(table, rows, columns, are_indices):
      shape = rows.shape.as_list()[:-2] + table.shape.as_list()
      table, rows, columns = (flat(x, 2) for x in (table, rows, columns))
      size = rows.shape.as_list()[0]
      return tf.reshape(if_all(
          are_indices, lambda: tf.tile(table[None], [size, 1, 1, 1]),
          lambda: products.read(table, rows, columns)), shape)

    splits.require_whole(
        lowering, self, picked.shape.dims[-2:], splits.NAME_A_LAYOUT)
    lowering.set_tensor_lowering(picked, mesh_impl.slicewise(
        read, *[lowering.tensors[x] for x in self.inputs]))


class AddPickedOperation(mtf.Operation):
  """Adds up what each entry of a table was read for: `add_picked`."""

  def __init__(self, grad: mtf.Tensor, positions: Positions,
               lead: list[mtf.Dimension]):
    """Declares the inputs, which are those of `add_picked`."""
    batch, last = positions.rows.shape.dims[:-2], grad.shape.dims[-2:]
    super().__init__([mtf.transpose(grad, batch + lead + last), *positions],
                     name="add_picked")
    self._batch = batch
    self._outputs = [mtf.Tensor(self, mtf.Shape(lead + last), grad.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl, total = lowering.mesh_impl(self), self.outputs[0]
    products = Products(mesh_impl)

    def add(grad, rows, columns, are_indices):
      shape = grad.shape.as_list()[len(self._batch):]
      grad = tf.reshape(grad, [-1, math.prod(shape[:-2]), *shape[-2:]])
      rows, columns = flat(rows, 2), flat(columns, 2)
      return tf.reshape(if_all(
          are_indices, lambda: tf.reduce_sum(grad, 0),
          lambda: products.add(grad, rows, columns)), shape)

    splits.require_whole(lowering, self, total.shape.dims[-2:], splits.NAME_A_LAYOUT)
    laid_out = mesh_impl.slicewise(add, *[lowering.tensors[x] for x in self.inputs])
    lowering.set_tensor_lowering(total, splits.add_parts(
        lowering, self, self._batch, laid_out, total))


class Products:
  """Products with one-hot rows on a core, with TensorFlow's tensors.

  XLA would join the two products, and compute the first one twice.
  """

  def __init__(self, mesh_impl: mtf.MeshImpl):
    """Finds out whether XLA compiles, which the class of the mesh says."""
    self._is_compiled = not isinstance(mesh_impl, PlacementMeshImpl)

  def read(self, table: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor,
           order: str = "bhij") -> tf.Tensor:
    """Reads a table: [batch, heads, length, memory_length].

    Args:
      table: [heads, position, memory_position]
      rows: [batch, length, position], one-hot.
      columns: [batch, memory_length, memory_position], one-hot.
      order: "bhji" for [batch, heads, memory_length, length].
    """
    some = self._wait(tf.einsum("hpq,bjq->bhpj", table, columns))
    return tf.einsum(f"bip,bhpj->{order}", rows, some)

  def add(self, grad: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor,
          order: str = "bhij") -> tf.Tensor:
    """The gradient of `read` for its table, from that of its result."""
    some = self._wait(tf.einsum(f"bip,{order}->bhpj", rows, grad))
    return tf.einsum("bhpj,bjq->hpq", some, columns)

  def _wait(self, x):
    return xla.optimization_barrier(x)[0] if self._is_compiled else x


def if_all(are_indices: tf.Tensor, by_index: Callable[[], Any],
           by_product: Callable[[], Any]) -> Any:
  """What the first function returns if all rows hold one example, else the second's."""
  return tf.cond(tf.reduce_all(tf.equal(are_indices, 1)), by_index, by_product)


def flat(x: tf.Tensor, last: int) -> tf.Tensor:
  """Joins all dimensions except the last ones into one."""
  shape = x.shape.as_list()
  return tf.reshape(x, [math.prod(shape[:-last]), *shape[-last:]])
