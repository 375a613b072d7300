"""The kinds of calls: rows, packed rows and a decoding step; and which a call is.

`for_call` chooses the class. `fast/cases.py` attaches further classes, which compute
the same in fewer operations.
"""

from collections.abc import Callable

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf


class PackedInputs(AttentionInputs):
  """Rows that may hold several examples."""

  is_packed = True

  @property
  def query_position(self) -> mtf.Tensor:
    return segments.segment_position(self.context)

  def segment_length(self) -> mtf.Tensor:
    return segments.segment_length(self.context)


class PackedRows(PackedInputs):
  """Packed rows: positions differ from row to row, and a query sees its segment."""

  @property
  def memory_position(self) -> mtf.Tensor:
    return mtf.rename_dimension(
        self.query_position, self.length.name, self.memory_length.name)

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> masks.AttentionMask:
    return masks.AttentionMask(pairs=mtf.equal(queries, keys))

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "length", self.query_position)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "memory_length", self.memory_position)

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    if self.context.model.ensemble_dims:
      return super().rows_and_columns(table)
    return tables.gather_table(table, self.query_position, self.memory_position)

  def products(self, repeated: mtf.Tensor, tiled: mtf.Tensor) -> mtf.Tensor:
    # Making all products before gathering columns would cost more.
    a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
    column = mtf.mod(self.memory_position, a.size * b.size)
    shape = self.logit_dims()
    repeated = mtf.gather(repeated, mtf.floordiv(column, b.size), a, shape)
    tiled = mtf.gather(tiled, mtf.mod(column, b.size), b, shape)
    return mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32)


class PackedRowsByIndex(AttentionInputs):
  """Packed rows whose tables count the tokens of the row, as those of one example.

  Only the mask knows the examples.
  """

  is_packed = True

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> masks.AttentionMask:
    return masks.AttentionMask(pairs=mtf.equal(queries, keys))


class DecodingStep(AttentionInputs):
  """One token of each row; the decoding state holds the earlier tokens."""

  @property
  def batch_dims(self) -> list[mtf.Dimension]:
    return self.x.shape.dims[:-1]

  @property
  def length_dims(self) -> list[mtf.Dimension]:
    return []

  @property
  def query_index(self) -> mtf.Tensor:
    return self.context.position

  def project_memory(self, name: str) -> mtf.Tensor:
    if self.memory is not None:
      return self.context.get_constant_state()
    return super().project_memory(name)

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    old, = self.context.get_states(1)
    here = mtf.equal(self.memory_index, self.context.position)
    tensor = tables.where(here, tensor, old)
    self.context.record_new_states([tensor])
    return tensor

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    rows = self.once(lambda: tables.cut(table, "length", self.memory_length.size))
    return tables.gather_rows(rows, self.context.position)

  def near(self, values: mtf.Tensor, first: int) -> mtf.Tensor:
    return tables.take_near(mtf.cast(values, tf.float32), first, self.offset)

  def by_offset(self, before: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
    del after  # Masked.
    # Positions of finished sequences keep growing until all have finished.
    last = before.shape.dims[-1].size - 1
    index = mtf.minimum(mtf.maximum(-self.offset, 0), last)
    return tables.take_by_distance(mtf.cast(before, tf.float32), index, self.batch_dims)


def _gather(table, name, position):
  """Gathers entries along the dimension `name` at each row's positions."""
  every = mtf.rename_dimension(table, name, "table_length")
  return mtf.gather(
      every, position, every.shape.get_dim_by_name("table_length"))


# A function of `context`, `packed` (whether rows hold several segments), `has_memory`
# (whether keys come from another tensor), `attend_alone` and `by_index` (see
# `for_call`), which returns the class of a call.
Choose = Callable[[transformer.Context, bool, bool, bool, bool], type]


def plain(context: transformer.Context, packed: bool, has_memory: bool,
          attend_alone: bool, by_index: bool) -> type:
  """Chooses among the classes of `attention/`."""
  del has_memory, attend_alone
  if context.mode == "incremental":
    return DecodingStep
  if not packed:
    return AttentionInputs
  return PackedRowsByIndex if by_index else PackedRows


_choose: Choose = plain


def attach(choose: Choose) -> None:
  """Lets `choose` choose the class of each call, in place of `plain`."""
  global _choose
  _choose = choose


def for_call(context: transformer.Context, x: mtf.Tensor, num_heads: int,
             key_value_size: int, packed: bool | None = False,
             memory: mtf.Tensor | None = None,
             attend_alone: bool = False, by_index: bool = False) -> AttentionInputs:
  """The inputs of a layer's call, in the class of its case.

  Args:
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    num_heads: the size of `heads`.
    key_value_size: the size of `d_kv`.
    packed: whether rows may hold several examples; None detects it (see
      `segments.is_packed`).
    memory: as in `AttentionInputs`.
    attend_alone: whether nothing but `attend.attend` reads the layer's keys and values,
      so that a kernel may lay them out in its own way.
    by_index: whether tables count the tokens of a row, whichever example is there.
  """
  is_packed = context.mode != "incremental" and segments.is_packed(context, packed)
  case = _choose(context, is_packed, memory is not None, attend_alone, by_index)
  return case(context, x, num_heads, key_value_size, memory)
