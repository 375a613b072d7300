"""V: the dot product of the Transformer, as a synthesizing function."""

import gin
from synthesizer_mtf.synthesizers import base


@gin.configurable(module="synthesizer_mtf")
class DotProductLogits(base.SynthesizingFunction):
  """S(X) = F_Q(X) F_K(X)^T (arXiv:2005.00743, section 3.2).

  As in T5, 1/sqrt(d_kv) is part of the initializer of `q` and logits are not
  scaled.

  Variables: `q` and `k`, [d_model, heads * d_kv].
  """

  variable_names = ("q", "k")

  def logits(self, inputs):
    return [base.InnerProduct(
        inputs.project_query(), inputs.remember(inputs.project("k")))]

