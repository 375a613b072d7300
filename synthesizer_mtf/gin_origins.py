"""Tells what a person has bound in gin from what nobody has chosen.

gin keeps no record of where a binding comes from. Nobody has chosen Mesh TensorFlow's
defaults.gin, what hooks of packages bind, and the values of model files (models/*.gin
of T5 and of this package): a model file is where a new model begins, and the record of
a trained model knows its own sizes better. All others are a person's: files of their
own, installed files that they name, such as attention/r.gin or beam_search.gin, and
what they bind by gin's functions. An attention is a person's wherever it is bound.
"""

from collections.abc import Iterable
import os
from typing import Any
from typing import NamedTuple

from absl import flags
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names

MACRO = "gin.macro", "value"  # Selector and parameter of macros; the scope is the name.
_ATTENTION = "synthesizer_mtf.synthesizer_stack", "attention"


class Binding(NamedTuple):
  """A binding, as `scope/selector.name = value`."""
  scope: str
  selector: str
  name: str
  value: Any

  @property
  def key(self) -> tuple[str, str]:
    return self.selector, self.name


def bindings(config: gin_internals.Config | None = None) -> Iterable[Binding]:
  """Returns the bindings of a configuration; of gin's by default."""
  config = gin_internals.bindings() if config is None else config
  return [Binding(scope, selector, name, value)
          for (scope, selector), values in config.items()
          for name, value in values.items()]


def written(given: Iterable[tuple[str, Any]]) -> dict[tuple[str, str, str], str]:
  """Returns the path of the last gin file that binds each (scope, selector, name)."""
  return {_key(binding): path for path, binding in given}


def _key(binding):
  scope, selector, name = binding.scope, binding.selector, binding.arg_name
  if not name:
    return "/".join(filter(None, [scope, selector])), *MACRO
  return scope, gin_names.full_name(selector) or selector, name


def chosen() -> list[Binding]:
  """Returns the bindings that a person has chosen."""
  nobodys = unchosen()
  return [binding for binding in bindings() if binding[:3] not in nobodys]


def unchosen() -> dict[tuple[str, str, str], str]:
  """Returns the (scope, selector, name) that are bound, but that nobody has chosen.

  Their values are the model files that bind them, such as "models/laptop.gin", or "".
  """
  parsed = gin_files.parsed()
  given = gin_files.given_in_command()
  if parsed is None and (given or is_model_api()):
    parsed = gin_files.Parsed(given, None)
  if parsed is None:
    return {}
  paths, files = written(parsed.given), {}
  for binding in bindings():
    path = paths.get(binding[:3])
    file = "" if path is None else _model_file(path)
    if file is not None and binding.key != _ATTENTION and parsed.has(binding):
      files[binding[:3]] = file
  return files


def is_model_api() -> bool:
  """Whether T5's command runs that fills gin, with no files, and then makes a model."""
  return "use_model_api" in flags.FLAGS and bool(flags.FLAGS["use_model_api"].value)


def _model_file(path):
  """The name of an installed model file, such as "models/laptop.gin"; else None."""
  for folder in gin_files.installed():
    if os.path.abspath(path).startswith(os.path.join(folder, "models", "")):
      return os.path.relpath(os.path.abspath(path), folder)
  return None
