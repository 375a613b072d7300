"""A seqio source of the user's own files, checked before they are used.

Files may be gzip-compressed (`.gz`) and are named by globs. Every file is read
once before training starts: a bad line stops the run with its file and number,
and the log gives the counts. Blank lines are skipped and counted.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import gzip
import io
import os
from typing import Any
import zlib

from absl import logging
import seqio
import tensorflow.compat.v2 as tf

_BOM = "\ufeff"
_BLANK = r"[\s\v\p{Z}\x{1c}-\x{1f}\x{85}]*"  # What str.isspace() is true for.
_GZIP = b"\x1f\x8b"


class FilesDataSource(seqio.FileDataSource):
  """Examples from the lines of files that gin or the environment names."""

  def __init__(
      self, choose_fn: Callable[[str], tuple[str, Sequence[str]]],
      parse_fn: Callable[["Lines"], Iterable[Any]],
      read_fn: Callable[[tf.Tensor], tf.data.Dataset],
      splits: Sequence[str] = ("train", "validation")):
    """Makes a source.

    Args:
      choose_fn: a function from a split to (what names its files, globs);
        called at each use, since gin is parsed after tasks are registered.
      parse_fn: a function from the `Lines` of a file to an iterable over its
        examples; it raises `lines.error(...)` for a bad line.
      read_fn: a function from a path, <string>[], to a tf.data.Dataset of the
        same examples.
      splits: names of the splits.
    """
    self._choose_fn = choose_fn
    self._parse_fn = parse_fn
    self._counts = {}
    super().__init__(
        read_file_fn=read_fn, split_to_filepattern=dict.fromkeys(splits, ()))

  def list_shards(self, split: str) -> list[str]:
    """Returns the paths of a split's files, sorted, all of them checked."""
    paths = self._paths(split)
    examples = sum(self._check(path) for path in paths)
    logging.info("%s: %d examples in %d files.", split, examples, len(paths))
    return paths

  def num_input_examples(self, split: str) -> int:
    return sum(self._check(path) for path in self._paths(split))

  def _paths(self, split):
    """Returns the sorted paths of a split's files, which all exist."""
    origin, globs = self._choose_fn(split)
    return find_files(origin, globs)

  def _check(self, path):
    """Returns how many examples a file holds, having read all of it once."""
    stat = tf.io.gfile.stat(path)
    key = (path, stat.length, stat.mtime_nsec)
    if key not in self._counts:
      self._counts[key] = self._count(path)
    return self._counts[key]

  def _count(self, path):
    """Reads a file; raises ValueError with the number of the first bad line."""
    lines = Lines(path)
    examples = sum(1 for _ in self._parse_fn(lines))
    logging.info("%s: %d examples, %d blank lines skipped, longest line %d "
                 "characters.", path, examples, lines.blank, lines.longest)
    return examples


class Lines:
  """The lines of a file that hold text, to be read through once.

  Attributes:
    path: the file, a string; read through gzip if it ends in `.gz`.
    number: how many lines were read, and so the number of the last one.
    blank: how many of them were blank.
    longest: the number of characters of the longest one.
  """

  def __init__(self, path: str):
    self.path = path
    self.number = self.blank = self.longest = 0

  def __iter__(self) -> Iterator[str]:
    """Yields strings, without line end and byte order mark.

    Raises:
      ValueError: a line is not UTF-8 or has a stray carriage return, or the
        file is not what its name says, or all of it is blank.
    """
    for line in _raw_lines(self.path):
      self.number += 1
      text = self._decode(line)
      self.longest = max(self.longest, len(text))
      if text.strip():
        yield text
      else:
        self.blank += 1
    if self.blank == self.number:
      raise ValueError(f"{self.path!r} holds no text; give a file with some, "
                       "or leave it out.")

  def error(self, message: str) -> ValueError:
    """Returns a ValueError that says where this line is."""
    return ValueError(f"{self.path!r}, line {self.number}: {message}")

  def _decode(self, line):
    """Returns the text of a line."""
    if self.number == 1 and line.startswith(_GZIP):
      raise self.error("this is compressed by gzip; let the name end in .gz.")
    try:
      text = line.decode("utf-8").rstrip("\r\n").removeprefix(_BOM)
    except UnicodeDecodeError as error:
      raise self.error(f"byte {error.start} is not UTF-8; convert the file to "
                       "UTF-8.") from None
    if "\r" in text:  # TensorFlow would leave it out and join the words.
      raise self.error("a carriage return within the line; end lines with "
                       "\\n or \\r\\n, as by tr '\\r' '\\n'.")
    return text


class _RawFile(io.RawIOBase):
  """A GFile for Python's io; GFile's own `readline` drops carriage returns."""

  def __init__(self, file):
    super().__init__()
    self._file = file

  def readable(self):
    return True

  def readinto(self, buffer):
    data = self._file.read(len(buffer))
    buffer[:len(data)] = data
    return len(data)


def _raw_lines(path):
  """Yields the lines of a file as bytes."""
  with tf.io.gfile.GFile(path, "rb") as f:
    raw = io.BufferedReader(_RawFile(f), 1 << 20)
    if not path.endswith(".gz"):
      yield from raw
      return
    try:
      yield from gzip.GzipFile(fileobj=raw)
    except (OSError, EOFError, zlib.error) as error:
      raise ValueError(f"{path!r} ends in .gz but is not a whole gzip file "
                       f"({error}); rename or compress it again.") from error


def read_lines(path: tf.Tensor) -> tf.data.Dataset:
  """Reads what `Lines` yields, in TensorFlow alone.

  So it does not need Python where the data is read, as on the hosts of a pod.

  Args:
    path: <string>[].

  Returns:
    a tf.data.Dataset of <string>[].
  """
  compression = tf.where(tf.strings.regex_full_match(path, r".*\.gz"),
                         "GZIP", "")
  lines = tf.data.TextLineDataset(path, compression_type=compression)
  lines = lines.map(
      lambda line: tf.strings.regex_replace(line, f"^{_BOM}", ""))
  return lines.filter(
      lambda line: tf.logical_not(tf.strings.regex_full_match(line, _BLANK)))


def find_files(origin: str, globs: Iterable[str]) -> list[str]:
  """Returns the sorted paths of all files that match.

  Args:
    origin: what names the globs, for the message.
    globs: an iterable of strings.

  Raises:
    ValueError: a glob matches no file, or a folder.
  """
  paths = set()
  for pattern in globs:
    found = tf.io.gfile.glob(pattern)
    if not found:
      raise ValueError(
          f"{origin} is {pattern!r}, but there is no such file; give paths "
          "or globs of files that exist.")
    paths.update(found)
  for path in sorted(paths):
    if tf.io.gfile.isdir(path):
      raise ValueError(f"{origin} names {path!r}, which is a folder; name its "
                       f"files, as in {os.path.join(path, '*.txt')!r}.")
  return sorted(paths)


def chosen_globs(
    parameter: str, variable: str, value: str | Sequence[str] | None,
) -> tuple[str, Sequence[str]]:
  """Returns (what names the files, a list of globs).

  Args:
    parameter: the name of the gin parameter.
    variable: the environment variable that counts when `value` is None, with
      commas between globs.
    value: what gin binds: a glob, a list of globs, or None.

  Raises:
    ValueError: neither names a file.
  """
  origin = f"`{parameter}`"
  if value is None:
    value = [v.strip() for v in os.environ.get(variable, "").split(",") if v.strip()]
    origin = f"{origin} or the environment variable {variable}"
  globs = [value] if isinstance(value, str) else value
  if not globs or not isinstance(globs, (list, tuple)) or not all(
      v and isinstance(v, str) for v in globs):
    raise ValueError(f"{origin} is {value or None!r}; set it to the path, "
                     "the glob or a list of globs of your files.")
  return origin, globs
