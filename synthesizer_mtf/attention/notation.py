"""The paper's notation: names of synthesizing functions, mixtures and layers.

`functions/__init__.py` has the names of synthesizing functions. This module reads a
notation, has the names of layers, which cannot be mixed, and registers functions of a
user's own.
"""

import inspect
import re
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.attention import layer as attention
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions import SYNTHESIZING_FUNCTIONS
from synthesizer_mtf.attention.others import convolutions
from synthesizer_mtf.attention.others import linformer
from synthesizer_mtf.attention.others import sparse_fixed
from synthesizer_mtf.attention.others import sparse_strided

# Whole layers, which cannot be mixed.
LAYERS = {
    "LightConv": convolutions.LightConv,
    "DyConv": convolutions.DyConv,
    "Linformer": linformer.Linformer,
    "SparseFixed": sparse_fixed.SparseFixed,
    "SparseStrided": sparse_strided.SparseStrided,
}

# Other rows of `benchmark --rows` and of `plan_pod --attention`.
_ROWS = frozenset(["Mixer", "SelfAttention", "floor", "all"])
# The variables of the layer around the functions, which are in the same scope.
_LAYER_VARIABLES = frozenset(["v", "o", "alpha", "relative_attention_bias"])


def attention_layer(notation: str, **kwargs: Any) -> transformer.TransformerLayer:
  """Makes the attention layer that a notation names.

  Args:
    notation: "R", "FR+D+V", ...: names of `SYNTHESIZING_FUNCTIONS` joined by
      "+", or one name of `LAYERS`.
    **kwargs: parameters of the layer, such as num_heads, key_value_size and
      dropout_rate, and of the synthesizing functions, such as rank. Each function
      gets the parameters that it has. All notations accept max_length and
      tile_length. If nothing depends on the longest sequence, as in V, they are
      unused, and the log says so.

  Returns:
    a `transformer.TransformerLayer`.

  Raises:
    ValueError: the notation or a parameter is unknown, or a value is out of range.
  """
  if isinstance(notation, str) and notation in LAYERS:
    _check_known(notation, [LAYERS[notation]], kwargs)
    return _call(LAYERS[notation], kwargs)
  parts = [SYNTHESIZING_FUNCTIONS[name] for name in _names(notation)]
  _check_known(notation, [attention.SyntheticAttention, *parts], kwargs)
  return _call(attention.SyntheticAttention, kwargs,
               synthesizers=[_call(part, kwargs) for part in parts])


def check_choice(parameter: str, value: Any) -> None:
  """Raises a ValueError unless `synthesizer_stack.attention` can have a value.

  Args:
    parameter: the name of the parameter, for the message.
    value: a notation, a class, or gin's reference to one; or a list of these, with one
      for each block.
  """
  entries = value if isinstance(value, (list, tuple)) else [value]
  if not entries:
    raise checks.Error(f"`{parameter}` has 0 entries, {value!r}; give one entry for "
                       "each block, or one notation for all, such as 'R+V'.")
  for entry in entries:
    is_class = callable(entry) or gin_internals.is_reference(entry)
    if not is_class and not (isinstance(entry, str) and entry in LAYERS):
      _names(entry, parameter)


def _names(notation, parameter="synthesizer_stack.attention"):
  names = notation.split("+") if isinstance(notation, str) else [notation]
  names = [n.strip() if isinstance(n, str) else n for n in names]
  unknown = [n for n in names
             if not isinstance(n, str) or n not in SYNTHESIZING_FUNCTIONS]
  if unknown and isinstance(unknown[0], str) and unknown[0] in LAYERS:
    raise checks.Error(
        f"`{parameter}` names {notation!r}, but {unknown[0]!r} is "
        "a whole layer, which does not mix with others; name it alone, or mix "
        f"some of {', '.join(SYNTHESIZING_FUNCTIONS)}.")
  if unknown:
    raise checks.Error(
        f"`{parameter}` names {notation!r}, but {unknown[0]!r} is not an attention; "
        f"{_own_class(unknown[0])}use one of "
        f"{', '.join([*LAYERS, *SYNTHESIZING_FUNCTIONS])}, or join several of the last "
        f"{len(SYNTHESIZING_FUNCTIONS)} with \"+\", as in \"R+V\"."
        f"{_suggestion(notation)}")
  return names


def _suggestion(notation):
  """Asks whether a notation in other letters, or without "+", is meant; or ""."""
  text = str(notation)
  layers = [name for name in LAYERS if name.lower() == text.lower()]
  parts = layers or _parts(text.lower())
  return f" Did you mean {'+'.join(parts)}?" if parts else checks.did_you_mean(
      text, [*LAYERS, *SYNTHESIZING_FUNCTIONS], near_only=True)


def _parts(text):
  """The names of functions that follow each other in a text in small letters."""
  for name in sorted(SYNTHESIZING_FUNCTIONS, key=len, reverse=True):
    if text.startswith(name.lower()):
      rest = text[len(name):].lstrip("+, ")
      parts = _parts(rest)
      if parts or not rest:
        return [name, *parts]
  return []


def _own_class(name):
  """What to do if T5's attention is meant, which is no notation; or ""."""
  if name is not None and str(name).rpartition(".")[2].lstrip("@") != "SelfAttention":
    return ""
  return ("for T5's own attention give None, or in gin the class @SelfAttention "
          "(mesh_tensorflow.transformer.transformer_layers.SelfAttention); else ")


def _check_known(notation, classes, kwargs):
  """Raises if no class has a parameter; only logs unused max_length and tile_length."""
  known = set().union(*map(_parameters, classes)) - {"synthesizers"}
  unknown = [name for name in kwargs if name not in known]
  unused = [name for name in unknown if name in _parameters(base.LengthTables)]
  if unused:
    logging.info("%s has no %s, and ignores it.", notation,
                 " and no ".join(unused))
  for name in unknown:
    if name not in unused:
      raise checks.Error(f"{notation!r} has no parameter `{name}`; it has "
                         f"{', '.join(sorted(known))}.")


def _call(cls, kwargs, **more):
  """Calls a class with the parameters that it has."""
  return cls(**{k: v for k, v in kwargs.items() if k in _parameters(cls)}, **more)


def _parameters(cls):
  """The names of a constructor's parameters."""
  return {p.name for p in inspect.signature(cls).parameters.values()
          if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def register(name: str, cls: type[base.SynthesizingFunction]) -> None:
  """Adds a synthesizing function of a user's own to the notation.

  Then `name` can stand wherever "R" or "V" can: in gin, mixtures, `attention_layer` and
  the tools. gin learns the class, too, unless it is a gin configurable already. If the
  same class is registered again, as when a notebook's cell runs twice, it replaces the
  old one.

  Args:
    name: letters, digits and underscores.
    cls: a subclass of `SynthesizingFunction`.

  Raises:
    ValueError: the name is taken, or the notation cannot read it; or the class is not
      a synthesizing function, or has a variable that means something else elsewhere.
  """
  _check_class(name, cls)
  _check_name(name, cls)
  _check_variables(name, cls)
  if not any(cls in (known.wrapped, known.wrapper)
             for _, known in gin_internals.registry().items()):
    _make_configurable(cls)
  SYNTHESIZING_FUNCTIONS[name] = cls


def _check_class(name, cls):
  if not (inspect.isclass(cls) and issubclass(cls, base.SynthesizingFunction)):
    raise checks.Error(
        f"`synthesizer_mtf.register` gets {cls!r} for the name {name!r}, which is not "
        "a class of synthesizing functions; derive one from "
        "`synthesizer_mtf.SynthesizingFunction`, and give the class itself.")
  if cls.logits is base.SynthesizingFunction.logits:
    raise checks.Error(
        f"`synthesizer_mtf.register` gets {cls.__name__} for the name {name!r}, which "
        "has no method `logits`; define it.")


def _check_name(name, cls):
  if not (isinstance(name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)):
    raise checks.Error(
        f"`synthesizer_mtf.register` gets the name {name!r}, which the notation cannot "
        "read; use letters, digits and underscores, and begin with a letter.")
  old = SYNTHESIZING_FUNCTIONS.get(name)
  if name in LAYERS or name in _ROWS or old and not _is_again(cls, old):
    owner = (f"{old.__module__}.{old.__qualname__}" if old
             else "a layer or a row of the tools")
    raise checks.Error(
        f"`synthesizer_mtf.register` gets the name {name!r}, which {owner} has; choose "
        f"another name for {cls.__name__}, beside "
        f"{', '.join(SYNTHESIZING_FUNCTIONS)}.")


def _is_again(cls, old):
  """Whether a class is another one, or a later definition of it."""
  return (cls.__module__, cls.__qualname__) == (old.__module__, old.__qualname__)


def _check_variables(name, cls):
  """Checks the meaning of variables, which a warm start knows by their names."""
  for variable, axes in cls.variables.items():
    others = [known.__name__ for known in SYNTHESIZING_FUNCTIONS.values()
              if not _is_again(cls, known) and variable in known.variables
              and known.variables[variable][:2] != axes[:2]]
    if variable in _LAYER_VARIABLES:
      others = ["the attention layer"]
    if others:
      raise checks.Error(
          f"`{cls.__name__}.variables`, registered as {name!r}, has {variable!r}, "
          f"which means something else in {others[0]}; give the variable another name.")


def _make_configurable(cls):
  """Makes gin know a class, also once gin is finalized, and in place of an old one."""
  with gin.unlock_config():
    try:
      gin.configurable(cls)
    except ValueError:  # gin knows an earlier definition.
      with gin.config.interactive_mode():
        gin.configurable(cls)
