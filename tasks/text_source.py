"""A seqio source of the user's own files, checked before they are used.

Files may be gzip-compressed (`.gz`) and are named by globs. Every file is read
once before training starts: a bad line stops the run with its file and number,
and the log gives the counts. Blank lines are skipped and counted.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import itertools
import os
from typing import Any
from typing import NamedTuple

from absl import logging
import numpy as np
import seqio
from synthesizer_mtf.tasks import lines as lines_lib
import tensorflow.compat.v2 as tf

Lines = lines_lib.Lines

_BLANK = r"[\s\v\p{Z}\x{1c}-\x{1f}\x{85}]*"  # What str.isspace() is true for.
_PYTHON_BLOCK = 1024  # Examples that Python hands to TensorFlow at a time.


class _Checked(NamedTuple):
  """What reading all of a file has told."""
  examples: int
  bytes: int
  odd_gzip: bool


class FilesDataSource(seqio.FileDataSource):
  """Examples from the lines of files that gin or the environment names."""

  def __init__(
      self, choose_fn: Callable[[str], tuple[str, Sequence[str]]],
      parse_fn: Callable[[lines_lib.Lines], Iterable[tuple[str, ...]]],
      features: Sequence[str],
      read_fn: Callable[[tf.Tensor], tf.data.Dataset] | None = None,
      needs_python: Callable[[str], bool] = lambda path: False,
      splits: Sequence[str] = ("train", "validation"),
      made_with: Callable[[], dict[str, Any]] = dict):
    """Makes a source.

    Args:
      choose_fn: a function from a split to (what names its files, globs);
        called at each use, since gin is parsed after tasks are registered.
      parse_fn: a function from the `Lines` of a file to an iterable over its
        examples, tuples of strings; it raises `lines.error(...)` for a bad line.
      features: the names of these strings.
      read_fn: a function from paths, <string>[files], to a tf.data.Dataset of
        dicts from feature to string, the same examples read by TensorFlow alone.
        So reading does not need Python where the hosts of a pod do it. None:
        Python reads all files, by `parse_fn`.
      needs_python: whether `read_fn` cannot read the file of this path.
      splits: names of the splits.
      made_with: a function that returns what else examples depend on, a dict of
        what can be JSON, for caches to be compared with.
    """
    self.made_with = made_with
    self._choose_fn = choose_fn
    self._parse_fn = parse_fn
    self._features = tuple(features)
    self._read_fn = read_fn
    self._needs_python = needs_python
    self._checked = {}
    super().__init__(
        read_file_fn=read_fn, split_to_filepattern=dict.fromkeys(splits, ()))

  def list_shards(self, split: str) -> list[str]:
    """Returns the paths of a split's files, sorted, all of them checked."""
    paths = self._paths(split)
    examples = sum(self._check(path).examples for path in paths)
    logging.info("%s: %d examples in %d files.", split, examples, len(paths))
    return paths

  def num_input_examples(self, split: str) -> int:
    return sum(self._check(path).examples for path in self._paths(split))

  def get_dataset(
      self, split: str = "train", shuffle: bool = True, seed: int | None = None,
      shard_info: seqio.ShardInfo | None = None, **unused_kwargs: Any,
  ) -> tf.data.Dataset:
    """Returns a tf.data.Dataset of dicts from feature to <string>[]."""
    paths = self.list_shards(split)
    in_python = [self._is_for_python(path) for path in paths]
    files = tf.data.Dataset.from_tensor_slices((paths, in_python))
    if shard_info:
      files = files.shard(shard_info.num_shards, shard_info.index)
    if shuffle:
      files = files.shuffle(len(paths), seed=seed)
    return files.interleave(
        self._file_reader(any(in_python)), cycle_length=self._cycle_length,
        block_length=self._block_length, num_parallel_calls=tf.data.AUTOTUNE)

  def _paths(self, split):
    """Returns the sorted paths of a split's files, which all exist."""
    origin, globs = self._choose_fn(split)
    return find_files(origin, globs)

  def _check(self, path):
    """Returns a `_Checked` of a file, having read all of it once."""
    stat = tf.io.gfile.stat(path)
    key = (path, stat.length, stat.mtime_nsec)
    if key not in self._checked:
      self._checked[key] = self._read_through(path)
    return self._checked[key]

  def _read_through(self, path):
    """Reads a file; raises ValueError with the number of the first bad line."""
    lines = lines_lib.Lines(path)
    examples = sum(1 for _ in self._parse_fn(lines))
    logging.info("%s: %d examples, %d blank lines skipped, longest line %d "
                 "characters.", path, examples, lines.blank, lines.longest)
    return _Checked(examples, lines.bytes, lines.odd_gzip)

  def _is_for_python(self, path):
    return (self._read_fn is None or self._needs_python(path) or
            self._check(path).odd_gzip)

  def _file_reader(self, needs_python):
    """Returns a function from (path, whether Python reads it) to a Dataset."""
    def read(path, in_python):
      if self._read_fn is None:
        return self._read_in_python([path])
      examples = self._read_fn(tf.boolean_mask([path], [~in_python]))
      if needs_python:
        examples = examples.concatenate(self._read_in_python(
            tf.boolean_mask([path], [in_python])))
      return examples

    return read

  def _read_in_python(self, paths):
    """Reads by what has checked the files, in the process of the trainer only.

    Where hosts of a pod read the data, cache the task first
    (`seqio_cache_tasks`).

    Args:
      paths: <string>[files].
    """
    def blocks(paths):
      for path in paths:
        rows = iter(self._parse_fn(lines_lib.Lines(path.decode("utf-8"))))
        while block := list(itertools.islice(rows, _PYTHON_BLOCK)):
          yield tuple(np.array([text.encode("utf-8") for text in column], object)
                      for column in zip(*block))

    signature = tuple(tf.TensorSpec([None], tf.string) for _ in self._features)
    return tf.data.Dataset.from_generator(
        blocks, args=(paths,), output_signature=signature).flat_map(
            lambda *columns: tf.data.Dataset.from_tensor_slices(
                dict(zip(self._features, columns))))


def read_lines(paths: tf.Tensor) -> tf.data.Dataset:
  """Reads what `Lines` yields, in TensorFlow alone.

  Args:
    paths: <string>[files], whose gzip members, if any, are not empty.

  Returns:
    a tf.data.Dataset of <string>[].
  """
  is_gzip = tf.strings.regex_full_match(paths, r".*\.gz")
  compression = tf.where(tf.reduce_any(is_gzip), "GZIP", "")
  lines = tf.data.TextLineDataset(paths, compression_type=compression)
  lines = lines.map(
      lambda line: tf.strings.regex_replace(line, f"^{lines_lib.BOM}", ""))
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
    found = _matches(pattern)
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


def _matches(pattern):
  """Returns the files of a glob, or the file that has it as its name."""
  try:
    if tf.io.gfile.exists(pattern):
      return [pattern]
    return tf.io.gfile.glob(pattern)
  except tf.errors.OpError:
    return []


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
