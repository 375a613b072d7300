"""Fixed attention: the query's block, and the summary columns of other blocks."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
from synthesizer_mtf.attention.others import sequence_blocks
from synthesizer_mtf.attention.others import sparse
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
class SparseFixed(sparse.SparseAttention):
  """Fixed factorized attention (arXiv:1904.10509, section 4.3).

  With the stride l and c summary columns, query i attends to the keys j <= i with
    A(1): floor(j / l) = floor(i / l), and
    A(2): t <= j mod l < t + c, where t = l - c.
  (The source lets j mod l run to l, which it never reaches.) Our extension to encoders
  drops the condition j <= i. In a prefix language model the priorities restrict these
  sets. i and j are positions in a segment, also in packed rows.

  Queries attend to their block and to the gathered columns of all blocks. So time and
  memory grow as length * (stride + columns * length / stride). In packed rows a block
  can begin anywhere. The window then spans two blocks (three in encoders), and each row
  gathers its own columns.

  Variables: `q`, `k`, `v`, `o` as T5 stores them, and T5's
  `relative_attention_bias` on demand.
  """

  def __init__(self, num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None, stride: int = 128, columns: int = 32,
               distinct_columns: bool = True, pattern: str = "merged",
               relative_attention_type: str | None = None,
               relative_attention_num_buckets: int = 32, packed: bool | None = None):
    """Declares the parameters.

    Args:
      num_heads, key_value_size, dropout_rate, stride: as in `SparseAttention`.
      columns: c; 8, 16 or 32 in the source.
      distinct_columns: each head has its own c columns, as the source prefers. The
        first head has the last c of the block, the next head the c before these, and
        so on; when fewer than c are left, heads start again from the end. If False,
        all heads have the last c.
      pattern, relative_attention_type, relative_attention_num_buckets, packed: as in
        `SparseAttention`.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    super().__init__(num_heads, key_value_size, dropout_rate, stride, pattern,
                     relative_attention_type, relative_attention_num_buckets,
                     packed)
    checks.check_whole("SparseFixed.columns", columns)
    if columns > stride:
      raise checks.Error(
          f"`SparseFixed.columns` is {columns} but a block has only "
          f"`SparseFixed.stride` = {stride}; lower the one or raise the other.")
    checks.check_boolean("SparseFixed.distinct_columns", distinct_columns)
    self.columns = columns
    self.distinct_columns = distinct_columns
    self._sets += columns, distinct_columns

  def index(self, inputs: AttentionInputs) -> mtf.Tensor:
    return (_segment_span(inputs)[0] + 1 if inputs.is_packed
            else super().index(inputs))

  def far_alone(self, inputs: AttentionInputs) -> bool:
    # Many short segments of a packed row have more columns than `far` gathers.
    return not inputs.is_packed and super().far_alone(inputs)

  def first(self, queries: mtf.Tensor, keys: mtf.Tensor,
            inputs: AttentionInputs) -> mtf.Tensor:
    return mtf.equal(self._block(queries - 1), self._block(keys - 1))

  def second(self, queries: mtf.Tensor, keys: mtf.Tensor,
             inputs: AttentionInputs) -> mtf.Tensor:
    return inputs.once(lambda: self._is_summary(keys - 1, inputs))

  def near(self, inputs: AttentionInputs,
           blocks: sequence_blocks.SequenceBlocks) -> sparse.View:
    if inputs.is_packed:  # The blocks of segments begin anywhere.
      return super().near(inputs, blocks)
    return lambda tensor: blocks.windows(tensor, 0)

  def far(self, inputs: AttentionInputs,
          blocks: sequence_blocks.SequenceBlocks) -> sparse.View:
    index = inputs.once_per_stack(
        ("index", self._sets),
        lambda: (self._packed_index(inputs) if inputs.is_packed
                 else self._row_index(inputs, blocks)))

    def lay_out(tensor):
      end = mtf.pad(tensor, [0, 1], "memory_length")
      return tables.take(end, "memory_length", index)

    return lay_out

  def _block(self, position):
    return mtf.floordiv(position, self.stride)

  def _is_summary(self, position, inputs):
    column = mtf.mod(position, self.stride)
    start = self._first_column(inputs)
    return mtf.logical_and(mtf.greater_equal(column, start),
                           mtf.less(column, start + self.columns))

  def _first_column(self, inputs):
    """t, an integer; or <int32>[heads] if each head has its own."""
    if not self.distinct_columns:
      return self.stride - self.columns
    head = mtf.range(inputs.context.mesh, inputs.heads, tf.int32)
    if self.pattern == "alternate":
      head = mtf.floordiv(head, 2)
    turn = mtf.mod(head, self.stride // self.columns)
    return (turn + 1) * -self.columns + self.stride

  def _row_index(self, inputs, blocks):
    """The indices of all columns; without the last block's if only `near` reads them.

    Returns:
      <int32>[summary] or [heads, summary]; the length means "no index".
    """
    count = blocks.blocks.size
    if sparse.only_earlier(inputs) and not self.far_alone(inputs):
      count -= 1
    entry = mtf.range(
        inputs.context.mesh, mtf.Dimension("summary", count * self.columns),
        tf.int32)
    index = (mtf.floordiv(entry, self.columns) * self.stride +
            mtf.mod(entry, self.columns))
    start = self._first_column(inputs)
    if isinstance(start, mtf.Tensor):
      index = mtf.add(start, index, output_shape=start.shape + index.shape)
    else:
      index += start
    return mtf.minimum(index, inputs.length.size)

  def _packed_index(self, inputs):
    """The indices of the columns that other blocks of their segments attend to.

    A segment with one block has no such columns. So all segments together have at most
    one block of columns per `stride` indices, or two if queries also attend to later
    blocks.

    Returns:
      <int32>[batch, summary] or [batch, heads, summary]; the length means "no index".
    """
    position, last = _segment_span(inputs)
    block, last_block = self._block(position), self._block(last)
    length = inputs.length.size
    if sparse.only_earlier(inputs):
      seen = mtf.less(block, last_block)
      count = (length - 1) // self.stride
    else:
      seen = mtf.greater(last_block, 0)
      count = (2 * length - 1) // self.stride
    marked = mtf.logical_and(seen, self._is_summary(position, inputs))
    lead = [d for d in inputs.batch_dims + [inputs.heads]
            if d in marked.shape.dims]
    entries = mtf.Dimension("summary", min(count * self.columns, length))
    return sequence_blocks.index_of(
        mtf.transpose(marked, lead + [inputs.length]), inputs.length, entries)


def _segment_span(inputs):
  """The position of each token in its segment, and of the segment's last token.

  `segments.segment_position` compares all pairs of indices; this does not.

  Returns:
    two tensors <int32>[batch, length], for packed rows.
  """
  length = inputs.length

  def count():
    ids = segments.segment_id(inputs.context)
    index = mtf.range(inputs.context.mesh, length, tf.int32)

    def edges(offset, distance):
      """For each index, `distance` at the edge of its segment on one side."""
      edge = mtf.not_equal(ids, mtf.shift(ids, offset, length, wrap=False))
      return sequence_blocks.running(
          mtf.cast(edge, tf.int32) * distance, length, mtf.maximum,
          backwards=offset < 0)

    start = edges(1, index)
    end = length.size - 1 - edges(-1, length.size - 1 - index)
    return index - start, end - start

  return stack_cache.once_per_stack(inputs.context, "segment_span", count)
