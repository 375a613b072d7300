"""R and Fix: logits that do not depend on tokens."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


class _Table(base.RandomTables):
  """S(X) = R, with an entry for each pair of positions."""

  variables = {"R": base.Axes(heads=-3, positions=(-2, -1))}
  trainable = True

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    size = self.table_length
    table = inputs.variable(
        "R", [inputs.heads, mtf.Dimension("length", size),
              mtf.Dimension("memory_length", size)],
        self.stddev, trainable=self.trainable)
    return [logit_forms.ByPosition(
        self.fit(table, inputs, "length", "memory_length"))]


@gin.configurable(module="synthesizer_mtf")
class RandomLogits(_Table):
  """S(X) = R, learned (arXiv:2005.00743, Random Synthesizer, eq. 4).

  The paper does not say how R is initialized. The authors' code uses Glorot's rule. For
  this shape, Glorot's standard deviation is about 0.003, so attention is almost
  uniform. Here the standard deviation is a parameter.

  Variables: `R` [heads, length, memory_length].
  """


@gin.configurable(module="synthesizer_mtf")
class FixedRandomLogits(_Table):
  """S(X) = R, never trained (arXiv:2005.00743, "Fixed").

  R is saved with the checkpoint but is not a parameter of the model.

  Variables: `R` [heads, length, memory_length], not trainable.
  """

  trainable = False
