"""Entries of tables over positions by products with one-hot rows, for TPUs.

TPUs are fast at such products; reading a table entry by entry costs more than
everything else.
"""

import mesh_tensorflow as mtf


def pick(table: mtf.Tensor, rows: mtf.Tensor, columns: mtf.Tensor) -> mtf.Tensor:
  """Entries of each head's table at the given rows and columns, by two products.

  Args:
    table: <float>[heads, length, memory_length]
    rows: <float>[batch, length, position], one-hot; `position` has the size of the
      table's `length`.
    columns: <float>[batch, memory_length, memory_position], one-hot; `memory_position`
      has the size of the table's `memory_length`.

  Returns:
    <float>[batch, heads, length, memory_length] in the dtype of `rows`.
  """
  *batch, length, position = rows.shape.dims
  memory_length, memory_position = columns.shape.dims[-2:]
  table = mtf.replace_dimensions(
      mtf.cast(table, rows.dtype), table.shape.dims[-2:], [position, memory_position])
  heads = [d for d in table.shape.dims[:-2] if d not in batch]
  some = mtf.einsum([rows, table],
                    output_shape=batch + heads + [length, memory_position])
  return mtf.einsum([some, columns],
                    output_shape=batch + heads + [length, memory_length])


def add_picked(grad: mtf.Tensor, rows: mtf.Tensor, columns: mtf.Tensor,
               lead: list[mtf.Dimension]) -> mtf.Tensor:
  """The gradient of `pick` for its table; rows and columns are those of `pick`.

  Args:
    grad: <float>[batch, heads, length, memory_length]
    lead: the table's dimensions before `length`.

  Returns:
    <float>[heads, length, memory_length] in the dtype of `rows`.
  """
  length, position = rows.shape.dims[-2:]
  memory_length, memory_position = columns.shape.dims[-2:]
  some = mtf.einsum([mtf.cast(grad, rows.dtype), columns], output_shape=(
      grad.shape.dims[:-1] + [memory_position]))
  total = mtf.einsum([rows, some], output_shape=lead + [position, memory_position])
  return mtf.replace_dimensions(
      total, [position, memory_position], [length, memory_length])
