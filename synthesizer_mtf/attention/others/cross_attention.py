"""T5's cross-attention, computed as the self-attention of this package.

It has the variables, the function and the dropout of stock `EncDecAttention`. Decoding
stores keys and values in the order of dimensions in which each step reads them.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs


class EncDecAttention(transformer.TransformerLayer):
  """Multi-head dot-product attention to the encoder's output (T5).

  Variables: `q`, `k`, `v`, `o` and `enc_dec_relative_attention_bias` as stock
  `EncDecAttention` stores them. Their scope is the name of the class, so this class has
  the same name.
  """

  def __init__(self, stock: transformer_layers.EncDecAttention):
    """Takes over the parameters of a stock `EncDecAttention`."""
    self.stock = stock
    self.heads = heads.Heads(
        "EncDecAttention", stock.num_heads, stock.key_value_size,
        stock.dropout_rate)

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer; the arguments and the result are as in `SyntheticAttention`."""
    del losses
    inputs = self.heads.inputs(context, x, memory=context.encoder_output)
    logits: list[logit_forms.Logits] = [self.products(inputs)]
    values = self.heads.dropout(inputs.project_memory("v"), inputs)
    bias = inputs.once(  # Includes the mask.
        lambda: transformer_layers.enc_dec_attention_bias(
            self.stock, context, [inputs.heads]))
    if bias is not None:
      logits.append(logit_forms.Table(bias))
    with intermediates.without_capture():
      return inputs.project_back(attend.attend(
          inputs, logits, values, attention_inputs.AttentionMask(None, None)))

  def products(self, inputs: attention_inputs.AttentionInputs
               ) -> logit_forms.InnerProduct:
    """The logits of queries and keys."""
    return logit_forms.InnerProduct(
        inputs.project_query(), inputs.project_memory("k"))
