"""T5's cross-attention, computed as the self-attention of this package.

It has the variables, the function and the dropout of stock `EncDecAttention`. Decoding
stores keys and values in the order of dimensions in which each step reads them.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow import layers
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import masks

# Options of stock attention that change its variables or its function, with the values
# that this module supports.
_KNOWN_OPTIONS = {
    "num_memory_heads": (0, None), "shared_kv": (False,), "combine_dims": (True,),
    "keep_query_heads_dims": (False, None), "z_loss_coeff": (None,),
    "fold_scaling_into_initializer": (True,), "attention_kwargs": ({},),
}
# If it is another one, somebody has replaced the method.
_CALL = transformer_layers.EncDecAttention.call


def for_layer(layer: transformer.TransformerLayer) -> transformer.TransformerLayer:
  """The layer itself, or a fast one that replaces it.

  Returns:
    an `EncDecAttention` of this module for a stock one with supported options;
    `layer` for all others.
  """
  stock = transformer_layers.EncDecAttention
  is_stock = type(layer) is stock and stock.call is _CALL and "call" not in vars(layer)
  if not is_stock or not is_plain(layer) or layer.num_heads == 1 or (
      layers.unit_scaling_convention()):
    return layer
  fast = EncDecAttention(layer)
  fast.set_name(layer.name)
  return fast


def is_plain(layer: transformer_layers.SelfAttention) -> bool:
  """Whether stock attention has no option that changes variables or function."""
  return all(getattr(layer, name) in values
             for name, values in _KNOWN_OPTIONS.items())


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
          inputs, logits, values, masks.AttentionMask()))

  def products(self, inputs: attention_inputs.AttentionInputs
               ) -> logit_forms.InnerProduct:
    """The logits of queries and keys."""
    return logit_forms.InnerProduct(
        inputs.project_query(), inputs.project_memory("k"))
