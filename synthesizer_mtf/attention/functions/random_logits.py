"""R and Fix: logits that do not depend on tokens."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


@gin.configurable(module="synthesizer_mtf")
class RandomLogits(base.LengthTables):
  """S(X) = R, learned (arXiv:2005.00743, Random Synthesizer, eq. 4).

  The paper does not say how R is initialized. The authors' code uses Glorot's rule. For
  this shape, Glorot's standard deviation is about 0.003, so attention is almost
  uniform. Here the standard deviation is a parameter.

  Variables: `R` [heads, length, memory_length].
  """

  variables = {"R": base.Axes(heads=-3, positions=(-2, -1))}
  trainable = True

  def __init__(self, max_length: int = 512, tile_length: int | None = None,
               stddev: float = 1.0):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      tile_length: learn a table of this many rows and columns and repeat it to
        any length; `max_length` is then ignored.
      stddev: standard deviation of the initial logits.

    Raises:
      ValueError: a length is below 1, or `stddev` below 0.
    """
    super().__init__(max_length, tile_length)
    checks.check_not_negative(self.parameter("stddev"), stddev)
    self.stddev = stddev

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    size = self.table_length
    table = inputs.variable(
        "R", [inputs.heads, mtf.Dimension("length", size),
              mtf.Dimension("memory_length", size)],
        self.stddev, trainable=self.trainable)
    return [logit_forms.ByPosition(
        self.fit(table, inputs, "length", "memory_length"))]


@gin.configurable(module="synthesizer_mtf")
class FixedRandomLogits(RandomLogits):
  """S(X) = R, never trained (arXiv:2005.00743, "Fixed").

  R is saved with the checkpoint but is not a parameter of the model.

  Variables: `R` [heads, length, memory_length], not trainable.
  """

  trainable = False

  def __init__(self, max_length: int = 512, tile_length: int | None = None,
               stddev: float = 1.0):
    """See `RandomLogits`."""
    super().__init__(max_length, tile_length, stddev)
