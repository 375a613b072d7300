"""The registry of synthesizing functions, by their names in the notation.

A new function of this package needs an import and a line in the dict. A user's own
module calls `register`.
"""

import inspect
import re

import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions import dense
from synthesizer_mtf.attention.functions import dot_product
from synthesizer_mtf.attention.functions import factorized_random
from synthesizer_mtf.attention.functions import fixed_patterns
from synthesizer_mtf.attention.functions import random_logits
from synthesizer_mtf.attention.functions import toeplitz

SYNTHESIZING_FUNCTIONS: dict[str, type[base.SynthesizingFunction]] = {
    "V": dot_product.DotProductLogits,
    "R": random_logits.RandomLogits,
    "Fix": random_logits.FixedRandomLogits,
    "FR": factorized_random.FactorizedRandomLogits,
    "T": toeplitz.ToeplitzLogits,
    "D": dense.DenseLogits,
    "FD": dense.FactorizedDenseLogits,
    "Pattern": fixed_patterns.FixedPatterns,
}

# Other words of the notation, of `benchmark --rows` and of `plan_pod --attention`.
_RESERVED = frozenset([
    "LightConv", "DyConv", "Linformer", "SparseFixed", "SparseStrided", "Mixer",
    "SelfAttention", "floor", "all"])
# The variables of the layer around the functions, which are in the same scope.
_LAYER_VARIABLES = frozenset(["v", "o", "alpha", "relative_attention_bias"])


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
  if name in _RESERVED or old and not _is_again(cls, old):
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


def part_name(synthesizer: base.SynthesizingFunction) -> str:
  """The name of a synthesizing function in the notation, or else its class's name."""
  cls = type(synthesizer)
  return next((name for name, known in SYNTHESIZING_FUNCTIONS.items()
               if known is cls), cls.__name__)
