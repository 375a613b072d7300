"""The cases of what a call of a layer sees, and the one place that chooses among them.

`AttentionInputs` itself is that of whole rows, each of one example. The others differ
from it in where queries and keys are, and so in how tables are read. An operation
that has to compute otherwise in one of them registers that for its class, by
`functools.singledispatch`.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.context import attention_inputs
from synthesizer_mtf.context import examples
from synthesizer_mtf.context import segments
from synthesizer_mtf.context import splits
from synthesizer_mtf.context import tables
import tensorflow.compat.v1 as tf


def of_call(context: transformer.Context, x: mtf.Tensor, num_heads: int,
            key_value_size: int, packed: bool = False,
            memory: mtf.Tensor | None = None,
            per_example: bool = False) -> attention_inputs.AttentionInputs:
  """What a call of a layer sees, as the class of its case.

  Args:
    context: a `transformer.Context`.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    num_heads: an integer.
    key_value_size: an integer, d_kv.
    packed: whether rows may hold several examples (see `segments.is_packed`).
    memory: as of `AttentionInputs`.
    per_example: whether the layer can compute with each example for itself.

  Returns:
    an `AttentionInputs`.
  """
  on_tpu = splits.is_on_tpu(context.mesh)
  if context.mode == "incremental":
    case = DecodingStep
  elif not packed:
    case = attention_inputs.AttentionInputs
  elif on_tpu:
    case = PackedRowsOnTpu
  elif per_example and examples.can_be_per_example(context):
    case = PackedExamples
  else:
    case = PackedRows
  return case(context, x, num_heads, key_value_size, memory, on_tpu)


class PackedRows(attention_inputs.AttentionInputs):
  """Rows that hold several examples: each row has positions of its own."""

  packed = True

  @property
  def query_position(self) -> mtf.Tensor:
    return segments.segment_position(self.context)

  @property
  def memory_position(self) -> mtf.Tensor:
    return mtf.rename_dimension(
        self.query_position, self.length.name, self.memory_length.name)

  def seen_by_id(self, ids: mtf.Tensor) -> attention_inputs.Seen:
    return None, mtf.equal(ids, self.of_keys(ids))

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "length", self.query_position)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "memory_length", self.memory_position)

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    if self.context.model.ensemble_dims:
      return super().rows_and_columns(table)
    return tables.gather_table(table, self.query_position, self.memory_position)


class PackedRowsOnTpu(PackedRows):
  """Packed rows on TPUs, where tables over positions are read late, by products.

  To read a table there one entry at a time costs more than all else.
  """

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return tables.pick(table, *self.one_hot_positions())

  def one_hot_positions(self) -> list[mtf.Tensor]:
    """The positions of queries and keys as one-hot rows, for `tables.pick`.

    Returns:
      two tensors <float>[batch, length, position] and <float>[batch, memory_length,
      memory_position], 1 at the position of each token and 0 elsewhere; made once in a
      stack.
    """
    def make():
      return [
          mtf.one_hot(position, mtf.Dimension(name, dim.size), dtype=self.x.dtype)
          for position, name, dim in (
              (self.query_position, "position", self.length),
              (self.memory_position, "memory_position", self.memory_length))]

    return self.once_per_stack("one_hot_positions", make)


class PackedExamples(attention_inputs.AttentionInputs):
  """Packed rows whose examples are computed each for itself (see `examples.py`).

  Logits are made for examples in the place of rows: without `batch` for all
  positions of an example, with `batch` for the tokens, with all positions of their
  examples as keys.
  """

  packed = True

  @property
  def query_position(self) -> mtf.Tensor:
    return segments.segment_position(self.context)

  def seen_by_id(self, ids: mtf.Tensor) -> attention_inputs.Seen:
    return None, None

  def own_order(self) -> list[mtf.Tensor]:
    read, write = self.context.read_priority, self.context.write_priority
    return [read, write] if read is not None and self.has_batch(read) else []


class DecodingStep(attention_inputs.AttentionInputs):
  """One token of each row, after those that the decoding state remembers."""

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
    tensor = _where(here, tensor, old)
    self.context.record_new_states([tensor])
    return tensor

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    table = tables.cut(table, "length", self.memory_length.size)
    return tables.gather_rows(table, self.context.position)


def _gather(table, name, position):
  """Entries of the dimension `name` at the positions of each row."""
  every = mtf.rename_dimension(table, name, "table_length")
  return mtf.gather(
      every, position, every.shape.get_dim_by_name("table_length"))


def _where(condition, new, old):
  """`new` where the condition holds and `old` elsewhere, in one pass.

  `mtf.where` multiplies and adds, which are four passes over `old`.

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

  def where(*slices):
    aligned = []
    for x, axes in zip(slices, missing):
      for axis in axes:
        x = tf.expand_dims(x, axis)
      aligned.append(x)
    return tf.where_v2(*aligned, slices[-1])

  return mtf.slicewise(where, [*picked, old], output_shape=dims,
                       output_dtype=old.dtype, splittable_dims=dims,
                       grad_function=0)
