"""The cases of `AttentionInputs`, and the one function that chooses among them.

`AttentionInputs` itself handles unpacked rows. The subclasses differ in the positions
of queries and keys, and so in how they read tables. An operation that needs other code
for a case registers it for that class with `functools.singledispatch`.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import decoding_state
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.fast import examples
import tensorflow.compat.v1 as tf


def for_call(context: transformer.Context, x: mtf.Tensor, num_heads: int,
             key_value_size: int, packed: bool | None = False,
             memory: mtf.Tensor | None = None,
             per_example: bool = False) -> attention_inputs.AttentionInputs:
  """The inputs of a layer's call, in the class of its case.

  Args:
    context: a `transformer.Context`.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    num_heads: an integer.
    key_value_size: an integer, d_kv.
    packed: whether rows may hold several examples; None detects it (see
      `segments.is_packed`).
    memory: as in `AttentionInputs`.
    per_example: whether `attend` alone reads the keys and values of the layer, so that
      it may compute each segment separately, and read the caches of beams by ancestors.

  Returns:
    an `AttentionInputs`.
  """
  case: type[attention_inputs.AttentionInputs]
  on_tpu = splits.is_on_tpu(context.mesh)
  if isinstance(context, decoding_state.StepContext):
    case = DecodingStepInPlace
    if context.ancestors is not None and (per_example or memory is not None):
      case = DecodingStepOfBeams
  elif isinstance(context, decoding_state.FirstPartOfBeams) and per_example:
    case = FirstPartOfBeams
  elif context.mode == "incremental":
    case = DecodingStep
  elif not segments.is_packed(context, packed):
    case = RowsOnTpu if on_tpu else attention_inputs.AttentionInputs
  elif on_tpu:
    case = PackedRowsOnTpu
  elif per_example and examples.can_be_per_example(context):
    case = PackedExamples
  else:
    case = PackedRows
  return case(context, x, num_heads, key_value_size, memory)


class RowsOnTpu(attention_inputs.AttentionInputs):
  """Rows on TPUs, where attention writes the exponentials once."""


class _Packed(attention_inputs.AttentionInputs):
  """Rows that may hold several examples."""

  @property
  def query_position(self) -> mtf.Tensor:
    return segments.segment_position(self.context)

  def segment_length(self) -> mtf.Tensor:
    return segments.segment_length(self.context)


class PackedRows(_Packed):
  """Packed rows: positions differ from row to row."""

  @property
  def memory_position(self) -> mtf.Tensor:
    return mtf.rename_dimension(
        self.query_position, self.length.name, self.memory_length.name)

  def seen_by_id(self, queries: mtf.Tensor,
                 keys: mtf.Tensor) -> attention_inputs.KeysAndPairs:
    return None, mtf.equal(queries, keys)

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "length", self.query_position)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "memory_length", self.memory_position)

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    if self.context.model.ensemble_dims:
      return super().rows_and_columns(table)
    return tables.gather_table(table, self.query_position, self.memory_position)


class PackedRowsOnTpu(RowsOnTpu, PackedRows):
  """Packed rows on TPUs, where matrix products read tables over positions.

  On TPUs, reading a table entry by entry costs more than everything else. Attention
  reads the tables as late as possible.
  """

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return tables.pick(table, *self.one_hot_positions())

  def one_hot_positions(self) -> list[mtf.Tensor]:
    """The positions of queries and keys as one-hot rows, for `tables.pick`.

    Returns:
      two tensors <float>[batch, length, position] and <float>[batch, memory_length,
      memory_position], 1 at the position of each token and 0 elsewhere; made once per
      stack.
    """
    def make():
      return [
          mtf.one_hot(position, mtf.Dimension(name, dim.size), dtype=self.x.dtype)
          for position, name, dim in (
              (self.query_position, "position", self.length),
              (self.memory_position, "memory_position", self.memory_length))]

    return self.once_per_stack("one_hot_positions", make)


class PackedExamples(_Packed):
  """Packed rows whose segments are computed separately (see `examples.py`).

  Logits belong to segments instead of rows. Logits without `batch` cover all positions
  of a segment. Logits with `batch` belong to tokens; their keys are the positions of
  the token's segment.
  """

  def seen_by_id(self, queries: mtf.Tensor,
                 keys: mtf.Tensor) -> attention_inputs.KeysAndPairs:
    return None, None

  def own_order(self) -> list[mtf.Tensor]:
    read, write = self.context.read_priority, self.context.write_priority
    return [read, write] if read is not None and self.has_batch(read) else []


class DecodingStep(attention_inputs.AttentionInputs):
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
    tensor = _where(here, tensor, old)
    self.context.record_new_states([tensor])
    return tensor

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    table = tables.cut(table, "length", self.memory_length.size)
    return tables.gather_rows(table, self.context.position)


class DecodingStepInPlace(DecodingStep):
  """A `DecodingStep` of our own loops, which writes to their caches in place."""

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    old, = self.context.get_states(1)
    tensor = decoding_state.write(
        old, tensor, self.context.position, self.memory_length)
    self.context.record_new_states([tensor])
    return tensor


class FirstPartOfBeams(attention_inputs.AttentionInputs):
  """Beams before the first step."""

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    tensor = self.as_keys(tensor)
    *dims, beam = self.batch_dims
    self.context.record_new_states([decoding_state.to_memory_beam(mtf.transpose(
        tensor, dims + [self.heads, beam] + tensor.shape.dims[-2:]), beam)])
    return tensor


class DecodingStepOfBeams(DecodingStepInPlace):
  """One token of each beam.

  The keys and values of an example are <float>[batch, heads, memory_beam,
  memory_length, d_kv]. A beam attends to the keys of its `ancestors`.
  """

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    return super().remember(decoding_state.to_memory_beam(tensor, self.batch_dims[-1]))

  def ancestors(self) -> mtf.Tensor:
    """<float32>[batch, beam, memory_beam, memory_length]: the tokens of a beam.

    It is 1 for the tokens that a beam continues, and 0 for all others. It is made
    once per stack.
    """
    def make():
      ancestors, beam = self.context.ancestors, self.batch_dims[-1]
      memory_beam = decoding_state.to_memory_beam(
          mtf.range(ancestors.mesh, beam, tf.int32), beam)
      *dims, memory_length = ancestors.shape.dims
      return mtf.to_float(mtf.equal(
          ancestors, memory_beam,
          output_shape=dims + memory_beam.shape.dims + [memory_length]))

    return self.once_per_stack("ancestors", make)


def _gather(table, name, position):
  """Gathers entries along the dimension `name` at each row's positions."""
  every = mtf.rename_dimension(table, name, "table_length")
  return mtf.gather(
      every, position, every.shape.get_dim_by_name("table_length"))


def _where(condition, new, old):
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
