"""T: a learned logit for each distance between query and key."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


@gin.configurable(module="synthesizer_mtf")
class ToeplitzLogits(base.RandomTables):
  """S(X)[i, j] = T[j - i], learned: a convolution over all offsets.

  It is the Random Synthesizer (arXiv:2005.00743, eq. 4) with tied weights along each
  diagonal of R. The paper does not contain it.

  Variables: `T` [heads, distance], for keys `distance` before the query. If queries
  attend to later keys, also `T_after` [heads, distance], for keys `distance` + 1 after
  the query.
  """

  variables = {"T": base.Axes(heads=-2, positions=(-1,)),
               "T_after": base.Axes(heads=-2, positions=(-1,), after="T")}

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    self.check_length(inputs)
    length = inputs.memory_length.size
    before = self._distances("T", self.table_length, length, inputs)
    after = mtf.zeros(before.mesh, before.shape, before.dtype)  # Masked.
    learned = self.tile_length or self.max_length - 1
    if inputs.sees_later and learned:
      after = self._distances("T_after", learned, length - 1, inputs)
    return [logit_forms.ByOffset(before, after)]

  def _distances(self, name, learned, needed, inputs):
    """<float>[heads, distance]: a variable, repeated if it is too short."""
    table = inputs.variable(
        name, [inputs.heads, mtf.Dimension("distance", learned)], self.stddev)
    return (table if learned >= needed
            else tables.tile(table, "distance", needed))
