"""T5's norm around the layers of a stack, trained fast.

A `LayerStack` calls a list of functions around each layer, its sublayers. This module
replaces the functions of Mesh TensorFlow that it knows, and nothing else: another norm,
another function of the same name, and another class of stacks stay as they are.
"""

from collections.abc import Callable
import copy

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import rms_norm
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
  found: list[Sublayer] = []
  for sublayer in sublayers:
    last = found[-1] if found else None
    if any(sublayer is norm for norm in _NORMS):
      sublayer = Norm(sublayer)
    elif sublayer is _CALL_LAYER and isinstance(last, Norm):
      found.pop()
      sublayer = NormAndCall(last)
    found.append(sublayer)
  return found


def stock(sublayers: list[Sublayer] | None) -> list[Sublayer]:
  """The functions that `for_list` got."""
  return [each for sublayer in sublayers or [] for each in (
      sublayer.stock if isinstance(sublayer, (Norm, NormAndCall)) else [sublayer])]


class Norm:
  """One of T5's RMS norms, with a fast gradient in training.

  Mesh TensorFlow's own function makes the variable and reads its parameters from gin.

  Attributes:
    stock: a list with the function that this one replaces.
  """

  def __init__(self, norm: Sublayer):
    self.stock = [norm]

  def __call__(self, x: mtf.Tensor, layer_stack: transformer.LayerStack,
               context: transformer.Context, masked: bool = False) -> mtf.Tensor:
    """Normalizes x: <float>[batch, length, d_model]; with `masked`, padding is 0."""
    y = self.stock[0](x, layer_stack, context)
    if not _can_be_fast(context, y):
      return (transformer.sublayer_mask_padding(y, layer_stack, context) if masked
              else y)
    product, scale = y.operation.inputs  # Mesh's norm computes (x * r) * scale.
    r = product.operation.inputs[1]
    if masked and isinstance(context.sequence_id, mtf.Tensor):
      r *= mtf.cast(mtf.not_equal(context.sequence_id, 0), r.dtype)
    return rms_norm.rms_norm(x, r, scale)


class NormAndCall:
  """A norm, T5's mask of padding, and the call of the layer.

  Attributes:
    stock: a list with the two functions that this one replaces.
  """

  def __init__(self, norm: Norm):
    self._norm = norm
    self.stock = [*norm.stock, _CALL_LAYER]

  def __call__(self, x: mtf.Tensor, layer_stack: transformer.LayerStack,
               context: transformer.Context) -> mtf.Tensor:
    """Calls the layer with the normalized x: <float>[batch, length, d_model]."""
    x = self._norm(x, layer_stack, context, masked=True)
    layer = context.current_layer
    with tf.variable_scope(type(layer).__name__):
      return layer.call(context, x)


def _can_be_fast(context, y):
  """Whether the fast gradient can replace that of a norm's result."""
  model = context.model
  return (context.train and not splits.is_on_tpu(context.mesh) and
          y.dtype == tf.float32 and not model.ensemble_dims and
          y.shape.dims[-1:] == [model.model_dim])
