"""Finds the folder studies/, which is in the repository but not installed."""

import importlib
import types

from synthesizer_mtf import checks


def module(name: str) -> types.ModuleType:
  """Returns a module of the folder.

  Raises:
    ValueError: this Python cannot import the folder.
  """
  try:
    return importlib.import_module(f"studies.{name}")
  except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "studies":
      raise
    raise checks.Error(
        "Studies and tables of other papers are in the folder studies/ of this "
        "package's repository, which pip does not install; type `make install` in a "
        "clone, and give the same command with its .venv/bin/python.") from None
