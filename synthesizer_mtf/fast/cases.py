"""The cases of `AttentionInputs` that attention computes in fewer operations.

Each class has a kernel in `kernels.py`, or changes what its base class reads or keeps.
"""

from collections.abc import Callable
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import kinds
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.fast import one_hot_tables
from synthesizer_mtf.fast import packed_segments
from synthesizer_mtf.fast import switch
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
import tensorflow.compat.v1 as tf


def choose(context: transformer.Context, packed: bool, has_memory: bool,
           attend_alone: bool, by_index: bool) -> type:
  """The class of a call; see `kinds.Choose`."""
  if not switch.is_enabled():
    return kinds.plain(context, packed, has_memory, attend_alone, by_index)
  on_tpu, compiled = splits.is_on_tpu(context.mesh), splits.is_compiled(context.mesh)
  if isinstance(context, caches.StepContext):
    if context.ancestors is not None and (attend_alone or has_memory):
      return DecodingStepOfBeams
    return DecodingStepInPlace
  if isinstance(context, caches.FirstPartContext) and attend_alone:
    return FirstPartOfBeams
  if context.mode == "incremental":
    return StepOfMesh
  if not packed:
    return RowsOnTpu if on_tpu else RowsCompiled if compiled else Rows
  if by_index:
    return (RowsByIndexOnTpu if on_tpu else RowsByIndexCompiled if compiled else
            RowsByIndex)
  if compiled:
    return PackedRowsOnTpu
  if attend_alone and packed_segments.can_be_separate(context):
    return PackedSegments
  return MaskedRows


class Rows(attention_inputs.AttentionInputs):
  """Unpacked rows."""


class MaskedRows(kinds.PackedRows):
  """Packed rows: positions differ from row to row."""


class StepOfMesh(kinds.DecodingStep):
  """One token of each row, in Mesh TensorFlow's own loops."""


class RowsCompiled(Rows):
  """Rows that XLA computes on GPUs or CPUs, which adds masks while it reads logits."""


class RowsOnTpu(Rows):
  """Rows on TPUs, where attention writes the exponentials once."""


class RowsByIndex(kinds.PackedRowsByIndex):
  """Packed rows whose tables count the tokens of the row."""


class RowsByIndexCompiled(RowsByIndex, RowsCompiled):
  """The same, by XLA on GPUs or CPUs."""


class RowsByIndexOnTpu(RowsByIndex, RowsOnTpu):
  """The same on TPUs."""


class PackedRowsOnTpu(RowsOnTpu, MaskedRows):
  """Packed rows on TPUs, where matrix products read tables over positions.

  On TPUs, reading a table entry by entry costs more than everything else. Attention
  reads the tables as late as possible.
  """

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return one_hot_tables.pick(table, self.one_hot_positions())

  def read(self, term: logit_forms.Logits) -> logit_forms.Readable:
    if not isinstance(term, logit_forms.ByPosition):
      return super().read(term)
    size = self.memory_length.size
    return logit_forms.ByPosition(tables.cut(
        tables.cut(term.values, "length", size), "memory_length", size))

  def one_hot_positions(self) -> one_hot_tables.Positions:
    """Where each pair of tokens reads a table, made once per stack."""
    def make():
      rows, columns = (
          mtf.one_hot(position, mtf.Dimension(name, dim.size), dtype=self.x.dtype)
          for position, name, dim in (
              (self.query_position, "position", self.length),
              (self.memory_position, "memory_position", self.memory_length)))
      return one_hot_tables.Positions(rows, columns, self._are_indices())

    return self.once_per_stack("one_hot_positions", make)

  def _are_indices(self):
    """See `one_hot_tables.Positions`."""
    model = self.context.model
    if model.ensemble_dims or not all(
        splits.is_whole(model, d) for d in (self.length, self.memory_length)):
      return None
    index = mtf.range(self.context.mesh, self.length, tf.int32)
    are_indices = mtf.logical_or(
        mtf.equal(self.query_position, index),
        mtf.equal(segments.segment_id(self.context), 0))
    return mtf.reduce_min(mtf.cast(are_indices, tf.int32), reduced_dim=self.length)


class PackedSegments(kinds.PackedInputs):
  """Packed rows whose segments are computed separately (see `packed_segments.py`).

  Logits belong to segments instead of rows. Logits without `batch` cover all positions
  of a segment. Logits with `batch` belong to tokens; their keys are the positions of
  the token's segment.
  """

  def read(self, term: logit_forms.Logits) -> logit_forms.Readable:
    if not isinstance(term, logit_forms.Products):
      return super().read(term)
    return logit_forms.Products(*(mtf.cast(t, tf.float32) for t in term))

  def near(self, values: mtf.Tensor, first: int) -> mtf.Tensor:
    query, key = self.query_position, self.memory_position
    return tables.take_near(mtf.cast(values, tf.float32), first, mtf.sub(
        key, query, output_shape=query.shape + key.shape))

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> masks.AttentionMask:
    return masks.AttentionMask()

  def mask(self) -> masks.AttentionMask:
    return masks.AttentionMask() if self.own_order() else super().mask()

  def own_order(self) -> list[mtf.Tensor]:
    """The read and write priorities <int32>[batch, length] of rows with prefixes, in
    place of a mask; otherwise nothing."""
    read, write = self.context.read_priority, self.context.write_priority
    return [read, write] if read is not None and self.has_batch(read) else []


class DecodingStepInPlace(StepOfMesh):
  """A `StepOfMesh` of our own loops, which writes to their caches in place."""

  def once(self, make: Callable[[], Any]) -> Any:
    return loops.once(make)

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    old, = self.context.get_states(1)
    tensor = caches.write(
        old, tensor, self.context.position, self.memory_length)
    self.context.record_new_states([tensor])
    return tensor


class FirstPartOfBeams(Rows):
  """Beams before the first step."""

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    tensor = self.as_keys(tensor)
    *dims, beam = self.batch_dims
    self.context.record_new_states([caches.to_memory_beam(mtf.transpose(
        tensor, dims + [self.heads, beam] + tensor.shape.dims[-2:]), beam)])
    return tensor


class DecodingStepOfBeams(DecodingStepInPlace):
  """One token of each beam.

  The keys and values of an example are <float>[batch, heads, memory_beam,
  memory_length, d_kv]. A beam attends to the keys of its `ancestors`.
  """

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    return super().remember(caches.to_memory_beam(tensor, self.batch_dims[-1]))

  def ancestors(self) -> mtf.Tensor:
    """<float32>[batch, beam, memory_beam, memory_length]: the tokens of a beam.

    It is 1 for the tokens that a beam continues, and 0 for all others. It is made
    once per stack.
    """
    def make():
      ancestors, beam = self.context.ancestors, self.batch_dims[-1]
      memory_beam = caches.to_memory_beam(
          mtf.range(ancestors.mesh, beam, tf.int32), beam)
      *dims, memory_length = ancestors.shape.dims
      return mtf.to_float(mtf.equal(
          ancestors, memory_beam,
          output_shape=dims + memory_beam.shape.dims + [memory_length]))

    return self.once_per_stack("ancestors", make)
