"""The scripts in `requirements/`, which are no package."""

import importlib.util

from support.paths import ROOT


def load(name):
  """The script of this name as a new module."""
  spec = importlib.util.spec_from_file_location(
      name, ROOT / "requirements" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
