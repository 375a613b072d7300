"""Reads and checks the JSON lines that `reproduce` writes.

Runs of two settings, or a seed that occurs twice, must not be averaged. For such lines
an error names the file and the line.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import json
import math
import pathlib
from typing import Any
from typing import NamedTuple

from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import results

# The version of the format. Lines without a version have the first one.
FORMAT = 1

_SETTING = {"scale": str, "steps": int, "finetune_steps": int,
            "gin_params": list}
_RUN = {"row": str, "task": str, "seed": int, "status": str, "scores": dict}
_RENAMED = {"all alike": "uniform"}  # The rows of older files.
_NAMES = {str: "a string", int: "an integer", list: "a list",
          dict: "an object"}


class Results(NamedTuple):
  """The runs of one file.

  Attributes:
    path: the path of the file.
    setting: the keys that all lines share: "table", a number, or "study", a string, and
      "scale", "steps", "finetune_steps" and "gin_params", and "best_by" where the
      best step is evaluated.
    runs: the lines of kind "run", as dicts with all of their keys.
  """
  path: str
  setting: dict[str, Any]
  runs: list[Mapping[str, Any]]


def read(path: results.Folder) -> Results:
  """Reads and checks a file.

  Raises:
    ValueError: the file cannot be read, or is not the output of one command.
  """
  first, seen = None, {}
  runs: list[Mapping[str, Any]] = []
  for where, line in objects(path):
    setting = _setting(where, line)
    first = first or (where, setting)
    for key, expected, value in differing(first[1], setting):
      raise checks.Error(f"{where} is of another setting than {first[0]}: {key!r} is "
                         f"{value!r}, not {expected!r}; keep them in files of their "
                         "own.")
    if _value(where, line, "kind", str) == "run":
      _check_run(where, line)
      line["row"] = _RENAMED.get(line["row"], line["row"])
      check_new(where, f"seed {line['seed']} of {line['row']} on {line['task']}", seen)
      runs.append(line)
  if first is None or not runs:
    raise checks.Error(
        f"{path} has no line of kind \"run\"; give the .jsonl file that "
        "`reproduce` has written.")
  return Results(str(path), first[1], runs)


def check_new(where: str, what: str, seen: dict[str, str]) -> None:
  """Stores where a key occurs; raises a ValueError if it has occurred before.

  Args:
    where: the location, "FILE:NUMBER".
    what: the key, which is also its name in the message.
    seen: a dict from keys to locations, to which the key is added.
  """
  if what in seen:
    raise checks.Error(f"{where}: {what} is there twice, first at {seen[what]}; keep "
                       "only one of them.")
  seen[what] = where


def objects(path: results.Folder) -> Iterator[tuple[str, dict]]:
  """Yields ("FILE:NUMBER", the object of the line)."""
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
  except OSError as error:
    raise checks.Error(f"cannot read {path}: {error.strerror}.") from None
  for number, line in enumerate(text.split("\n"), 1):
    if line.strip():
      where = f"{path}:{number}"
      yield where, _object(where, line)


def _object(where, text):
  try:
    line = json.loads(text)
  except json.JSONDecodeError as error:
    raise checks.Error(
        f"{where} is not a whole line of JSON ({error.msg} at column {error.colno});"
        " was it cut off? Run the command that wrote the file again."
    ) from None
  if not isinstance(line, dict):
    raise checks.Error(f"{where} is not a JSON object with keys and values.")
  if line.get("format", FORMAT) != FORMAT:
    raise checks.Error(
        f"{where} is of format {line['format']!r}, which is not {FORMAT}; read it "
        "with the version that wrote it.")
  return line


def _value(where, line, key, kind):
  if key not in line:
    raise checks.Error(f"{where} has no {key!r}.")
  value = line[key]
  if not isinstance(value, kind) or isinstance(value, bool):
    raise checks.Error(f"{where}: {key!r} is {value!r}, not {_NAMES[kind]}.")
  return value


def _setting(where, line):
  which = {"study": str} if "study" in line else {"table": int}
  known = {**which, **_SETTING, **({"best_by": str} if "best_by" in line else {})}
  return {key: _value(where, line, key, kind) for key, kind in known.items()}


def differing(a: Mapping[str, Any],
              b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
  """Yields (key, the first value, the second value) where two settings differ."""
  for key in {**a, **b}:
    if a.get(key) != b.get(key):
      yield key, a.get(key), b.get(key)


def _check_run(where, line):
  for key, kind in _RUN.items():
    _value(where, line, key, kind)
  for name, score in line["scores"].items():
    if (not isinstance(score, int | float) or isinstance(score, bool) or
        not math.isfinite(score)):
      raise checks.Error(
          f"{where}: the score {name!r} of {line['row']} on {line['task']}, "
          f"seed {line['seed']}, is {score}, which is not a finite number; leave "
          "this run out, or run it again.")
