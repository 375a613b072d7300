"""Where this package's gin files lie."""

import functools
import pathlib

import gin


def folder():
  """Returns the folder of the gin files, as a string.

  Installed, it lies inside the package; in a checkout, beside it.
  """
  package = pathlib.Path(__file__).resolve().parent
  inside = package / "gin"
  return str(inside if inside.is_dir() else package.parent / "gin")


@functools.cache
def add_search_path():
  """Lets `--gin_file=attention/r.gin` be found from any directory."""
  gin.add_config_file_search_path(folder())
