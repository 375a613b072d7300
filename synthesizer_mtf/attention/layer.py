"""The attention layer: logits of a mixture, the weighted mean of the values, projected.

T5's attention dropout is constant along `length`, so it equals dropout on the values,
which needs no mask of a large tensor.
"""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import mixture
from synthesizer_mtf.attention import relative_position_bias
from synthesizer_mtf.attention.functions import base

_NO_ORDER = (
    "The encoder has no positional embedding and its dot-product attention no "
    "relative position bias, so that it cannot tell the order of the tokens; bind "
    "`SyntheticAttention.relative_attention_type = \"bias_shared\"`, as T5's model "
    "files do for `SelfAttention`.")


@gin.configurable(module="synthesizer_mtf")
class SyntheticAttention(transformer.TransformerLayer):
  """Multi-head self-attention with synthesized logits (arXiv:2005.00743).

  Variables: `v` [d_model, heads * d_kv] and `o` [heads * d_kv, d_model] as T5
  stores them, and those of the synthesizing functions.
  """

  def __init__(self, synthesizers: list[base.SynthesizingFunction] = gin.REQUIRED,
               num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None,
               relative_attention_type: str | None = None,
               relative_attention_num_buckets: int = 32, packed: bool | None = None,
               softmax: bool = True, positions: str = "example"):
    """Declares the parameters.

    Args:
      synthesizers: the functions whose logits are mixed.
      num_heads: the gin macro `%num_heads` if None.
      key_value_size: d_kv; the gin macro `%d_kv` if None.
      dropout_rate: T5's attention dropout; the gin macro `%dropout_rate` if None, or 0
        without that macro.
      relative_attention_type: None, "bias" or "bias_shared" (one table for all
        layers of a stack, as in T5): T5's relative position bias, added to the logits.
      relative_attention_num_buckets: the number of entries of a table for each head.
      packed: whether rows may hold several examples. None detects it (see
        `segments.is_packed`); True is always right; False promises that no row
        holds more than one example, and is faster if rows carry ids anyway.
      softmax: False uses the mixed logits themselves as weights, with 0 for masked
        keys. R is then the token mixing of an MLP-Mixer (section 2); its `stddev`
        should be near max_length^-0.5 to keep the scale.
      positions: what rows and columns of tables stand for where a row holds several
        examples: "example", positions in an example, as in decoding; or "row", indices
        in the row, whichever example is there, as in the authors' code. Where a row
        holds one example both are the same. "row" is faster on TPUs.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self.mixture = mixture.Mixture(synthesizers)
    self.heads = heads.Heads(
        "SyntheticAttention", num_heads, key_value_size, dropout_rate)
    self.relative_position_bias = relative_position_bias.RelativePositionBias(
        "SyntheticAttention", relative_attention_type,
        relative_attention_num_buckets)
    checks.check_boolean("SyntheticAttention.softmax", softmax)
    checks.check_boolean("SyntheticAttention.packed", packed, or_none=True)
    checks.require(
        positions in ("example", "row"), "SyntheticAttention.positions", positions,
        "be 'example' or 'row'", "change it")
    self.packed = packed
    self.softmax = softmax
    self.positions = positions

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer.

    Args:
      context: the context of the stack.
      x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
      losses: ignored.

    Returns:
      a tensor with the shape and dtype of x.

    Raises:
      ValueError: the sequences are longer than a part's `max_length`.
    """
    del losses
    if not self.mixture.encodes_order:
      self.relative_position_bias.warn_without_order(context, _NO_ORDER)
    inputs = self.heads.inputs(
        context, x, packed=self.packed, attend_alone=self.softmax,
        by_index=self.positions == "row")
    logits = [*self.mixture.logits(inputs),
              *self.relative_position_bias.logits(inputs)]
    values = self.heads.dropout(inputs.project_memory("v"), inputs)
    combine = attend.attend if self.softmax else attend.weighted_sum
    return inputs.project_back(combine(inputs, logits, values))
