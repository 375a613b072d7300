"""Loads commands: modules, packages, and the scripts in `requirements/`."""

import importlib
import importlib.util

from support.paths import ROOT


def load(name):
  """Returns the script `name` as a new module."""
  spec = importlib.util.spec_from_file_location(
      name, ROOT / "requirements" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def command(module):
  """Returns the module that `python -m` runs: it has the function `main`."""
  loaded = importlib.import_module(module)
  if hasattr(loaded, "main"):
    return loaded
  return importlib.import_module(f"{module}.__main__")
