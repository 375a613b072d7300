"""LD: each token predicts the logits of the tokens near it."""

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions import dense
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


@gin.configurable(module="synthesizer_mtf")
class LocalDenseLogits(base.SynthesizingFunction):
  """S(X)[i, i + k] = (relu(X_i W1) WL)[k], for c offsets k (arXiv:2010.12155, LDSA).

  The Local Dense Synthesizer is D with a column for each offset around the query
  instead of one for each position, so sequences can have any length. Alone, a query
  attends to these c tokens only, in time that is linear in the length. In a mixture
  other tokens get no logit from it, and the other parts still reach them.

  In an encoder the offsets begin with -(c // 2), as in the paper. In a decoder, which
  the paper does not have, they end with the query, also over the inputs of a prefix
  language model. Departures from the paper: there are no biases, as T5 has none.

  Variables: `W1` [d_model, heads * d_kv]; `WL` [heads, d_kv, c].
  """

  variables = {"W1": base.Axes(), "WL": base.Axes(heads=-3, remedy=(
      "the offsets keep their meaning only if their number is the same: bind "
      "`LocalDenseLogits.width = {size}`"))}
  encodes_order = True

  def __init__(self, width: int = 31):
    """Declares the parameter.

    Args:
      width: c, the number of tokens that a query attends to.

    Raises:
      ValueError: `width` is below 1.
    """
    self.check_at_least(1, width=width)
    self.width = width

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    hidden = dense.hidden_layer(inputs)
    near = mtf.Dimension("near", self.width)
    weights = inputs.variable(
        "WL", [inputs.heads, inputs.d_kv, near], inputs.d_kv.size ** -0.5)
    values = mtf.einsum([hidden, weights], output_shape=inputs.query_dims + [near])
    return [logit_forms.Near(
        values, 1 - self.width if inputs.in_decoder else -(self.width // 2))]
