"""Checks of files that T5 reads and writes: lines, pairs and outputs."""

import os
from typing import Any

from absl import logging
from synthesizer_mtf import checks
import tensorflow.compat.v1 as tf

# The bytes of a TSV file that are checked before training. A second suffices for them.
_CHECKED = 1 << 26
_LONG = 500_000  # Characters of a line; a vocabulary needs seconds for more.


def check_lines(parameter: str, path: str) -> int:
  """The number of lines of a file that mode `infer` or `score_from_strings` will read.

  Raises:
    ValueError: it is missing, not a text file, empty or not UTF-8, or has a NUL.
  """
  def refuse(problem, number=None):
    line = "" if number is None else f", whose line {number + 1}"
    raise checks.Error(f"`{parameter}` is {path!r}{line}{problem}.") from None

  if not isinstance(path, str) or not tf.io.gfile.exists(path):
    refuse(", but there is no such file; name the file with the lines to read")
  checks.check_regular_file(f"`{parameter}`", path)
  if tf.io.gfile.isdir(path):
    refuse(", which is a folder; name a file of lines")
  with tf.io.gfile.GFile(path, "rb") as f:
    data = f.read()
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError as error:
    refuse(" is not UTF-8; convert the file, as by iconv -t utf-8",
           data.count(b"\n", 0, error.start))
  if "\0" in text:
    refuse(" has a NUL character; remove it, as by tr -d '\\0'",
           text.count("\n", 0, text.index("\0")))
  if not text.strip():
    refuse(", which holds no text; give a file with some, one input in each line")
  lines = text.removesuffix("\n").split("\n")
  number, longest = max(enumerate(lines, start=1), key=lambda line: len(line[1]))
  if len(longest) > _LONG:
    logging.warning("`%s` is %r, whose line %d has %s characters, which may take "
                    "minutes; the model reads its beginning only.", parameter, path,
                    number, f"{len(longest):,}")
  return len(lines)


def check_pairs(parameter: str, paths: Any) -> None:
  """Checks the path, or the paths, of files that T5's `tsv_dataset_fn` will read.

  Raises:
    ValueError: a file is missing, or one of its first lines has not two columns.
  """
  named = [paths] if isinstance(paths, str) else paths
  if not isinstance(named, (list, tuple)) or not named or not all(
      isinstance(path, str) for path in named):
    raise checks.Error(f"`{parameter}` is {paths!r} but must be the path of a TSV "
                       "file, or a list of paths; bind it.")
  for path in named:
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
      raise checks.Error(f"`{parameter}` is {path!r}, but there is no such file; name "
                         "TSV files, without wildcards, by their paths.")
    checks.check_regular_file(f"`{parameter}`", path)
    with tf.io.gfile.GFile(path, "rb") as f:
      lines = f.read(_CHECKED).split(b"\n")
    # The last part is what follows the last line break, or a part of a line.
    for number, line in enumerate(lines[:-1] or lines, start=1):
      if line.count(b"\t") != 1:
        raise checks.Error(
            f"`{parameter}` is {path!r}, whose line {number} has "
            f"{line.count(bytes([9])) + 1} columns, but a pair has 2, with a tab "
            "between inputs and targets; correct it.")


def check_output(parameter: str, path: Any, folder: bool = False) -> None:
  """Raises a ValueError if a file, or a folder that need not exist, is not writable."""
  checks.require(bool(path) and isinstance(path, str), parameter, path,
                 "be a path to write to", "write it in quotes")
  if folder and tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
    raise checks.Error(f"`{parameter}` is {path!r}, which is a file; name a folder.")
  parent = os.path.dirname(path)
  if not folder and parent and not tf.io.gfile.isdir(parent):
    raise checks.Error(f"`{parameter}` is {path!r}, but there is no folder "
                       f"{parent!r}; make it first, or name another.")
  where = path if folder else parent
  while where and not os.path.exists(where):
    where = os.path.dirname(where)
  where = where or "."
  if "://" not in path and not os.access(where, os.W_OK | os.X_OK):
    raise checks.Error(f"`{parameter}` is {path!r}, but {where!r} is not writable; "
                       "give permission, or name another folder.")
