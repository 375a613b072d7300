"""gin's own state that has no public function. Only this module reads it."""

import inspect
from typing import Any
from typing import TypeGuard

import gin

# gin's parsed configuration, as its hooks get it: a dict from (scope, selector) to the
# values of the bound parameters.
Config = dict[tuple[str, str], dict[str, Any]]


def bindings() -> Config:
  """gin's bindings."""
  return gin.config._CONFIG


def calls() -> Config:
  """The calls of configurables, and their values from gin and from defaults.

  Values that the caller gives are left out.
  """
  return gin.config._OPERATIVE_CONFIG


def registry() -> Any:
  """gin's configurables: a map from full names, which also accepts shorter names."""
  return gin.config._REGISTRY


def default(selector: str, parameter: str, otherwise: Any = None) -> Any:
  """The default of a parameter of a configurable; `otherwise` if it has none."""
  function: Any = getattr(registry().get(selector), "wrapped", None)
  try:
    value = inspect.signature(function).parameters[parameter].default
  except (KeyError, TypeError, ValueError):
    return otherwise
  return otherwise if value is inspect.Parameter.empty else value


def folders() -> list[str]:
  """The folders in which gin looks for files."""
  return gin.config._LOCATION_PREFIXES


def readers() -> list[tuple[Any, Any]]:
  """Pairs of a function that opens a file, and one that says whether it can."""
  return gin.config._FILE_READERS


def is_reference(value: Any) -> TypeGuard[gin.config.ConfigurableReference]:
  """Whether a bound value is a reference to a configurable, or a macro."""
  return isinstance(value, gin.config.ConfigurableReference)


def macro(config: Config, name: str) -> Any:
  """The value of a gin macro, which may be a reference; None if it has no value."""
  return resolved(config, config.get((name, "gin.macro"), {}).get("value"))


def resolved(config: Config, value: Any) -> Any:
  """The value itself, or the value of the macro that it names."""
  if not is_reference(value):
    return value
  scope, _, name = value.scoped_selector.rpartition("/")
  return macro(config, scope) if name in ("macro", "gin.macro") else value


def parameters(config: Config, selector: str) -> dict[str, Any]:
  """The unscoped parameters of a configurable of Mesh TensorFlow."""
  return {name: resolved(config, value) for name, value in config.get(
      ("", "mesh_tensorflow.transformer." + selector), {}).items()}


def function_name(bound: Any) -> str | None:
  """The module and name of a function that is bound; None for anything else."""
  if not is_reference(bound):
    return None
  function = bound.configurable.wrapped
  return f"{function.__module__}.{function.__name__}"
