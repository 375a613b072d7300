"""Files with an object in JSON on each line."""

from collections.abc import Sequence
import json

from synthesizer_mtf import checks

_SUFFIXES = (".jsonl", ".json")


def is_json(path: str) -> bool:
  """Whether the name of a file says that its lines are JSON."""
  return path.removesuffix(".gz").endswith(_SUFFIXES)


def is_object(line: str, keys: Sequence[str] = ()) -> bool:
  """Whether a line is an object in JSON that has strings under these keys."""
  try:
    return line.lstrip().startswith("{") and len(strings(line, keys)) == len(keys)
  except ValueError:
    return False


def strings(line: str, keys: Sequence[str]) -> tuple[str, ...]:
  """Returns the strings that the object of a line has under some keys.

  Args:
    line: a string.
    keys: a sequence of strings.

  Raises:
    ValueError: the line is no object in JSON, one of the keys is missing or has
      no string, or a string is no text.
  """
  row = _load(line)
  found = tuple(row.get(key) if isinstance(row, dict) else None for key in keys)
  if not all(isinstance(text, str) for text in found):
    noun = "string" if len(keys) == 1 else "strings"
    needed = " and ".join(f'"{key}"' for key in keys)
    raise checks.Error(
        f"an object with the {noun} {needed} is needed, not {line[:80]!r}.")
  if any("\ud800" <= letter <= "\udfff" for text in found for letter in text):
    raise checks.Error("half of a surrogate pair (\\ud800 to \\udfff), which is "
                       "no text; write the whole character.")
  return found


def _load(line):
  try:
    return json.loads(line)
  except ValueError as error:
    raise checks.Error(
        f"not JSON ({error}); write one object per line.") from None
  except RecursionError:
    raise checks.Error("JSON that is nested too deeply to be read; write one "
                       "object of strings per line.") from None
