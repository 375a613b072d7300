"""V: the dot product of the Transformer, as a synthesizing function."""

import gin
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


@gin.configurable(module="synthesizer_mtf")
class DotProductLogits(base.SynthesizingFunction):
  """S(X) = F_Q(X) F_K(X)^T (arXiv:2005.00743, section 3.2).

  As in T5, the initializer of `q` includes 1/sqrt(d_kv), and logits are not scaled.

  Variables: `q` and `k`, [d_model, heads * d_kv].
  """

  variables = {"q": base.Axes(), "k": base.Axes()}

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    return [logit_forms.InnerProduct(
        inputs.project_query(), inputs.project_memory("k"))]

