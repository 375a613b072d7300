"""Loads commands: modules, packages, and the scripts in `requirements/`."""

import contextlib
import importlib
import importlib.util
import io
from unittest import mock

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


def printed_help(module, words, width):
  """Returns what a command's parser prints.

  Args:
    module: the module that `python -m` runs.
    words: the words before `--help`.
    width: how many characters a line has, as a string.
  """
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit), (
      mock.patch.dict("os.environ", COLUMNS=width)):
    command(module).main([*words, "--help"])
  return output.getvalue()
