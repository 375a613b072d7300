"""Files with an object in JSON on each line."""

from collections.abc import Sequence
import json
from typing import Any

from synthesizer_mtf import checks

_SUFFIXES = (".jsonl", ".json")


def is_json(path: str) -> bool:
  """Whether the name of a file says that its lines are JSON."""
  return path.removesuffix(".gz").endswith(_SUFFIXES)


def is_object(line: str, keys: Sequence[str] = ()) -> bool:
  """Whether a line is an object in JSON that has strings under these keys."""
  try:
    row = load(line) if line.lstrip().startswith("{") else None
  except ValueError:
    return False
  return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in keys)


def load(line: str) -> Any:
  """Returns the value that a line of JSON holds.

  Args:
    line: a string.

  Raises:
    ValueError: the line is not JSON.
  """
  try:
    return json.loads(line)
  except ValueError as error:
    raise checks.Error(
        f"not JSON ({error}); write one object per line.") from None
  except RecursionError:
    raise checks.Error("JSON that is nested too deeply to be read; write one "
                       "object of strings per line.") from None
