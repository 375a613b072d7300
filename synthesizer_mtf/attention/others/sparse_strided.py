"""Strided attention: the nearest keys, and every l-th key."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
from synthesizer_mtf.attention.others import sequence_blocks
from synthesizer_mtf.attention.others import sparse


@gin.configurable(module="synthesizer_mtf")
class SparseStrided(sparse.SparseAttention):
  """Strided factorized attention (arXiv:1904.10509, section 4.3).

  With the stride l, query i attends to the keys j <= i with
    A(1): i - j <= l, and
    A(2): (i - j) mod l = 0.
  Our extension to encoders drops the condition j <= i: |i - j| <= l, and
  (i - j) mod l = 0 on both sides. In a prefix language model the priorities restrict
  these sets. As only distances count, packed rows need no positions.

  Queries of a block attend to a window of two blocks (three in encoders). Tokens with
  the same index in their blocks attend to each other. So time and memory grow as
  length * (stride + length / stride). The source wants a stride near the square root of
  the length.

  Variables: `q`, `k`, `v`, `o` as T5 stores them, and T5's
  `relative_attention_bias` on demand.
  """

  def first(self, queries: mtf.Tensor, keys: mtf.Tensor,
            inputs: AttentionInputs) -> mtf.Tensor:
    return mtf.less_equal(mtf.abs(queries - keys), self.stride)

  def second(self, queries: mtf.Tensor, keys: mtf.Tensor,
             inputs: AttentionInputs) -> mtf.Tensor:
    return mtf.equal(mtf.mod(queries - keys, self.stride), 0)

  def far(self, inputs: AttentionInputs,
          blocks: sequence_blocks.SequenceBlocks) -> sparse.View:
    return blocks.columns
