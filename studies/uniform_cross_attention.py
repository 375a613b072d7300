"""Cross-attention that compares no queries and keys, of the study of abilities."""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.fast import cross_attention


@gin.configurable(module="studies")
class UniformEncDecAttention(cross_attention.EncDecAttention):
  """Gives each query the mean of the values of all tokens of the encoder.

  In the paper, cross-attention is always dot-product attention. In this layer all
  queries get the same mean, so the decoder cannot choose among the encoder's tokens.

  Variables: `v` [d_model, heads * d_kv] and `o` [heads * d_kv, d_model].
  """

  def __init__(self, num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None):
    """Declares the sizes.

    Args:
      num_heads: the number of heads; None for the macro `num_heads`.
      key_value_size: d_kv; None for the macro `d_kv`.
      dropout_rate: the dropout of the values; None for the macro `dropout_rate`.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    own = heads.Heads(
        "UniformEncDecAttention", num_heads, key_value_size, dropout_rate)
    super().__init__(transformer_layers.EncDecAttention(
        num_heads=own.num_heads, key_value_size=own.key_value_size,
        dropout_rate=own.dropout_rate, relative_attention_type=None))
    self.heads = own  # Messages about the layout name this class.

  def products(self, inputs: attention_inputs.AttentionInputs
               ) -> logit_forms.InnerProduct:
    mesh, one = inputs.context.mesh, mtf.Dimension("channels", 1)
    keys = [*inputs.batch_dims, inputs.heads, inputs.memory_length]
    return logit_forms.InnerProduct(*[
        mtf.zeros(mesh, [*dims, one], inputs.x.dtype)
        for dims in (inputs.query_dims, keys)])
