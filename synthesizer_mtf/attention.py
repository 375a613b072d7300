"""The attention layer: masks, dropout, values and decoding state.

The synthesizing functions make logits; everything else happens here, once. The
softmax is computed in an order that reads and writes the large tensors
[batch, heads, length, memory_length] as rarely as possible:

* exp(logits - maximum) is not divided by its sum. The values are weighted first
  and the division happens on [batch, heads, length, d_kv].
* The sum comes from the same matrix product, as one more column of the values.
* Inner products are concatenated: any mixture of V, D and FR is one matrix
  product, with the padding mask as one more channel.
* Logits which no part computes from the tokens have no batch: exp is computed
  once for all examples, and padding is masked in the values.
* T5's attention dropout is constant along `length`, so that it equals dropout on
  the values.
"""

import copy

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import inputs as attention_inputs
from synthesizer_mtf import positions
from synthesizer_mtf import visibility
from synthesizer_mtf import weighted_mean
from synthesizer_mtf.synthesizers import base
from synthesizer_mtf.synthesizers import mixture
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
class SyntheticAttention(transformer.TransformerLayer):
  """Multi-head self-attention with synthesized logits (arXiv:2005.00743).

  Variables: `v` [d_model, heads * d_kv] and `o` [heads * d_kv, d_model] as T5
  stores them, and those of the synthesizing functions.
  """

  def __init__(self,
               synthesizers=gin.REQUIRED,
               num_heads=None,
               key_value_size=None,
               dropout_rate=None,
               relative_attention_type=None,
               relative_attention_num_buckets=32,
               packed=None):
    """Declares the parameters.

    Args:
      synthesizers: a list of synthesizing functions, whose logits are mixed.
      num_heads: an integer; the gin macro `%num_heads` if None.
      key_value_size: an integer, d_kv; the gin macro `%d_kv` if None.
      dropout_rate: a float, T5's attention dropout; the gin macro
        `%dropout_rate` if None, or 0 without that macro.
      relative_attention_type: None, "bias" or "bias_shared" (one table for all
        layers of a stack, as in T5): T5's relative bias, added to the logits.
      relative_attention_num_buckets: an integer.
      packed: whether rows may hold several examples. None finds out (see
        `positions.is_packed`); True is always right; False promises that no row
        holds more than one example, and is faster where rows carry ids anyway.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self.mixture = mixture.Mixture(synthesizers)
    self.num_heads = _positive(
        "num_heads", _or_macro(num_heads, "num_heads"))
    self.key_value_size = _positive(
        "key_value_size", _or_macro(key_value_size, "d_kv"))
    self.dropout_rate = _rate(_or_macro(dropout_rate, "dropout_rate") or 0.0)
    if relative_attention_type not in (None, "bias", "bias_shared"):
      raise ValueError(
          "`SyntheticAttention.relative_attention_type` is "
          f"{relative_attention_type!r} but must be None, \"bias\" or "
          "\"bias_shared\"; change it.")
    self.relative_attention_type = relative_attention_type
    self.relative_attention_num_buckets = relative_attention_num_buckets
    self.packed = packed

  def call(self, context, x, losses=None):
    """Calls the layer.

    Args:
      context: a `transformer.Context`.
      x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
      losses: ignored.

    Returns:
      a tensor with the shape and dtype of x.

    Raises:
      ValueError: the sequences are longer than a part's `max_length`.
    """
    del losses
    packed = positions.is_packed(context) and self.packed is not False
    inputs = attention_inputs.AttentionInputs(
        context, x, self.num_heads, self.key_value_size, packed)
    logits = self.mixture.logits(inputs)
    if self.relative_attention_type:
      logits.append(base.Table(self._relative_bias(inputs)))
    values = self._dropout(inputs, inputs.remember(inputs.project("v")))
    mean = weighted_mean.weighted_mean(
        logits, values, visibility.visibility(inputs), inputs)
    return inputs.project_back(mean)

  def _dropout(self, inputs, values):
    """T5's attention dropout, on the values: one mask for all queries."""
    return mtf.dropout(
        values, inputs.context.train, rate=self.dropout_rate,
        noise_shape=values.shape - inputs.d_kv)

  def _relative_bias(self, inputs):
    """T5's relative bias by stock `SelfAttention`, without its masks.

    Distances between slots equal those between positions in a segment, so the
    bias has no batch in training. A shared bias is made once for each stack.

    Returns:
      <float>[heads, length, memory_length]; in incremental mode with `batch` and
      without `length`.
    """
    context = copy.copy(inputs.context)
    context.read_priority = context.sequence_id = context.subsequence_id = None
    if not inputs.incremental:
      context.position = mtf.range(context.mesh, inputs.length, tf.int32)
    key = "synthesizer_mtf/relative_bias", inputs.heads
    if self.relative_attention_type == "bias" or key not in context.cache:
      stock = transformer_layers.SelfAttention(
          num_heads=self.num_heads,
          relative_attention_type=self.relative_attention_type,
          relative_attention_num_buckets=self.relative_attention_num_buckets)
      context.cache[key] = stock.compute_bias(
          context, mtf.range(context.mesh, inputs.memory_length, tf.int32),
          inputs.x, [inputs.heads], None)
    return context.cache[key]


def _or_macro(value, macro):
  """`value`, or that of a gin macro such as T5's `d_kv`, or None."""
  if value is not None:
    return value
  try:
    return gin.get_configurable(f"{macro}/gin.macro")()
  except TypeError:  # The macro is not defined.
    return None


def _positive(name, value):
  if not isinstance(value, int) or value < 1:
    raise ValueError(
        f"`SyntheticAttention.{name}` is {value!r} but must be a whole number of "
        f"at least 1; change `SyntheticAttention.{name}`, or the macro of T5's "
        "model files that it is taken from.")
  return value


def _rate(value):
  if not 0.0 <= value < 1.0:
    raise ValueError(
        f"`SyntheticAttention.dropout_rate` is {value!r} but must be at least 0 "
        "and below 1; change it, or the macro `dropout_rate`.")
  return value
