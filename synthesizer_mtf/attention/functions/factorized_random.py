"""FR: random logits of low rank."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


@gin.configurable(module="synthesizer_mtf")
class FactorizedRandomLogits(base.RandomTables):
  """S(X) = R1 R2^T (arXiv:2005.00743, Factorized Random Synthesizer, eq. 7).

  Variables: `R1` [heads, length, rank], `R2` [heads, memory_length, rank].
  """

  variables = {"R1": base.Axes(heads=-3, positions=(-2,)),
               "R2": base.Axes(heads=-3, positions=(-2,))}

  def __init__(self, max_length: int = 512, rank: int = 8,
               tile_length: int | None = None, stddev: float = 1.0):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      rank: the paper's k, which is 8, or 32 in its encoding-only experiments.
      tile_length: learn factors of this many rows and repeat them to any length;
        `max_length` is then ignored.
      stddev: standard deviation of the initial logits, not of the factors.

    Raises:
      ValueError: a length or the rank is below 1, or `stddev` below 0.
    """
    super().__init__(max_length, tile_length, stddev)
    self.check_at_least(1, rank=rank)
    self.rank = rank

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    rank = mtf.Dimension("rank", self.rank)
    stddev = self.stddev ** 0.5 * self.rank ** -0.25

    def factor(name, dim_name):
      table = inputs.variable(
          name, [inputs.heads, mtf.Dimension(dim_name, self.table_length), rank],
          stddev)
      return self.fit(table, inputs, dim_name)

    return [logit_forms.InnerProduct(
        inputs.query_rows(factor("R1", "length")),
        inputs.memory_columns(factor("R2", "memory_length")))]
