"""Reads the commands in the comments at the start of gin files."""

import itertools
import os
import shlex

from synthesizer_mtf import gin_files


def commands(name: str) -> list[list[str]]:
  """Returns the launcher's commands in a gin file's first comment, as lists of words.

  Args:
    name: the name of the file, in the package's folder of gin files.
  """
  with open(os.path.join(gin_files.folder(), name), encoding="utf-8") as file:
    comment = itertools.takewhile(lambda line: line.startswith("#"), file)
    text = "".join(line[1:].lstrip() or "\n" for line in comment)
  return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()
          if line.startswith("synthesizer_mesh_transformer")]


def values(command: list[str], flag: str) -> list[str]:
  """Returns the values of a flag in a command, which is a list of words."""
  return [word.partition("=")[2] for word in command if word.startswith(f"--{flag}=")]
