"""The layers with dot products, and what takes the place of each."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import moments

KEEP = "V"


def choose(to: str, layers: Mapping[str, moments.Layer],
           only: Sequence[str] = ()) -> dict[str, str]:
  """The notation that takes the place of V in each layer.

  Args:
    to: a word of `attention_words`, with names of `fitting.names()`, or `KEEP`.
    layers: all layers of the model.
    only: the names of layers or stacks that may change, such as "encoder/0", "encoder"
      or "encoder/"; all if empty.

  Returns:
    a dict from the names of the layers that change.

  Raises:
    ValueError: a name is unknown, a list has not an entry for each block, or a layer
      that is to change has no dot products.
  """
  for name in attention_words.entries(to):
    if name not in (*fitting.names(), KEEP):
      raise checks.Error(
          f"--to names {name!r}, which cannot take the place of V; use some of "
          f"{', '.join(fitting.names())}, or {KEEP}, which keeps a layer as it is.")
  if all(layer.notation != "V" for layer in layers.values()):
    raise checks.Error(
        "the model has no layer with dot products alone, but "
        f"{', '.join(f'{n} is {layer.notation}' for n, layer in layers.items())}; "
        "name a model whose self-attention is V.")
  chosen: dict[str, str] = {}
  for word, members in _by_stack(to, layers):
    names = attention_words.entries(word)
    if word.strip().startswith("[") and len(names) != len(members):
      raise checks.Error(
          f"--to has {len(names)} entries in {word!r}, but the stack has the "
          f"{len(members)} blocks {', '.join(members)}; give one for each, or one for "
          "all.")
    chosen.update(zip(members, names if len(names) > 1 else names * len(members)))
  only = [name.rstrip("/") for name in only]
  _check_known(only, layers)
  chosen = {name: notation for name, notation in chosen.items()
            if notation != KEEP and (
                not only or name in only or layer_names.stack_of(name) in only)}
  for name in chosen:
    if layers[name].notation != "V":
      raise checks.Error(
          f"--to would replace {name}, which is {layers[name].notation}, not V; leave "
          "it out with --layers, or keep it with V in a list.")
  if not chosen:
    raise checks.Error("--to and --layers leave no layer to replace.")
  return chosen


def _by_stack(to, layers):
  """Yields the word for each stack, and the names of its layers in order."""
  stacks = layer_names.by_stack((name, name) for name in layers)
  words = to.split("/")
  if len(words) not in (1, len(stacks)):
    raise checks.Error(f"--to is {to!r}, but the model has the stacks "
                       f"{', '.join(stacks)}; give one word, or one for each.")
  yield from zip(words * len(stacks) if len(words) == 1 else words, stacks.values())


def _check_known(only, layers):
  known = {*layers, *map(layer_names.stack_of, layers)}
  for name in only:
    if name not in known:
      raise checks.Error(f"--layers names {name!r}, but the model has "
                         f"{', '.join(layers)}; choose among them, or a whole stack.")


def check_heads(heads: Sequence[int], layers: Mapping[str, moments.Layer],
                chosen: Mapping[str, str]) -> None:
  """Raises a ValueError if a layer that changes lacks one of these heads."""
  for name in chosen:
    for head in heads:
      if head >= layers[name].heads:
        raise checks.Error(f"--heads names {head}, but {name} has the heads 0 to "
                           f"{layers[name].heads - 1}; choose among them.")


def entries(layers: Mapping[str, moments.Layer],
            chosen: Mapping[str, str]) -> dict[str, list[Any]]:
  """What `synthesizer_stack.attention` becomes in each scope with a change.

  Args:
    layers: all layers of the model.
    chosen: the new notations, by the names of layers.

  Raises:
    ValueError: a layer is not in a block of its own.
  """
  raw = {scope: values["attention"]
         for (scope, selector), values in gin_internals.bindings().items()
         if selector == stack.SELECTOR and "attention" in values}
  lists: dict[str, list[Any]] = {}
  for name, notation in chosen.items():
    scope, block = layers[name].scope, name.rpartition("/")[2]
    if not block.isdigit():
      raise checks.Error(f"{name} is a second attention of its block, which no list of "
                         "attentions can name; only stacks with one attention in each "
                         "block can be calibrated.")
    if scope not in lists:
      members = [layer for layer in layers.values() if layer.scope == scope]
      _, now = gin_files.nearest(scope, raw)
      lists[scope] = (list(now) if isinstance(now, (list, tuple))
                      else [now] * len(members))
    lists[scope][int(block)] = notation
  return lists


def lengths(layers: Mapping[str, moments.Layer]) -> dict[str, int]:
  """The longest sequence of the stack of each scope."""
  return {layer.scope: layer.length for layer in layers.values()}


