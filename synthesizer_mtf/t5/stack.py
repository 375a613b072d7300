"""The choice of an attention for each block of a T5 stack, by gin.

Once this package is imported, each call of T5's `make_layer_stack` looks for the
choice. So it does not matter how and when gin was filled. If gin is finalized, as in
T5's command, `bind_stack` also shows the choice in the configuration, and finds
mistakes before anything is built.
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import inspect
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import patches
from synthesizer_mtf.attention.others import convolutions
from synthesizer_mtf.t5 import replacement

_MAKE_LAYER_STACK = "mesh_tensorflow.transformer.transformer.make_layer_stack"
SELECTOR = "synthesizer_mtf.synthesizer_stack"
# A function from a built model to the model that takes its place.
Finish = Callable[[Any], Any]
_finishes: list[Finish] = []


@gin.configurable(module="synthesizer_mtf", denylist=["block"])
def synthesizer_stack(
    layers: list[transformer.TransformerLayer],
    attention: str | type | list[str | type] | None = None,
    layer_stack_cls: type = transformer.LayerStack,
    fast_cross_attention: bool = True,
    fast_feed_forward: bool = True,
    fast_norm: bool = True,
    block: list | None = None) -> transformer.LayerStack:
  """Replaces the self-attention of each block and makes the layer stack.

  T5's `make_layer_stack` calls this instead of `LayerStack`. So a gin file of T5 keeps
  its blocks, their other layers and their names, and only `SelfAttention` is replaced.
  As in the paper, cross-attention, the feed-forward layers and the norms stay the same.
  `fast/models.py` computes them faster once the model is built.

  Args:
    layers: the layers of all blocks.
    attention: a notation such as "R+V", or a layer class; or a list of these
      with one entry for each block. None leaves the layers as they are.
    layer_stack_cls: a class, e.g. LayerStack or ReversibleLayerStack.
    fast_cross_attention: False leaves Mesh TensorFlow's `EncDecAttention`.
    fast_feed_forward: False leaves Mesh TensorFlow's `DenseReluDense`.
    fast_norm: False leaves the gradient of T5's RMS norms to Mesh TensorFlow.
    block: what `make_layer_stack` made the layers of each block from, such as
      [({"num_heads": 6}, SelfAttention), DenseReluDense]. The arguments of a layer
      that is replaced go to the attention that takes its place. By default what gin
      binds to `make_layer_stack.layers`.

  Returns:
    an instance of `layer_stack_cls`.

  Raises:
    ValueError: the notation is unknown, the list has the wrong length, or a
      parameter is out of range.
  """
  fast = {"cross_attention": fast_cross_attention, "feed_forward": fast_feed_forward,
          "norm": fast_norm}
  for name, value in fast.items():
    checks.check_boolean(f"synthesizer_stack.fast_{name}", value)
  if attention is not None:
    layers = _replaced(list(layers), attention, block)
  stack = layer_stack_cls(layers)
  stack.synthesizer_fast = fast  # For `fast/models.py`.
  if attention is not None:
    stack.synthesizer_attention = attention  # For `_check_used`, as the scope is.
    stack.synthesizer_scope = gin.current_scope_str()
  return stack


def _replaced(layers, attention, block):
  """The layers with the chosen attention in the place of self-attention."""
  scope = gin.current_scope_str()
  name = _name(scope)
  indices = [i for i, layer in enumerate(layers)
             if replacement.is_self_attention(layer)]
  if not indices:
    stays = ", ".join(replacement.unknown(layers))
    raise checks.Error(
        f"`{name}` is {attention!r} but the stack has no SelfAttention to "
        "replace; name it in `make_layer_stack.layers`"
        f"{f' in the place of {stays}' if stays else ''}.")
  if block is None:
    block = gin.get_bindings(_MAKE_LAYER_STACK).get("layers")
  arguments = replacement.arguments(layers, block)
  choices = _per_block(name, attention, len(indices))
  replaced, old_layers = [], list(layers)
  for number, (index, choice) in enumerate(zip(indices, choices)):
    old = layers[index]
    new = layers[index] = replacement.make(choice, old, arguments[index], scope)
    if isinstance(new, convolutions.Convolution):
      new.choose_block(number, len(indices))
    new.set_name(old.name)
    replaced.append((old, choice, new))
  replacement.log(name, old_layers, replaced)
  return layers


def _per_block(name, attention, num_blocks):
  if not isinstance(attention, (list, tuple)):
    return [attention] * num_blocks
  if len(attention) != num_blocks:
    raise checks.Error(
        f"`{name}` has {len(attention)} entries, {attention!r}, but the stack "
        f"has {num_blocks} blocks; give one entry for each block, or one "
        "notation for all.")
  return attention


@gin.config.register_finalize_hook
def bind_stack(config: dict) -> dict | None:
  """Makes T5's `make_layer_stack` use `synthesizer_stack` if it is bound.

  Raises:
    ValueError: another layer stack class is bound, which would ignore the choice of
      an attention.
  """
  if not any(selector == SELECTOR and "attention" in values
             for (_, selector), values in config.items()):
    return None
  _check_no_other_stack(config)
  return {f"{_MAKE_LAYER_STACK}.layer_stack_cls": gin.config.ConfigurableReference(
      SELECTOR, evaluate=False)}


def _check_no_other_stack(config):
  for (scope, selector), values in config.items():
    other = values.get("layer_stack_cls") if selector == _MAKE_LAYER_STACK else None
    if gin_internals.is_reference(other):
      is_ours = other.configurable.selector == SELECTOR
    else:
      is_ours = other in (None, synthesizer_stack)
    if not is_ours:
      raise checks.Error(
          f"`{scope + '/' if scope else ''}make_layer_stack.layer_stack_cls` "
          f"is {other!r}, so that `synthesizer_stack.attention` would not be "
          f"used; bind `synthesizer_stack.layer_stack_cls = {other!r}` instead.")


def choices() -> dict[str, Any]:
  """The attentions bound in gin, by scope, such as "" or "encoder"."""
  return {scope: value for scope, value in bound().items() if value is not None}


def bound() -> dict[str, Any]:
  """As `choices`, with scopes in which gin binds None, for a stock attention."""
  return {scope: values["attention"]
          for (scope, selector), values in gin_internals.bindings().items()
          if selector == SELECTOR and "attention" in values}


def attach(finish: Finish) -> None:
  """Lets a function change each model that `build_model` builds."""
  if finish not in _finishes:
    _finishes.append(finish)


def apply() -> None:
  """Makes T5's `make_layer_stack` look for `synthesizer_stack.attention`.

  A second call changes nothing.
  """
  patches.wrap("make_layer_stack", transformer, _with_the_choice)


def _with_the_choice(make: Callable[..., Any]) -> Callable[..., Any]:
  """Makes the chosen stack; raises if gin binds another class of stacks."""
  @functools.wraps(make)
  def make_layer_stack(*args, **kwargs):
    if choices():
      _check_no_other_stack(gin_internals.bindings())
    here = gin.get_bindings(SELECTOR, resolve_references=False)
    given = inspect.signature(make).bind_partial(*args, **kwargs)
    cls = given.arguments.get("layer_stack_cls", synthesizer_stack)
    chosen = any(value is not None for value in here.values())
    if chosen and cls is synthesizer_stack:
      given.arguments["layer_stack_cls"] = functools.partial(
          synthesizer_stack, block=given.arguments.get("layers"))
    return make(*given.args, **given.kwargs)

  return make_layer_stack


def build_model(*args: Any, **kwargs: Any) -> Any:
  """Builds a `Unitransformer` or `Bitransformer`, and checks that the choice is used.

  Raises:
    ValueError: no stack of the model uses the attention that gin binds.
  """
  model = utils.build_model(*args, **kwargs)
  _check_used(choices(), [stack for stack in stacks(model)
                          if hasattr(stack, "synthesizer_attention")])
  for finish in _finishes:
    model = finish(model)
  return model


def stacks(model: Any) -> Iterator[transformer.LayerStack]:
  """All layer stacks of a model."""
  if hasattr(model, "layer_stack"):
    yield model.layer_stack
  for part in ("encoder", "decoder", "student", "teacher"):
    if hasattr(model, part):
      yield from stacks(getattr(model, part))


def _check_used(chosen, stacks):
  """Raises if no stack uses a bound attention; warns about each that none uses."""
  used = [stack.synthesizer_attention for stack in stacks]
  scopes = {gin_files.nearest(stack.synthesizer_scope, dict(zip(chosen, chosen)))[1]
            for stack in stacks}
  if chosen and not used:
    raise checks.Error(
        f"{_bindings(chosen)} is bound, but no stack of the model uses it: only a "
        "stack that T5's `make_layer_stack` makes in the binding's scope uses it; let "
        "this function make the stacks, correct the scope, or leave the binding out.")
  scoped = {scope: attention for scope, attention in chosen.items() if scope}
  if "" in chosen and chosen[""] not in used:
    logging.warning(
        "`%s = %r` is used by no stack: %s win, perhaps from an "
        "operative_config.gin; bind these as well.",
        _name(""), chosen[""], _bindings(scoped))
  for scope in [scope for scope in scoped if scope not in scopes]:
    logging.warning("`%s = %r` is used by no stack: the model has none in this scope, "
                    "only in %s.", _name(scope), chosen[scope],
                    ", ".join(repr(stack.synthesizer_scope) for stack in stacks))


def _bindings(chosen):
  return ", ".join(
      f"`{_name(scope)} = {attention!r}`" for scope, attention in chosen.items())


def _name(scope):
  return "/".join(filter(None, [scope, "synthesizer_stack.attention"]))
