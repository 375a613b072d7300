"""T5's norm around the layers of a stack, with a gradient in few passes over its input.

The norm is scale * x * r, r = (mean(x^2) + epsilon)^-0.5 (arXiv:1910.07467, section 3).
Mesh TensorFlow computes the gradient of each of its operations. This module computes
the gradients of the whole norm at once. Let g be the gradient of the result, and `sum`
the sum over d_model:

  gradient of scale = sum over positions of r * g * x
  gradient of x = r * (scale * g - x * r^2 * sum(scale * g * x) / d_model)

So g * x is made once, and two products with a vector take its sums. T5 then multiplies
padding by 0. In all three formulas this is the same as r = 0.

A `LayerStack` calls a list of functions around each layer, its sublayers. This module
replaces the functions of Mesh TensorFlow that it knows, and nothing else: another norm,
another function of the same name, and another class of stacks stay as they are.
"""

from collections.abc import Callable
import copy
import dataclasses

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

Sublayer = Callable[..., mtf.Tensor]

_LISTS = ("_sublayers_initial", "_sublayers_per_layer", "_sublayers_final")
# gin hands over these objects for references without a scope. A reference with a scope
# is a new function each time, so its norm stays Mesh TensorFlow's.
_RMS_NORM = transformer.sublayer_rms_norm
_NORMS = (_RMS_NORM, transformer.sublayer_legacy_rms_norm,
          transformer.sublayer_legacy_final_rms_norm)
_CALL_LAYER = transformer.sublayer_call_layer


def for_stack(stack: transformer.TransformerLayer) -> transformer.TransformerLayer:
  """The stack itself, or one with fast norms.

  Args:
    stack: a stack; only Mesh's `LayerStack` and `ReversibleLayerStack` themselves are
      replaced, as a subclass may use its lists in another way.

  Returns:
    a stack of the same class.
  """
  known = (transformer.LayerStack, transformer.ReversibleLayerStack)
  if type(stack) not in known or transformer.sublayer_rms_norm is not _RMS_NORM:
    return stack
  fast = copy.copy(stack)
  vars(fast).update({name: for_list(getattr(stack, name)) for name in _LISTS})
  return fast


def for_list(sublayers: list[Sublayer] | None) -> list[Sublayer] | None:
  """The sublayers, with a fast one for each of T5's RMS norms.

  Args:
    sublayers: a list of functions of (x, layer_stack, context), or None.

  Returns:
    a new list, or None. A norm and the call of the layer after it become one function.
  """
  if sublayers is None:
    return None
  fast: list[Sublayer] = []
  for sublayer in sublayers:
    last = fast[-1] if fast else None
    if any(sublayer is norm for norm in _NORMS):
      sublayer = Norm(sublayer)
    elif sublayer is _CALL_LAYER and isinstance(last, Norm):
      fast.pop()
      sublayer = NormAndCall(last)
    fast.append(sublayer)
  return fast


def fast_norms(stack: transformer.TransformerLayer) -> list[Sublayer]:
  """The fast norms of a stack."""
  return [sublayer for name in _LISTS for sublayer in getattr(stack, name, None) or []
          if isinstance(sublayer, (Norm, NormAndCall))]


class Norm:
  """One of T5's RMS norms, with a fast gradient in training.

  Mesh TensorFlow's own function makes the variable, reads its parameters from gin, and
  computes r. Only the products x * r * scale become `rms_norm`.
  """

  def __init__(self, norm: Sublayer):
    self._norm = norm

  def __call__(self, x: mtf.Tensor, layer_stack: transformer.LayerStack,
               context: transformer.Context, masked: bool = False) -> mtf.Tensor:
    """Normalizes x: <float>[batch, length, d_model]; with `masked`, padding is 0."""
    if _can_be_fast(context, x):
      ids = context.sequence_id if masked else None
      return self._norm(InputOperation(x, ids).outputs[0], layer_stack, context)
    y = self._norm(x, layer_stack, context)
    return transformer.sublayer_mask_padding(y, layer_stack, context) if masked else y


class InputOperation(mtf.Operation):
  """Hands x over to a norm: x * r * scale becomes `rms_norm`."""

  def __init__(self, x: mtf.Tensor, ids: mtf.Tensor | None):
    """Declares the input.

    Args:
      x: <float32>[batch, length, d_model]
      ids: <int32>[batch, length], where 0 marks padding, whose norm is to be 0; or
        something else if no token is padding.
    """
    super().__init__([x], name="norm_input")
    self._outputs = [_Input(self, x, ids)]

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
    return grad_ys

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(self.outputs[0], lowering.tensors[self.inputs[0]])


class _Input(mtf.Tensor):
  """The output of an `InputOperation`, which has the value of x."""

  def __init__(self, operation: InputOperation, x: mtf.Tensor, ids: mtf.Tensor | None):
    super().__init__(operation, x.shape, x.dtype)
    self._x, self._ids = x, ids

  def __mul__(self, r: mtf.Tensor) -> "_Scaled":
    if isinstance(self._ids, mtf.Tensor):
      r *= mtf.cast(mtf.not_equal(self._ids, 0), r.dtype)
    return _Scaled(self._x, r)


@dataclasses.dataclass
class _Scaled:
  """x * r, which is computed once the scale is known."""
  x: mtf.Tensor
  r: mtf.Tensor

  def __mul__(self, scale: mtf.Tensor) -> mtf.Tensor:
    return rms_norm(self.x, self.r, scale)


class NormAndCall:
  """A norm, T5's mask of padding, and the call of the layer."""

  def __init__(self, norm: Norm):
    self._norm = norm

  def __call__(self, x: mtf.Tensor, layer_stack: transformer.LayerStack,
               context: transformer.Context) -> mtf.Tensor:
    """Calls the layer with the normalized x: <float>[batch, length, d_model]."""
    x = self._norm(x, layer_stack, context, masked=True)
    layer = context.current_layer
    with tf.variable_scope(type(layer).__name__):
      return layer.call(context, x)


def _can_be_fast(context, x):
  """Whether the fast gradient can replace that of a norm of x."""
  model = context.model
  return (context.train and not splits.is_compiled(context.mesh) and
          x.dtype == context.activation_dtype == tf.float32 and
          not model.ensemble_dims and x.shape.dims[-1:] == [model.model_dim])


def rms_norm(x: mtf.Tensor, r: mtf.Tensor, scale: mtf.Tensor) -> mtf.Tensor:
  """scale * x * r, with the gradient of the whole norm.

  The mesh may split all dimensions.

  Args:
    x: <float32>[batch, length, d_model]
    r: <float32>[batch, length], made of x as above, or 0; the gradient of x includes
      its own.
    scale: <float32>[d_model]

  Returns:
    a tensor with the shape and dtype of x.
  """
  return mtf.slicewise(
      lambda x, r, scale: x * tf.expand_dims(r, -1) * scale, [x, r, scale],
      splittable_dims=x.shape.dims, grad_function=_gradients, name="rms_norm")


def _gradients(operation, grad):
  grad_x, grad_scale = RmsNormGradOperation(grad, *operation.inputs).outputs
  return [grad_x, None, grad_scale]


class RmsNormGradOperation(mtf.Operation):
  """The gradients of `rms_norm` for x and for the scale."""

  def __init__(self, grad: mtf.Tensor, x: mtf.Tensor, r: mtf.Tensor,
               scale: mtf.Tensor):
    super().__init__([mtf.transpose(grad, x.shape), x, r, scale], name="rms_norm_grad")
    self._outputs = [mtf.Tensor(self, t.shape, t.dtype) for t in (x, scale)]

  def lower(self, lowering: mtf.Lowering) -> None:
    _, x, r, scale = self.inputs
    d_model, = scale.shape.dims
    mesh_impl = lowering.mesh_impl(self)
    tensors = [lowering.tensors[t] for t in self.inputs]
    sums, grad_scale = mesh_impl.slicewise(_sums, *tensors)
    sums = splits.add_parts(lowering, self, [d_model], sums, r)
    grad_scale = splits.add_parts(lowering, self, r.shape.dims, grad_scale, scale)
    grad_x = mesh_impl.slicewise(
        lambda sums, *slices: _grad_x(sums / d_model.size, *slices), sums, *tensors)
    for output, grad in zip(self.outputs, (grad_x, grad_scale)):
      lowering.set_tensor_lowering(output, grad)


def _sums(grad, x, r, scale):
  """The sums of scale * g * x over d_model, and those of r * g * x over positions."""
  d_model = scale.shape.as_list()[0]
  products = tf.reshape(grad * x, [-1, d_model])
  return (tf.reshape(tf.matmul(products, scale[:, None]), r.shape),
          tf.reshape(tf.matmul(tf.reshape(r, [1, -1]), products), [d_model]))


def _grad_x(mean, grad, x, r, scale):
  r = tf.expand_dims(r, -1)
  return (grad * scale - x * (tf.expand_dims(mean, -1) * r * r)) * r
