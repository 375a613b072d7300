"""A seqio source of the user's own files, checked before they are used.

A line is a document. Files may be gzip-compressed (`.gz`) and are named by
globs. Every file is read once before training starts: a bad line stops the run
with its file and number, and the log gives the counts. Blank lines are skipped
and counted.
"""

import collections
import gzip
import os
import zlib

from absl import logging
import seqio
import tensorflow.compat.v2 as tf

_BOM = "\ufeff"


class FilesDataSource(seqio.FileDataSource):
  """Examples from the lines of files that gin or the environment names."""

  def __init__(self, choose_fn, parse_fn, keys):
    """Makes a source with the splits "train" and "validation".

    Args:
      choose_fn: a function from a split to (what names its files, globs);
        called at each use, since gin is parsed after tasks are registered.
      parse_fn: a function from (line, path), both strings, to a tuple of
        strings, one for each of `keys`; it raises ValueError for a bad line.
      keys: the features of an example.
    """
    self._choose_fn = choose_fn
    self._parse_fn = parse_fn
    self._keys = keys
    self._counts = {}
    super().__init__(
        read_file_fn=self._read,
        split_to_filepattern={"train": (), "validation": ()})

  def list_shards(self, split):
    """Returns the paths of a split's files, sorted, all of them checked."""
    paths = self._paths(split)
    for path in paths:
      self._check(path)
    return paths

  def num_input_examples(self, split):
    return sum(self._check(path) for path in self._paths(split))

  def _paths(self, split):
    """Returns the sorted paths of a split's files, which all exist."""
    origin, globs = self._choose_fn(split)
    paths = set()
    for pattern in globs:
      found = tf.io.gfile.glob(pattern)
      if not found:
        raise ValueError(
            f"{origin} is {pattern!r}, but there is no such file; give paths "
            "or globs of files that exist.")
      paths.update(found)
    return sorted(paths)

  def _check(self, path):
    """Returns how many examples a file holds, having read all of it once."""
    stat = tf.io.gfile.stat(path)
    key = (path, stat.length, stat.mtime_nsec)
    if key not in self._counts:
      self._counts[key] = self._count(path)
    return self._counts[key]

  def _count(self, path):
    """Reads a file; raises ValueError with the number of the first bad line."""
    counts = collections.Counter()
    for number, line in enumerate(_lines(path), start=1):
      try:
        text = _decode(line)
        if text.strip():
          self._parse_fn(text, path)
        counts[bool(text.strip())] += 1
      except ValueError as error:
        raise ValueError(f"{path!r}, line {number}: {error}") from error
    if not counts[True]:
      raise ValueError(f"{path!r} holds no text; give a file with one document "
                       "on each line.")
    logging.info("%s: %d examples, %d blank lines skipped.", path, counts[True],
                 counts[False])
    return counts[True]

  def _read(self, path):
    """Returns a tf.data.Dataset of the examples of one file.

    Args:
      path: <string>[], a tensor.
    """
    compression = tf.where(tf.strings.regex_full_match(path, r".*\.gz"),
                           "GZIP", "")
    lines = tf.data.TextLineDataset(path, compression_type=compression)
    lines = lines.filter(
        lambda line: tf.strings.regex_full_match(line, r"(?s).*\S.*"))

    def parse(line, path):
      return tuple(self._parse_fn(_decode(line), path.decode("utf-8")))

    def example(line):
      values = tf.numpy_function(
          parse, [line, path], [tf.string] * len(self._keys), stateful=False)
      return {key: tf.ensure_shape(value, ())
              for key, value in zip(self._keys, values)}

    return lines.map(example, num_parallel_calls=tf.data.AUTOTUNE)


def _lines(path):
  """Yields the lines of a file as bytes."""
  with tf.io.gfile.GFile(path, "rb") as f:
    if not path.endswith(".gz"):
      yield from f
      return
    try:
      yield from gzip.GzipFile(fileobj=f)
    except (OSError, EOFError, zlib.error) as error:
      raise ValueError(f"{path!r} ends in .gz but is not a whole gzip file "
                       f"({error}); rename or compress it again.") from error


def _decode(line):
  """Returns the text of a line, without its end and a byte order mark."""
  try:
    return line.decode("utf-8").rstrip("\r\n").removeprefix(_BOM)
  except UnicodeDecodeError as error:
    raise ValueError(
        f"byte {error.start} is not UTF-8; convert the file to UTF-8.") from None


def chosen_globs(parameter, variable, value):
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
    value = [v for v in os.environ.get(variable, "").split(",") if v]
    origin = f"{origin} or the environment variable {variable}"
  globs = [value] if isinstance(value, str) else value
  if not globs or not isinstance(globs, (list, tuple)) or not all(
      isinstance(v, str) for v in globs):
    raise ValueError(f"{origin} is {value or None!r}; set it to the path, "
                     "the glob or a list of globs of your files.")
  return origin, globs
