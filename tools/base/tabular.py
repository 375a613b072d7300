"""Formats rows as tables for people, and as JSON lines for programs."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import tensorflow.compat.v1 as tf


def markdown(lines: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table whose columns are also aligned in plain text.

  Args:
    lines: lists of cells, which are strings; the first list has the titles.
  """
  widths = _widths(lines)
  lines = [lines[0], ["-" * width for width in widths], *lines[1:]]
  return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def plain(lines: Sequence[Sequence[str]],
          align: Callable[[str, int], str] = str.ljust) -> list[str]:
  """Returns aligned lines, the first column to the left.

  Args:
    lines: lists of cells, which are strings.
    align: `str.ljust` or `str.rjust`, for the other columns.
  """
  widths = _widths(lines)
  return ["  ".join([line[0].ljust(widths[0]), *map(align, line[1:], widths[1:])])
          for line in lines]


def _widths(lines):
  return [max(map(len, column)) for column in zip(*lines)]


def json_lines(rows: Iterable[Any]) -> str:
  """Returns rows as a text with one line of JSON each."""
  return "".join(json.dumps(row) + "\n" for row in rows)


def write_json(rows: Iterable[Any], path: str | pathlib.Path | None) -> None:
  """Writes rows as JSON lines, also into cloud storage; nothing for a path of None."""
  if path is None:
    return
  with tf.io.gfile.GFile(str(path), "w") as f:
    f.write(json_lines(rows))
