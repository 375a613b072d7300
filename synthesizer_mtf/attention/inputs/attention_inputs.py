"""What a synthesizing function reads in one call of its layer.

Synthesizing functions never ask whether the model trains, evaluates or decodes. They
ask `AttentionInputs` for projections, positions, variables and table rows. Its base
classes have all but the tables. `kinds.py` has its classes for packed rows and for a
decoding step.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import diagonals
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import positions
from synthesizer_mtf.attention.inputs import projections
from synthesizer_mtf.attention.inputs import tables
import tensorflow.compat.v1 as tf


class AttentionInputs(positions.Positions, masks.Masks, projections.Projections):
  """The inputs of a call with one example in each row; the base of the other kinds.

  It reads tables over positions, and the forms of logits.
  """

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    """Rows of `table` at the queries' positions.

    Args:
      table: <float>[heads, length, ...] for all positions of the table.

    Returns:
      The rows, with `length` cut to the batch; with `batch` in `PackedRows`; with
      `batch` and without `length` in incremental mode.
    """
    return tables.cut(table, "length", self.length.size)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    """Columns of `table` at the keys' positions.

    Args:
      table: <float>[heads, ..., memory_length] for all positions of the table.

    Returns:
      The columns, with `memory_length` cut to the batch, and with `batch` in
      `PackedRows`.
    """
    return self.once(
        lambda: tables.cut(table, "memory_length", self.memory_length.size))

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    """Applies `query_rows` and `memory_columns`, in one pass if possible."""
    return self.query_rows(self.memory_columns(table))

  def read(self, term: logit_forms.Logits) -> logit_forms.Readable:
    """Converts logits to a form that the kernels of attention accept in this call.

    `attend` and `weighted_sum` read the logits of a layer, once.
    """
    match term:
      case logit_forms.Weighted():
        return self.read(term.term).scaled(term.weight)
      case logit_forms.ByPosition():
        return logit_forms.Table(self.rows_and_columns(term.values))
      case logit_forms.ByOffset():
        return logit_forms.Table(self.by_offset(*term))
      case logit_forms.Products():
        return logit_forms.Table(self.products(*term))
      case logit_forms.Near():
        return logit_forms.Table(self.near(*term))
      case logit_forms.PositionBias():
        return logit_forms.BiasTable(term.for_pairs())
    return term

  def by_offset(self, before: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
    """The logits of a `ByOffset`: <float32>[heads, length, memory_length]."""
    return diagonals.matrix(
        mtf.cast(before, tf.float32), mtf.cast(after, tf.float32),
        self.length, self.memory_length)

  def near(self, values: mtf.Tensor, first: int) -> mtf.Tensor:
    """The logits of a `Near`, and 0 for all other keys.

    Returns:
      <float32>[batch, heads, length, memory_length], without `length` in incremental
      mode.
    """
    return diagonals.band(mtf.cast(values, tf.float32), first, self.memory_length)

  def products(self, repeated: mtf.Tensor, tiled: mtf.Tensor) -> mtf.Tensor:
    """The logits of a `Products`: <float32>[batch, heads, length, memory_length]."""
    a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
    columns = mtf.replace_dimensions(
        mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32), [a, b],
        mtf.Dimension("memory_length", a.size * b.size))
    return tables.tile(columns, "memory_length", self.memory_length.size)
