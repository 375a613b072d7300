"""LightConv and DyConv: convolutions instead of attention.

Wu et al. 2019, "Pay less attention with lightweight and dynamic convolutions"
(arXiv:1901.10430): each token becomes a weighted mean of its neighbours. The weights
are learned for each distance (LightConv) or predicted from the token (DyConv).
"""

from collections.abc import Mapping
from typing import ClassVar

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import kinds
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.attention.others import local_sum
import tensorflow.compat.v1 as tf

_KERNELS = "per_head", "per_channel"


class Convolution(transformer.TransformerLayer):
  """Base class of both convolutions: everything except the kernel.

  The layer is a gated linear unit (GLU), X = (x v) * sigmoid(x gate), a convolution of
  X, and an output projection. The softmax over the kernel is in float32. In a decoder
  the convolution is causal, also over the inputs of a prefix language model. In an
  encoder it is centred; as in the authors' code, an even kernel reaches one token
  further to the right. A kernel may be longer than the sequence.

  Padding, other segments of a packed row, and tokens beyond the ends of a sequence
  count as zeros. As in the authors' code, the kernel is not normalized again.

  Variables: `v`, `gate` [d_model, heads * d_kv] and `o` [heads * d_kv,
  d_model]; `W` makes the kernel; `pointwise` [heads * d_kv, heads * d_kv]; with
  biases `v_bias`, `gate_bias`, `bias` (of the convolution), `pointwise_bias`
  and `o_bias`.

  Departures from the paper: biases are optional, as T5 has none; DropConnect is
  constant along `length`, like T5's attention dropout.
  """

  variables: ClassVar[Mapping[str, base.Axes]] = {}

  def __init__(self, num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None, kernel_size: int | list[int] = 9,
               kernels: str = "per_head", pointwise: bool = False,
               use_bias: bool = False, packed: bool | None = None):
    """Declares the parameters.

    Args:
      num_heads: the number of kernels; the gin macro `%num_heads` if None.
      key_value_size: the number of channels that share a kernel; the gin macro `%d_kv`
        if None, or d_model / num_heads without that macro.
      dropout_rate: the share of the normalized kernel's entries which are dropped in
        training (DropConnect); the gin macro `%dropout_rate` if None, or 0.
      kernel_size: one size, or a list with one for each block of the stack. The sizes
        in the Synthesizer paper's Table 4 imply 9; Wu et al. have
        [3, 7, 15, 31, 31, 31, 31] in the encoder.
      kernels: "per_head", or "per_channel" for one kernel for each of the
        num_heads * key_value_size channels, as Table 4's sizes imply.
      pointwise: whether a projection mixes the channels after the convolution, as
        Table 4's sizes imply.
      use_bias: whether projections, convolution and predicted kernels have biases.
      packed: as in `SyntheticAttention`.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    name = self._name_in_gin = type(self).__name__
    # Without the parameter and the macro, d_kv is d_model / num_heads, and only the
    # model knows d_model.
    self._divide_d_model = heads.or_macro(key_value_size, "d_kv") is None
    self.heads = heads.Heads(
        name, num_heads, 1 if self._divide_d_model else key_value_size, dropout_rate)
    if kernel_size in ([], ()):
      raise checks.Error(f"`{name}.kernel_size` is an empty list; give one number, or "
                         "one for each block.")
    for size in (kernel_size if isinstance(kernel_size, (list, tuple))
                 else [kernel_size]):
      checks.check_whole(f"{name}.kernel_size", size)
    if kernels not in _KERNELS:
      raise checks.Error(f"`{name}.kernels` is {kernels!r} but must be "
                         f"{' or '.join(map(repr, _KERNELS))}; change it.")
    checks.check_boolean(f"{name}.pointwise", pointwise)
    checks.check_boolean(f"{name}.use_bias", use_bias)
    checks.check_boolean(f"{name}.packed", packed, or_none=True)
    self.kernel_size = kernel_size
    self.kernels = kernels
    self.pointwise = pointwise
    self.use_bias = use_bias
    self.packed = packed

  def choose_block(self, block: int, num_blocks: int) -> None:
    """Takes the entry of a block, counted from 0, of a list of kernel sizes.

    Raises:
      ValueError: the list has another length.
    """
    sizes = self.kernel_size
    if not isinstance(sizes, (list, tuple)):
      return
    if len(sizes) != num_blocks:
      scope = gin.current_scope_str()
      raise checks.Error(
          f"`{scope + '/' if scope else ''}{self._name_in_gin}.kernel_size` "
          f"has {len(sizes)} entries, {sizes!r}, but the stack has "
          f"{num_blocks} blocks; give one entry for each block, or one number "
          "for all.")
    self.kernel_size = sizes[block]

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer; the arguments and the result are as in `SyntheticAttention`.

    Raises:
      ValueError: `kernel_size` is a list but the block is not known, heads do
        not divide d_model, or the layout cannot split heads or length.
    """
    del losses
    self._check_sizes(context.model)
    self._check_layout(context)
    inputs = self._inputs(context, x)
    values = self._gated_values(inputs)
    convolve = (self._convolve_step if context.mode == "incremental"
                else self._convolve_rows)
    mean = convolve(inputs, values)
    mean = self._add_bias("bias", mtf.replace_dimensions(
        mean, [inputs.heads, inputs.d_kv], inputs.combined), inputs)
    if self.pointwise:
      mean = self._project("pointwise", _gather(mean), inputs.combined, inputs)
    return self._project("o", mean, context.model.model_dim, inputs)

  def _check_sizes(self, model):
    name = self._name_in_gin
    if not isinstance(self.kernel_size, int):
      raise checks.Error(
          f"`{name}.kernel_size` is {self.kernel_size!r}, with one entry for "
          f"each block, but only `synthesizer_stack` hands {name} its block; "
          f"bind `synthesizer_stack.attention = \"{name}\"` in the place of a "
          "layer in `make_layer_stack.layers`, or give one number.")
    if self._divide_d_model and model.model_dim.size % self.heads.num_heads:
      raise checks.Error(
          f"`{name}.num_heads` is {self.heads.num_heads} but must divide the "
          f"{model.model_dim.size} channels of `d_model`; change it, or bind "
          f"`{name}.key_value_size`.")

  def _check_layout(self, context):
    model = context.model
    self.heads.check_layout(model)
    if not splits.is_whole(model, context.length_dim):
      raise checks.Error(
          "`utils.run.layout_rules` splits length over the mesh, but "
          f"{self._name_in_gin} needs the neighbours of each token; take "
          "`length` out of the rules.")

  def _inputs(self, context, x):
    """The `AttentionInputs`; with kernels per channel, each channel is a head."""
    d_kv = self.heads.key_value_size
    if self._divide_d_model:
      d_kv = context.model.model_dim.size // self.heads.num_heads
    num_heads = self.heads.num_heads
    if self.kernels == "per_channel":
      num_heads, d_kv = num_heads * d_kv, 1
    return kinds.for_call(context, x, num_heads, d_kv, self.packed)

  def _gated_values(self, inputs):
    """The gated linear unit: <float>[batch, length, heads, d_kv]."""
    values, gate = [self._project(name, inputs.x, inputs.combined, inputs)
                    for name in ("v", "gate")]
    return mtf.replace_dimensions(
        _without_padding(inputs, values * mtf.sigmoid(gate)), inputs.combined,
        [inputs.heads, inputs.d_kv])

  def _convolve_rows(self, inputs, values):
    """The convolution of whole sequences; records the decoding state.

    The values and the result are <float>[batch, length, heads, d_kv].
    """
    context, kernel = inputs.context, self._kernel_dim
    reach = kernel.size - 1
    first = -reach if context.model.autoregressive else -(reach // 2)
    if context.mode == "first_part":
      context.record_new_states([self._last(values, inputs)])
    return self._weighted_sum(
        values, first, _same_segment(inputs, kernel, first), inputs)

  @property
  def _kernel_dim(self):
    return mtf.Dimension("kernel", self.kernel_size)

  def _last(self, values, inputs):
    """<float>[batch, kernel, heads, d_kv]: the last tokens before decoding begins.

    They are padded with zeros.
    """
    kernel = self._kernel_dim
    indices = inputs.context.initial_position - kernel.size + mtf.range(
        values.mesh, kernel, tf.int32)
    return mtf.einsum(
        [values, mtf.one_hot(indices, inputs.length, dtype=values.dtype)],
        output_shape=inputs.batch_dims + [kernel] + values.shape.dims[-2:])

  def _convolve_step(self, inputs, values):
    """The convolution at one position; updates the decoding state.

    The values and the result are <float>[batch, heads, d_kv].
    """
    context, kernel = inputs.context, self._kernel_dim
    last, = context.get_states(1)
    newest = mtf.one_hot(mtf.constant(
        values.mesh, kernel.size - 1, dtype=tf.int32), kernel,
        dtype=values.dtype)
    last = mtf.shift(last, -1, kernel, wrap=False) + mtf.einsum(
        [values, newest], output_shape=last.shape)
    context.record_new_states([last])
    weights = mtf.cast(self._weights(values, inputs), values.dtype)
    return mtf.einsum([last, weights], output_shape=values.shape)

  def _weighted_sum(self, values, first, same, inputs):
    """The sum over the kernel; see `local_sum` for the arguments."""
    raise NotImplementedError

  def _weights(self, values, inputs):
    """<float32>[kernel, heads], with `batch` first if the kernel is predicted."""
    raise NotImplementedError

  def _dropout(self, kernel, inputs):
    """DropConnect on <float>[..., kernel, heads]."""
    return mtf.dropout(
        kernel, inputs.context.train, rate=self.heads.dropout_rate)

  def _project(self, name, x, new_dim, inputs):
    """x times a variable [last dimension of x, new_dim], and its bias."""
    old_dim = x.shape.dims[-1]
    weights = inputs.variable(name, [old_dim, new_dim], old_dim.size ** -0.5)
    projected = mtf.einsum(
        [x, weights], output_shape=x.shape.dims[:-1] + [new_dim])
    return self._add_bias(f"{name}_bias", projected, inputs)

  def _add_bias(self, name, x, inputs, num_dims=1):
    """Adds a bias with the last dimensions of x, initialized with zeros."""
    if not self.use_bias:
      return x
    return x + inputs.variable(name, x.shape.dims[-num_dims:], 0.0)


@gin.configurable(module="synthesizer_mtf")
class LightConv(Convolution):
  """A lightweight convolution (arXiv:1901.10430), LightConv.

  See `Convolution`. The kernel is softmax(W), with W [kernel, heads] initialized
  as in the authors' code (Glorot).
  """

  def _weighted_sum(self, values, first, same, inputs):
    kernel = self._dropout(self._weights(values, inputs), inputs)
    return local_sum.shared_kernel(
        values, mtf.cast(kernel, values.dtype), first, same)

  def _weights(self, values, inputs):
    kernel, heads = self._kernel_dim, inputs.heads
    logits = inputs.variable(
        "W", [kernel, heads], _glorot(kernel.size, kernel.size * heads.size))
    return inputs.once(
        lambda: mtf.softmax(mtf.cast(logits, tf.float32), reduced_dim=kernel))


@gin.configurable(module="synthesizer_mtf")
class DyConv(Convolution):
  """A dynamic convolution (arXiv:1901.10430), DynamicConv.

  See `Convolution`. The kernel of a token is softmax(X_i W), with X_i its gated
  linear unit and W [heads * d_kv, kernel, heads].
  """

  def _weighted_sum(self, values, first, same, inputs):
    noise = None
    if inputs.context.train and self.heads.dropout_rate:
      noise = self._dropout(mtf.ones(values.mesh, inputs.batch_dims + [
          self._kernel_dim, inputs.heads]), inputs)
    return local_sum.predicted_kernel(
        values, self._logits(values, inputs), first, noise, same)

  def _weights(self, values, inputs):
    return mtf.softmax(mtf.cast(self._logits(values, inputs), tf.float32),
                       reduced_dim=self._kernel_dim)

  def _logits(self, values, inputs):
    """<float>[batch, length, kernel, heads], without `length` in incremental mode."""
    tokens = _gather(mtf.replace_dimensions(
        values, [inputs.heads, inputs.d_kv], inputs.combined))
    channels = tokens.shape.dims[-1]
    new_dims = [self._kernel_dim, inputs.heads]
    weights = inputs.variable(
        "W", [channels] + new_dims,
        _glorot(channels.size, self.kernel_size * inputs.heads.size))
    logits = mtf.einsum(
        [tokens, weights], output_shape=tokens.shape.dims[:-1] + new_dims)
    return self._add_bias("W_bias", logits, inputs, num_dims=2)


def _without_padding(inputs, values):
  """The values <float>[batch, length, channels], 0 for padding."""
  ids = segments.segment_id(inputs.context)
  if ids is None or inputs.is_packed:  # `_same_segment` hides padding, too.
    return values
  return values * mtf.cast(mtf.not_equal(ids, 0), values.dtype)


def _same_segment(inputs, kernel, first):
  """The argument `same` of `local_sum`: None if rows hold one segment."""
  if not inputs.is_packed:
    return None
  context = inputs.context
  return stack_cache.once_per_stack(
      context, ("same_segment", kernel, first), lambda: mtf.broadcast(
          local_sum.same_segment(segments.segment_id(context), kernel, first),
          inputs.batch_dims + [inputs.length, kernel]))


def _gather(x):
  """Gathers the channels of all heads on each core."""
  return mtf.rename_dimension(x, x.shape.dims[-1].name, "channels")


def _glorot(inputs, outputs):
  """The standard deviation of Glorot's initializer."""
  return (2.0 / (inputs + outputs)) ** 0.5
