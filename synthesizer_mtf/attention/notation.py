"""The paper's notation: names of synthesizing functions, mixtures and layers.

`functions/names.py` has the names of synthesizing functions. This module has the names
of layers, which cannot be mixed.
"""

import inspect
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import layer as attention
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions.names import SYNTHESIZING_FUNCTIONS
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


def attention_layer(
    notation: str, **kwargs: Any) -> transformer.TransformerLayer:
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


def _names(notation):
  names = notation.split("+") if isinstance(notation, str) else [notation]
  names = [n.strip() if isinstance(n, str) else n for n in names]
  unknown = [n for n in names
             if not isinstance(n, str) or n not in SYNTHESIZING_FUNCTIONS]
  if unknown and isinstance(unknown[0], str) and unknown[0] in LAYERS:
    raise checks.Error(
        f"`synthesizer_stack.attention` names {notation!r}, but {unknown[0]!r} is "
        "a whole layer, which does not mix with others; name it alone, or mix "
        f"some of {', '.join(SYNTHESIZING_FUNCTIONS)}.")
  if unknown:
    raise checks.Error(
        f"`synthesizer_stack.attention` names {notation!r}, but "
        f"{unknown[0]!r} is not an attention; use one of "
        f"{', '.join([*LAYERS, *SYNTHESIZING_FUNCTIONS])}, or join several of the last "
        f"{len(SYNTHESIZING_FUNCTIONS)} with \"+\", as in \"R+V\".")
  return names


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
