"""The commands in the comments that gin files begin with."""

import itertools
import os
import shlex

from synthesizer_mtf import gin_files


def commands(name: str) -> list[list[str]]:
  """The launcher's commands in the first comment of a gin file, as lists of words.

  Args:
    name: of the file, in the package's folder of gin files.
  """
  with open(os.path.join(gin_files.folder(), name), encoding="utf-8") as file:
    comment = itertools.takewhile(lambda line: line.startswith("#"), file)
    text = "".join(line[1:].lstrip() or "\n" for line in comment)
  return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()
          if line.startswith("synthesizer_mesh_transformer")]


def values(command: list[str], flag: str) -> list[str]:
  """The values of a flag in a command, a list of words."""
  return [word.partition("=")[2] for word in command if word.startswith(f"--{flag}=")]
