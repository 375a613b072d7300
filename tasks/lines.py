"""The lines of the user's text files, read and checked in Python."""

from collections.abc import Iterable
from collections.abc import Iterator
import gzip
import io
import os
import zlib

from synthesizer_mtf import checks
import tensorflow.compat.v2 as tf

BOM = "\ufeff"
# How files begin that hold no lines of text, and what to do with them.
_FORMATS = {
    b"\x1f\x8b": "is compressed by gzip; let its name end in .gz",
    b"BZh": "is compressed by bzip2; unpack it, or compress it by gzip instead",
    b"\xfd7zXZ": "is compressed by xz; unpack it, or compress it by gzip instead",
    b"(\xb5/\xfd": "is compressed by zstd; unpack it, or compress it by gzip instead",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"PAR1": "is Parquet; let its name end in .parquet",
}
_LONGEST_START = max(map(len, _FORMATS))
_BLOCK = 1 << 20  # Bytes that are read at a time.


def version(path: str) -> tuple[int, ...]:
  """Returns numbers that change if a file changes, also by a copy with an old time."""
  if os.path.exists(path):
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
  remote = tf.io.gfile.stat(path)
  return remote.length, remote.mtime_nsec


class Lines:
  """The lines of a file that hold text, to be read through once.

  Attributes:
    path: the file, a string; read through gzip if it ends in `.gz`.
    unit: the word for a line in messages: "line", or "row".
    number: the number of lines read, and so the number of the last line.
    blank: the number of blank lines among them.
    longest: the number of characters of the longest line.
    bytes: how many bytes the lines have, without their ends.
  """

  def __init__(self, path: str):
    self.path, self.unit = path, "line"
    self.number = self.blank = self.longest = self.bytes = 0
    self._start = b""

  def __iter__(self) -> Iterator[str]:
    """Yields strings, without line end and byte order mark.

    Raises:
      ValueError: the file cannot be read, a line is not UTF-8 or has a stray carriage
        return, the file is not what its name says, or all of it is blank.
    """
    for text in self.with_blank():
      if text.strip():
        yield text
      else:
        self.blank += 1
    if self.blank == self.number:
      raise self.no_text()

  def with_blank(self) -> Iterator[str]:
    """Yields all lines, also blank ones, and does not count blank lines.

    Raises:
      ValueError: as in `__iter__`, but a blank file is no error.
    """
    for line in self._raw_lines():
      self.number += 1
      text = self._decode(line)
      self.longest = max(self.longest, len(text))
      self.bytes += len(line)
      yield text

  def skip_blank(self) -> None:
    """Counts the last line as blank, because it holds nothing to learn from."""
    self.blank += 1

  def count_row(self) -> None:
    """Counts a row of a file that consists of rows instead of lines."""
    self.unit, self.number = "row", self.number + 1

  def note_lengths(self, texts: Iterable[str]) -> None:
    """Updates `longest` with the texts that were made from the last line."""
    self.longest = max(self.longest, *map(len, texts))

  def error(self, message: str) -> ValueError:
    """Returns a ValueError that names the file and the last line."""
    return checks.Error(f"{self.path!r}, {self.unit} {self.number}: {message}")

  def no_text(self) -> ValueError:
    """Returns a ValueError that says that this file is blank."""
    return checks.Error(f"{self.path!r} holds no text; give a file with some, or "
                        "leave it out.")

  def _decode(self, line):
    """Returns the text of a line."""
    if self.number == 1:
      self._start = line[:_LONGEST_START]
    try:
      text = line.decode("utf-8").rstrip("\r\n").removeprefix(BOM)
    except UnicodeDecodeError as error:
      raise self._no_text(f"byte {error.start} is not UTF-8; convert the file to "
                          "UTF-8.") from None
    if "\r" in text:  # TensorFlow would leave it out and join the words.
      raise self.error("a carriage return within the line; end lines with "
                       "\\n or \\r\\n, as by tr '\\r' '\\n'.")
    if "\0" in text:
      raise self._no_text("a NUL character, which is not text; remove it, as by tr -d "
                          "'\\0', or convert a file of UTF-16 to UTF-8.")
    return text

  def _no_text(self, message):
    """Returns the error of a line that is no text: the file's format, or a message."""
    for start, what in _FORMATS.items():
      if self._start.startswith(start):
        return self.error(f"the file {what}.")
    if _is_tfrecord(self.path):
      return self.error("the file is TFRecord; write its texts as lines, or add a task "
                        "that reads it, by seqio.TFExampleDataSource.")
    return self.error(message)

  def _raw_lines(self):
    """Yields the lines as bytes."""
    try:
      with tf.io.gfile.GFile(self.path, "rb") as f:
        is_gzip = self.path.endswith(".gz")
        yield from io.BufferedReader(
            gzip.GzipFile(fileobj=f) if is_gzip else _Raw(f), _BLOCK)
    except tf.errors.OpError as error:
      raise checks.Error(
          f"{self.path!r} cannot be read ({reason(error)}); give a file that "
          "this user may read, or leave it out.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise checks.Error(f"{self.path!r} ends in .gz but is not a whole gzip file "
                         f"({error}); rename or compress it again.") from error


def reason(error: tf.errors.OpError) -> str:
  """Returns the first line of an error of a file system, without the path."""
  first = (error.message or type(error).__name__).splitlines()[0]
  return first.rpartition("; ")[2]


def _is_tfrecord(path):
  """Whether a file begins with a record whose checksums hold."""
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    record = tf.compat.v1.data.make_one_shot_iterator(
        tf.data.TFRecordDataset(path)).get_next()
    try:
      session.run(record)
    except tf.errors.OpError:
      return False
  return True


class _Raw(io.RawIOBase):
  """Lets Python's io cut a GFile into lines; GFile's own `readline` drops "\\r"."""

  def __init__(self, file):
    super().__init__()
    self._file = file

  def readable(self):
    return True

  def readinto(self, buffer):
    content = self._file.read(len(buffer))
    buffer[:len(content)] = content
    return len(content)
