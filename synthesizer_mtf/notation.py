"""The paper's notation: names of synthesizing functions, mixtures and layers.

`synthesizers/names.py` has the names of synthesizing functions. This module has the
names of layers, which cannot be mixed.
"""

import inspect
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.layers import attention
from synthesizer_mtf.layers import convolutions
from synthesizer_mtf.layers import linformer
from synthesizer_mtf.layers import sparse_fixed
from synthesizer_mtf.layers import sparse_strided
from synthesizer_mtf.synthesizers import base
from synthesizer_mtf.synthesizers.names import SYNTHESIZING_FUNCTIONS

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
      with a parameter gets it. All notations accept max_length and tile_length. If
      nothing depends on the longest sequence, as in V, they are unused, and the log
      says so.

  Returns:
    a `transformer.TransformerLayer`.

  Raises:
    ValueError: the notation or a parameter is unknown, or a value is out of range.
  """
  if isinstance(notation, str) and notation in LAYERS:
    kwargs = _without_positions(notation, [LAYERS[notation]], kwargs)
    return _construct(notation, LAYERS[notation], [], kwargs)
  parts = [SYNTHESIZING_FUNCTIONS[name] for name in _names(notation)]
  kwargs = _without_positions(notation, parts, kwargs)
  taken = {name: value for name, value in kwargs.items()
           if any(name in _parameters(part) for part in parts)}
  functions = [_call(part, taken) for part in parts]
  rest = {k: v for k, v in kwargs.items() if k not in taken}
  return _construct(notation, attention.SyntheticAttention, parts, rest,
                    synthesizers=functions)


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
        f"{', '.join(LAYERS) + ', ' if LAYERS else ''}"
        f"{', '.join(SYNTHESIZING_FUNCTIONS)}, or join several of the last "
        f"{len(SYNTHESIZING_FUNCTIONS)} with \"+\", as in \"R+V\".")
  return names


def _without_positions(notation, classes, kwargs):
  """Removes max_length and tile_length if none of the classes has them."""
  known = set().union(*map(_parameters, classes))
  unused = [name for name in kwargs
            if name in _parameters(base.LengthTables) and name not in known]
  if unused:
    logging.info("%s has no %s, which is not used.", notation,
                 " and no ".join(unused))
  return {k: v for k, v in kwargs.items() if k not in unused}


def _construct(notation, layer_cls, parts, kwargs, **fixed):
  allowed = _parameters(layer_cls) - set(fixed)
  for name in kwargs:
    if name not in allowed:
      known = sorted(allowed.union(*map(_parameters, parts)))
      raise checks.Error(
          f"{notation!r} has no parameter `{name}`; it has {', '.join(known)}.")
  return layer_cls(**kwargs, **fixed)


def _call(cls, kwargs):
  return cls(**{k: v for k, v in kwargs.items() if k in _parameters(cls)})


def _parameters(cls):
  """The names of a constructor's parameters."""
  return {p.name for p in inspect.signature(cls).parameters.values()
          if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
