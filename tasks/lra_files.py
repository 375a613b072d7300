"""Finds the files of Long Range Arena's release (`lra_release`)."""

from collections.abc import Sequence

from synthesizer_mtf import checks
from synthesizer_mtf.tasks import text_source
import tensorflow.compat.v2 as tf


def folder(parameter: str, variable: str, value: str | None) -> tuple[str, str]:
  """Returns (the parameter or variable that names a folder, its path).

  Args:
    parameter: the name of the gin parameter.
    variable: the environment variable that counts when `value` is None.
    value: what gin binds.

  Raises:
    ValueError: neither names one folder that exists.
  """
  origin, folders = text_source.chosen_globs(parameter, variable, value)
  if len(folders) != 1 or not tf.io.gfile.isdir(folders[0]):
    raise checks.Error(f"{origin} is {', '.join(folders)!r}, which is not a folder; "
                       "name the one folder of Long Range Arena's release that has "
                       "the files.")
  return origin, folders[0].rstrip("/")


def find(parameter: str, variable: str, value: str | None,
         name: str) -> tuple[str, Sequence[str]]:
  """Returns (the parameter or variable that names a folder, [the path of a file]).

  Args:
    parameter: as in `folder`.
    variable: as in `folder`.
    value: as in `folder`.
    name: the name of the file in the folder.

  Raises:
    ValueError: there is no such folder, or no such file in it.
  """
  origin, path = folder(parameter, variable, value)
  if not tf.io.gfile.exists(f"{path}/{name}"):
    raise checks.Error(f"{origin} is {path!r}, which has no {name!r}; put it there, or "
                       "name the folder that has it.")
  return origin, [f"{path}/{name}"]
