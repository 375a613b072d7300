"""Loads the scripts in `requirements/`, which is not a package."""

import importlib.util

from support.paths import ROOT


def load(name):
  """Returns the script `name` as a new module."""
  spec = importlib.util.spec_from_file_location(
      name, ROOT / "requirements" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
