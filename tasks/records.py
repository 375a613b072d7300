"""Texts from rows with named fields: JSON lines, CSV with a header, and Parquet.

A template says how to make a text from a row. It is the key of a field, or a text with
keys in braces, as in T5's prefixes:

  "sentence"        "mnli premise: {premise} hypothesis: {hypothesis}"

A key may name a field of an object in a field, as in "translation.en", or an entry of a
list: "answers.text.0" is the first answer of SQuAD's rows.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import itertools
import json
import os
import string
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tasks import lines as lines_lib
import tensorflow.compat.v2 as tf

_JSON = (".jsonl", ".json")
_PARQUET = ".parquet"
_CSV = ".csv"
_BLOCK = 1024  # Rows of Parquet that are read at a time.
_SHOWN = 80  # Characters of a line that messages quote.
_LONGEST_FIELD = 1 << 30  # Characters; Python's own limit is 131,072.


def has_fields(path: str) -> bool:
  """Whether the name of a file says that its rows have named fields."""
  return (_is_json(path) or path.endswith(_PARQUET) or
          path.removesuffix(".gz").endswith(_CSV))


def _is_json(path: str) -> bool:
  """Whether the name of a file says that its lines are JSON."""
  return path.removesuffix(".gz").endswith(_JSON)


def is_object(line: str, keys: Sequence[str] = ()) -> bool:
  """Whether a line is an object in JSON that has strings under these keys."""
  try:
    row = _load(line) if line.lstrip().startswith("{") else None
  except ValueError:
    return False
  return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in keys)


def _load(line: str) -> Any:
  """Returns the value that a line of JSON holds.

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


class Template:
  """Makes a text from a row.

  Attributes:
    keys: the keys of the fields that the template reads, in their order.
  """

  def __init__(self, parameter: str, template: str, numbers: bool = False) -> None:
    """Reads a template.

    Args:
      parameter: the name of the parameter that gives the template, for messages.
      template: a key, or a text with keys in braces.
      numbers: whether a key alone may also name an integer, or a float of such a value,
        as pandas makes of integers. A key in braces may always name an integer.

    Raises:
      ValueError: `template` is not a template.
    """
    if not (template and isinstance(template, str)):
      raise checks.Error(
          f"{parameter} is {template!r} but must be the key of a text, or a text with "
          "keys in braces, as 'premise: {premise} hypothesis: {hypothesis}'.")
    is_key = "{" not in template and "}" not in template
    self._parts = [("", template)] if is_key else _parts(parameter, template)
    self._numbers = numbers or not is_key
    self._floats = numbers
    self.keys = tuple(key for _, key in self._parts if key is not None)

  def text(self, row: Any) -> str | None:
    """Returns the text of a row; None if a field is missing or is not a text."""
    made = []
    for before, key in self._parts:
      value = "" if key is None else self._value(row, key)
      if value is None:
        return None
      made += [before, value]
    return "".join(made)

  def _value(self, row, key):
    value = _field(row, key)
    if isinstance(value, int) and self._numbers:
      return str(int(value))  # True becomes 1.
    if isinstance(value, float) and self._floats and value.is_integer():
      return str(int(value))
    return value if isinstance(value, str) else None


def _parts(parameter, template):
  """Returns pairs of (a text, the key that follows or None)."""
  try:
    pieces = list(string.Formatter().parse(template))
    if any(key == "" or form or conversion for _, key, form, conversion in pieces):
      raise ValueError("a brace needs a key, and nothing else")
    if all(key is None for _, key, _, _ in pieces):
      raise ValueError("it names no key")
  except ValueError as error:
    raise checks.Error(
        f"{parameter} is {template!r}, which is not a template ({error}); write it as "
        "'premise: {premise} hypothesis: {hypothesis}', and {{ for a brace.") from None
  return [(before, key) for before, key, _, _ in pieces]


def _field(row, key):
  """Returns the value of a key, which may be in nested objects or lists; or None."""
  if isinstance(row, list):
    first, _, rest = key.partition(".")
    if not first.isdecimal() or int(first) >= len(row):
      return None
    return _field(row[int(first)], rest) if rest else row[int(first)]
  if not isinstance(row, Mapping):
    return None
  if key in row or "." not in key:
    return row.get(key)
  first, _, rest = key.partition(".")
  return _field(row.get(first), rest)


def texts(lines: lines_lib.Lines, templates: Sequence[Template],
          remedy: str = "") -> Iterator[tuple[str, ...]]:
  """Yields the texts of each row of a file, as many as there are templates.

  Args:
    lines: a file whose name `has_fields`.
    templates: a sequence of `Template`.
    remedy: a sentence for the message if a row lacks the fields.

  Raises:
    ValueError: a row lacks the fields, or is not a valid row. The message gives
      the row's number.
  """
  keys = list(dict.fromkeys(key for form in templates for key in form.keys))
  has_rows = False
  for row, shown in _rows(lines, keys):
    made = tuple(text for template in templates
                 if (text := template.text(row)) is not None)
    if len(made) < len(templates):
      noun = "string" if len(keys) == 1 else "strings"
      needed = " and ".join(f'"{key}"' for key in keys)
      raise lines.error(f"an object with the {noun} {needed} is needed, not "
                        f"{shown()}.{_entries(row, keys)}{remedy}")
    if any("\ud800" <= letter <= "\udfff" for text in made for letter in text):
      raise lines.error("half of a surrogate pair (\\ud800 to \\udfff), which is "
                        "no text; write the whole character.")
    if any("\0" in text for text in made):
      raise lines.error("a NUL character (\\u0000), which is not text; remove it.")
    has_rows = True
    lines.note_lengths(made)
    yield made
  if not has_rows:
    raise lines.no_text()


def _entries(row, keys):
  """Returns a sentence that says which keys name lists; or ""."""
  lists = [key for key in keys if isinstance(_field(row, key), list)]
  return "".join(f' "{key}" is a list; name its first entry by "{key}.0".'
                 for key in lists)


def has_keys(path: str, keys: Sequence[str]) -> bool:
  """Whether the first row of a file has strings under all of these keys."""
  templates = [Template("the key", key) for key in keys]
  try:
    return any(True for _ in itertools.islice(
        texts(lines_lib.Lines(path), templates), 1))
  except ValueError:
    return False


def _rows(lines, keys):
  """Yields (a row, a function that returns the row's text for a message)."""
  if lines.path.endswith(_PARQUET):
    rows = _parquet_rows(lines, keys)
  elif _is_json(lines.path):
    yield from _json_rows(lines)
    return
  else:
    rows = _csv_rows(lines, keys)
  for row in rows:
    yield row, lambda row=row: str({key: _field(row, key) for key in keys})[:_SHOWN]


def _json_rows(lines):
  for line in lines:
    try:
      row = _load(line)
    except ValueError as error:
      raise lines.error(str(error)) from None
    yield row, lambda line=line: repr(line[:_SHOWN])


def _csv_rows(lines, keys):
  """Yields a dict for each row below the header."""
  csv.field_size_limit(_LONGEST_FIELD)
  reader = csv.reader((f"{line}\n" for line in lines.with_blank()), strict=True)
  header = None
  try:
    for cells in reader:
      if not cells:
        lines.skip_blank()
      elif header is None:
        header = cells
        _check_columns(lines.error, header, keys)
      elif len(cells) != len(header):
        raise lines.error(f"{len(cells)} columns, but the header has {len(header)}; "
                          "put a text with a comma into double quotes.")
      else:
        yield dict(zip(header, cells))
  except csv.Error as error:
    raise lines.error(f"this is not CSV ({error}); put a text with quotes into double "
                      "quotes, and double those within.") from None


def _parquet_rows(lines, keys):
  """Yields a dict for each row, with the columns that are needed."""
  import pyarrow  # Takes half a second.
  from pyarrow import parquet
  try:
    with parquet.ParquetFile(_opened(lines.path, pyarrow)) as file:
      columns = file.schema_arrow.names
      _check_columns(
          lambda message: checks.Error(f"{lines.path!r}: {message}"), columns, keys)
      needed = [name for name in columns if any(
          name == key or key.startswith(f"{name}.") for key in keys)]
      for batch in file.iter_batches(_BLOCK, columns=needed):
        for row in batch.to_pylist():
          lines.count_row()
          yield row
  except (pyarrow.ArrowException, OSError) as error:
    raise checks.Error(
        f"{lines.path!r} is not a whole Parquet file ({str(error).splitlines()[0]}); "
        "name or fetch it again.") from error


def _opened(path, pyarrow):
  """Returns a source for pyarrow; only a remote file is loaded as a whole."""
  if os.path.exists(path):
    return path
  with tf.io.gfile.GFile(path, "rb") as f:
    return pyarrow.BufferReader(f.read())


def _check_columns(error, columns, keys):
  """Raises `error(message)` if a key has no column, or two columns."""
  for key in keys:
    if key not in columns and key.partition(".")[0] not in columns:
      raise error(f"there is no column {key!r}, but "
                  f"{', '.join(map(repr, columns))}; name one of these, or add it.")
  twice = [name for name in columns if columns.count(name) > 1 and name in keys]
  if twice:
    raise error(f"there are two columns {twice[0]!r}; rename one.")
