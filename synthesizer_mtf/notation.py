"""The paper's notation: names of synthesizing functions, mixtures and layers.

This is the one place that knows the names. A new variant is one line here.
"""

import inspect

from synthesizer_mtf import attention
from synthesizer_mtf import convolutions
from synthesizer_mtf import linformer
from synthesizer_mtf import sparse_fixed
from synthesizer_mtf import sparse_strided
from synthesizer_mtf import synthesizers

SYNTHESIZING_FUNCTIONS = {
    "V": synthesizers.DotProductLogits,
    "R": synthesizers.RandomLogits,
    "Fix": synthesizers.FixedRandomLogits,
    "FR": synthesizers.FactorizedRandomLogits,
    "D": synthesizers.DenseLogits,
    "FD": synthesizers.FactorizedDenseLogits,
    "Pattern": synthesizers.FixedPatterns,
}

# Whole layers, which do not mix.
LAYERS = {
    "LightConv": convolutions.LightConv,
    "DyConv": convolutions.DyConv,
    "Linformer": linformer.Linformer,
    "SparseFixed": sparse_fixed.SparseFixed,
    "SparseStrided": sparse_strided.SparseStrided,
}


def attention_layer(notation, **kwargs):
  """Makes the attention layer that a notation names.

  Args:
    notation: "R", "FR+D+V", ...: names of `SYNTHESIZING_FUNCTIONS` joined by
      "+", or one name of `LAYERS`.
    **kwargs: parameters of the layer, such as num_heads, key_value_size and
      dropout_rate, and of the synthesizing functions, such as max_length. A
      parameter is given to all of them that have it.

  Returns:
    a `transformer.TransformerLayer`.

  Raises:
    ValueError: the notation or a parameter is unknown, or a value out of range.
  """
  if notation in LAYERS:
    return _construct(notation, LAYERS[notation], [], kwargs)
  parts = [SYNTHESIZING_FUNCTIONS[name] for name in _names(notation)]
  taken = {name: value for name, value in kwargs.items()
           if any(name in _parameters(part) for part in parts)}
  functions = [_call(part, taken) for part in parts]
  rest = {k: v for k, v in kwargs.items() if k not in taken}
  return _construct(notation, attention.SyntheticAttention, parts, rest,
                    synthesizers=functions)


def part_name(synthesizer):
  """The name of a synthesizing function in the notation, or of its class."""
  cls = type(synthesizer)
  return next((name for name, known in SYNTHESIZING_FUNCTIONS.items()
               if known is cls), cls.__name__)


def _names(notation):
  names = notation.split("+") if isinstance(notation, str) else [notation]
  names = [n.strip() if isinstance(n, str) else n for n in names]
  unknown = [n for n in names if n not in SYNTHESIZING_FUNCTIONS]
  if unknown and unknown[0] in LAYERS:
    raise ValueError(
        f"`synthesizer_stack.attention` names {notation!r}, but {unknown[0]!r} is "
        "a whole layer, which does not mix with others; name it alone, or mix "
        f"some of {', '.join(SYNTHESIZING_FUNCTIONS)}.")
  if unknown:
    raise ValueError(
        f"`synthesizer_stack.attention` names {notation!r}, but "
        f"{unknown[0]!r} is not an attention; use one of "
        f"{', '.join(LAYERS) + ', ' if LAYERS else ''}"
        f"{', '.join(SYNTHESIZING_FUNCTIONS)}, or join several of the last "
        f"{len(SYNTHESIZING_FUNCTIONS)} with \"+\", as in \"R+V\".")
  return names


def _construct(notation, layer_cls, parts, kwargs, **fixed):
  allowed = _parameters(layer_cls) - set(fixed)
  for name in kwargs:
    if name not in allowed:
      known = sorted(allowed.union(*map(_parameters, parts)))
      raise ValueError(
          f"{notation!r} has no parameter `{name}`; it has {', '.join(known)}.")
  return layer_cls(**kwargs, **fixed)


def _call(cls, kwargs):
  return cls(**{k: v for k, v in kwargs.items() if k in _parameters(cls)})


def _parameters(cls):
  return set(inspect.signature(cls.__init__).parameters) - {"self"}
