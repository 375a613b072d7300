"""The attention layer: masks, dropout, values and decoding state.

The synthesizing functions make logits; everything else happens here, once. How
the mean of the values is computed fast is in `weighted_mean.py`. T5's attention
dropout is constant along `length`, so that it equals dropout on the values, and no
large tensor is masked for it.
"""

import copy

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import checks
from synthesizer_mtf import inputs as attention_inputs
from synthesizer_mtf import positions
from synthesizer_mtf import visibility
from synthesizer_mtf import weighted_mean
from synthesizer_mtf import weighted_sum
from synthesizer_mtf.synthesizers import base
from synthesizer_mtf.synthesizers import fixed_patterns
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
               packed=None,
               softmax=True):
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
      softmax: False makes the mixed logits themselves the weights, and those of
        hidden keys 0. R is then the token mixing of an MLP-Mixer (section 2);
        its `stddev` should be near max_length^-0.5 to keep the scale.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self.mixture = mixture.Mixture(synthesizers)
    self.sizes = HeadSizes(
        "SyntheticAttention", num_heads, key_value_size, dropout_rate)
    checks.check_relative_bias("SyntheticAttention", relative_attention_type,
                               relative_attention_num_buckets)
    checks.check_boolean("SyntheticAttention.softmax", softmax)
    checks.check_boolean("SyntheticAttention.packed", packed, or_none=True)
    self.relative_attention_type = relative_attention_type
    self.relative_attention_num_buckets = relative_attention_num_buckets
    self.packed = packed
    self.softmax = softmax

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
    self.sizes.check_layout(context.model)
    self._warn_if_blind_to_order(context)
    inputs = attention_inputs.AttentionInputs(
        context, x, self.sizes.num_heads, self.sizes.key_value_size,
        positions.is_packed(context, self.packed))
    logits = self.mixture.logits(inputs)
    if self.relative_attention_type:
      logits.append(base.Table(self._relative_bias(inputs)))
    values = self.sizes.dropout(
        inputs.remember(inputs.project("v")), inputs)
    combine = (weighted_mean.weighted_mean if self.softmax
               else weighted_sum.weighted_sum)
    return inputs.project_back(combine(
        logits, values, visibility.visibility(inputs), inputs))

  def _warn_if_blind_to_order(self, context):
    """Says so, once per stack, where nothing tells the order of the tokens."""
    if (self.relative_attention_type or context.model.positional_embedding or
        context.model.autoregressive or any(
            isinstance(s, (base.LengthTables, fixed_patterns.FixedPatterns))
            for s in self.mixture.synthesizers)):
      return
    positions.once_per_stack(context, "warning of order", lambda: (
        tf.logging.warning(
            "The encoder has no positional embedding and its dot-product "
            "attention no relative bias, so that it cannot tell the order of the "
            "tokens; bind `SyntheticAttention.relative_attention_type = "
            "\"bias_shared\"`, as T5's model files do for `SelfAttention`.")))

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
    def make():
      stock = transformer_layers.SelfAttention(
          num_heads=inputs.heads.size,
          relative_attention_type=self.relative_attention_type,
          relative_attention_num_buckets=self.relative_attention_num_buckets)
      return stock.compute_bias(
          context, mtf.range(context.mesh, inputs.memory_length, tf.int32),
          inputs.x, [inputs.heads], None)

    if self.relative_attention_type == "bias":
      return make()
    return positions.once_per_stack(
        inputs.context, ("relative_bias", inputs.heads), make)


class HeadSizes:
  """The parameters which all attention layers take from T5's macros.

  Attributes:
    num_heads: an integer.
    key_value_size: an integer, d_kv.
    dropout_rate: a float.
  """

  def __init__(self, layer, num_heads, key_value_size, dropout_rate):
    """Takes what is None from the macros `num_heads`, `d_kv`, `dropout_rate`.

    Args:
      layer: the gin name of the layer, for messages.
      num_heads: an integer or None.
      key_value_size: an integer or None.
      dropout_rate: a float or None; 0 if there is no macro either.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    self._layer = layer
    self.num_heads = check_positive(
        f"{layer}.num_heads", or_macro(num_heads, "num_heads"))
    self.key_value_size = check_positive(
        f"{layer}.key_value_size", or_macro(key_value_size, "d_kv"))
    self.dropout_rate = or_macro(dropout_rate, "dropout_rate") or 0.0
    if not isinstance(self.dropout_rate, (int, float)) or not (
        0 <= self.dropout_rate < 1):
      raise ValueError(
          f"`{layer}.dropout_rate` is {self.dropout_rate!r} but must be a number "
          "of at least 0 and below 1; change it, or the macro `dropout_rate`.")

  def check_layout(self, model):
    """Raises a ValueError if the layout splits heads that do not divide.

    Args:
      model: a `transformer.Unitransformer`, which knows mesh and layout in T5.
    """
    if model.layout is None or model.mesh_shape is None:
      return
    mesh_shape = mtf.convert_to_shape(model.mesh_shape)
    axis = mtf.convert_to_layout_rules(
        model.layout).tensor_dimension_to_mesh_axis(
            mtf.Dimension("heads", self.num_heads), mesh_shape)
    if axis is not None and self.num_heads % mesh_shape.dims[axis].size:
      mesh_dim = mesh_shape.dims[axis]
      raise ValueError(
          f"`{self._layer}.num_heads` is {self.num_heads} but "
          f"`utils.run.layout_rules` splits heads over the {mesh_dim.size} parts "
          f"of the mesh dimension {mesh_dim.name!r}; make num_heads a multiple "
          f"of {mesh_dim.size}, or change `utils.run.mesh_shape`.")

  def dropout(self, values, inputs):
    """T5's attention dropout, on the values: one mask for all queries."""
    return mtf.dropout(values, inputs.context.train, rate=self.dropout_rate,
                       noise_shape=values.shape - inputs.d_kv)


def check_positive(name, value):
  """Returns `value`, or raises a ValueError that names the gin parameter."""
  if not checks.is_whole(value):
    raise ValueError(
        f"`{name}` is {value!r} but must be a whole number of at least 1; change "
        f"`{name}`, or the macro of T5's model files that it is taken from.")
  return value


def or_macro(value, macro):
  """`value`, or that of a gin macro such as T5's `d_kv`, or None."""
  if value is not None:
    return value
  try:
    return gin.get_configurable(f"{macro}/gin.macro")()
  except TypeError:  # The macro is not defined.
    return None
