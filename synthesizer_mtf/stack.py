"""The choice of an attention for each block of a T5 stack, by gin."""

import gin
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import checks
from synthesizer_mtf import notation
from synthesizer_mtf.layers import convolutions
from synthesizer_mtf.layers import cross_attention

_STACK_BINDING = "transformer.make_layer_stack.layer_stack_cls"


@gin.configurable(module="synthesizer_mtf")
def synthesizer_stack(
    layers: list[transformer.TransformerLayer],
    attention: str | type | list[str | type] | None = None,
    layer_stack_cls: type = transformer.LayerStack,
    fast_cross_attention: bool = True) -> transformer.LayerStack:
  """Replaces the self-attention of each block and makes the layer stack.

  T5's `make_layer_stack` calls this in the place of `LayerStack`, so that a gin
  file of T5 keeps its blocks, their other layers and their names, and only
  `SelfAttention` is replaced. Cross-attention stays what it is, as in the paper;
  it is only computed faster (see `cross_attention.py`).

  Args:
    layers: a list of `transformer.TransformerLayer`, of all blocks.
    attention: a notation such as "R+V", or a layer class; or a list of these
      with one entry for each block. None leaves the layers as they are.
    layer_stack_cls: a class, e.g. LayerStack or ReversibleLayerStack.
    fast_cross_attention: False leaves Mesh TensorFlow's `EncDecAttention`.

  Returns:
    an instance of `layer_stack_cls`.

  Raises:
    ValueError: the notation is unknown, the list is of the wrong length, or a
      parameter is out of range.
  """
  checks.check_boolean(
      "synthesizer_stack.fast_cross_attention", fast_cross_attention)
  if attention is None:
    return layer_stack_cls(layers)
  layers = list(layers)
  places = [i for i, layer in enumerate(layers) if _is_self_attention(layer)]
  choices = _per_block(attention, len(places))
  for block, (place, choice) in enumerate(zip(places, choices)):
    layer = _make(choice)
    if isinstance(layer, convolutions.Convolution):
      layer.choose_block(block, len(places))
    layer.set_name(layers[place].name)
    layers[place] = layer
  if fast_cross_attention:
    layers = [cross_attention.faster(layer) for layer in layers]
  return layer_stack_cls(layers)


def _is_self_attention(layer):
  return (isinstance(layer, transformer_layers.SelfAttention) and
          not isinstance(layer, transformer_layers.EncDecAttention))


def _per_block(attention, num_blocks):
  name = "/".join(filter(None, [gin.current_scope_str(),
                                "synthesizer_stack.attention"]))
  if not num_blocks:
    raise ValueError(
        f"`{name}` is {attention!r} but the stack has no SelfAttention to "
        "replace; name it in `make_layer_stack.layers`.")
  if not isinstance(attention, (list, tuple)):
    return [attention] * num_blocks
  if len(attention) != num_blocks:
    raise ValueError(
        f"`{name}` has {len(attention)} entries, {attention!r}, but the stack "
        f"has {num_blocks} blocks; give one entry for each block, or one "
        "notation for all.")
  return attention


def _make(choice):
  if callable(choice):
    layer = choice()
    if not isinstance(layer, transformer.TransformerLayer):
      raise ValueError(
          f"`synthesizer_stack.attention` is {choice!r}, which is not an "
          "attention layer; name a notation such as \"R+V\", or a layer such as "
          "@SyntheticAttention.")
    return layer
  return notation.attention_layer(choice)


@gin.config.register_finalize_hook
def bind_stack(config: dict) -> dict | None:
  """Makes T5's `make_layer_stack` use `synthesizer_stack` where it is bound.

  Args:
    config: gin's parsed configuration.

  Returns:
    a dict of bindings to add.

  Raises:
    ValueError: another layer stack class is bound, so that the choice of an
      attention would be dropped.
  """
  chosen = any(selector.endswith("synthesizer_stack") and "attention" in bound
               for (_, selector), bound in config.items())
  if not chosen:
    return None
  for (scope, selector), bound in config.items():
    if selector.endswith("transformer.make_layer_stack"):
      other = bound.get("layer_stack_cls")
      if other is not None and "synthesizer_stack" not in repr(other):
        raise ValueError(
            f"`{scope + '/' if scope else ''}make_layer_stack.layer_stack_cls` "
            f"is {other!r}, so that `synthesizer_stack.attention` would not be "
            f"used; bind `synthesizer_stack.layer_stack_cls = {other!r}` instead.")
  return {_STACK_BINDING: gin.config.ConfigurableReference(
      "synthesizer_mtf.synthesizer_stack", evaluate=False)}
