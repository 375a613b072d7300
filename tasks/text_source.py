"""A seqio source of the user's own files, checked before they are used.

Files may be gzip-compressed (`.gz`) and are named by globs. Every file is read once
before training starts. A bad line stops the run, and the error names its file and line.
The log gives the numbers of examples and of blank lines, which are skipped.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import itertools
import os
from typing import Any

from absl import logging
import gin
import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import records
from synthesizer_mtf.trainer.data import data_record
import tensorflow.compat.v2 as tf

Lines = lines_lib.Lines

_BLANK = r"[\s\v\p{Z}\x{1c}-\x{1f}\x{85}]*"  # The characters of str.isspace().
_SHUFFLE_BYTES = 512 << 20  # The most that a buffer for shuffling takes.
_OVERHEAD_BYTES = 250  # The overhead of an example in TensorFlow's buffer.
_LONG = 500_000  # Characters of a line; SentencePiece needs seconds for more.
_READ_BYTES = 1 << 18  # Read at a time, as in TensorFlow's own class.
_BLOCK = 1024  # Lines at a time. TensorFlow takes as long for a block as for a line.


class FilesDataSource(seqio.FileDataSource):
  """Examples from the lines of files that gin or the environment names.

  Each format is a subclass, whose `parse` checks the files and reads them, in the
  process of the trainer. Where hosts of a pod read the data, cache the task first
  (`seqio_cache_tasks`), unless the files are plain and the subclass has `of_lines`.

  Attributes:
    features: the names of the strings that make an example.
  """
  features: Sequence[str] = ("inputs", "targets")

  def __init__(self, splits: Sequence[str] = ("train", "validation", "test"),
               scope: str | None = None) -> None:
    """Makes a source of the files that gin binds in a scope; gin is parsed later."""
    self.scope = scope
    self._counted = {}
    super().__init__(
        read_file_fn=self.parse, split_to_filepattern=dict.fromkeys(splits, ()),
        performs_internal_shuffling=True)

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    """Returns (the parameter or variable, the globs) that name a split's files.

    Raises:
      ValueError: nothing names the files.
    """
    raise NotImplementedError

  def parse(self, lines: lines_lib.Lines) -> Iterable[tuple[str, ...]]:
    """Yields the examples of a file.

    Raises:
      ValueError: a line is bad. `lines.error` makes the exception.
    """
    raise NotImplementedError

  def reader(
      self, paths: Sequence[str], block: int,
  ) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns a function that reads one of a split's files.

    Args:
      paths: all files of the split.
      block: how many examples TensorFlow gets at a time.

    Returns:
      a function from a path, <string>[], to a tf.data.Dataset of
      <string>[examples, features].
    """
    is_plain = not any(
        path.endswith(".gz") or self.has_fields(path) for path in paths)
    if is_plain and (of_lines := self.of_lines()):
      return lambda path: read_lines(path, block).map(of_lines)

    def blocks(path):
      rows = iter(self.parse(lines_lib.Lines(path.decode("utf-8"))))
      while some := list(itertools.islice(rows, block)):
        yield np.array([[text.encode("utf-8") for text in row] for row in some],
                       object)

    return lambda path: tf.data.Dataset.from_generator(
        blocks, args=(path,),
        output_signature=tf.TensorSpec([None, len(self.features)], tf.string))

  def of_lines(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns a function of TensorFlow from plain lines <string>[examples] to examples
    <string>[examples, features]; None if only `parse` can read them."""

  def has_fields(self, path: str) -> bool:
    """Returns whether a file has named fields, by its name."""
    return records.has_fields(path)

  def made_with(self) -> dict[str, Any]:
    """Returns what else the examples depend on, for the record of a cache."""
    return {}

  def scoped(self, scope: str) -> "FilesDataSource":
    """Returns a source of the files that gin binds in a scope."""
    return type(self)(tuple(self._splits), scope)

  def bound(self, function: Callable[[], Any]) -> Any:
    """Calls a function that gin configures, in the scope of this source."""
    with gin.config_scope(self.scope or gin.current_scope()):
      return function()

  @property
  def splits(self) -> Sequence[str]:
    """The splits whose files are named, or all splits if no files are named."""
    return [split for split in self._splits if self._is_named(split)] or self._splits

  def check_split(self, split: str) -> None:
    """Raises a ValueError if the files of a split are not named."""
    if split in self._splits:
      self.files(split)

  def file_names(self, split: str) -> list[str]:
    """Returns the names of a split's files or globs, without folders, for messages."""
    globs = self.files(split)[1] if self._is_named(split) else []
    return [os.path.basename(pattern) for pattern in globs]

  def list_shards(self, split: str) -> list[str]:
    """Returns the sorted paths of a split's files, after checking all of them."""
    paths = self._paths(split)
    count, _ = self._count(paths)
    if len(paths) > 1:  # Of a single one, reading has said so.
      logging.info("%s: %d examples in %d files.", split, count, len(paths))
    return paths

  def num_input_examples(self, split: str) -> int:
    return self._count(self._paths(split))[0]

  def get_dataset(
      self, split: str = "train", shuffle: bool = True, seed: int | None = None,
      shard_info: seqio.ShardInfo | None = None, **unused_kwargs: Any,
  ) -> tf.data.Dataset:
    """Returns a tf.data.Dataset of dicts from feature to <string>[].

    With `shuffle`, each pass has each example once, in an order of its own. The seed
    decides the order of all passes.
    """
    paths = self.list_shards(split)
    files = tf.data.Dataset.range(len(paths))
    if shard_info:
      files = files.shard(shard_info.num_shards, shard_info.index)
    if shuffle:
      files = files.shuffle(len(paths), seed=seed)
    read = self.reader(paths, _BLOCK if shuffle else self._block_length)
    made_with = {"files": type(self).__name__, **self.made_with()}
    rows = files.interleave(
        tf.autograph.experimental.do_not_convert(
            lambda i: read(data_record.name_files(paths, made_with)[i])),
        cycle_length=self._cycle_length, block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    if shuffle:
      rows = rows.shuffle(self._buffer_size(split, paths), seed=seed)
    return rows.map(
        lambda row: dict(zip(self.features, tf.unstack(row, len(self.features)))),
        num_parallel_calls=tf.data.AUTOTUNE)

  def _buffer_size(self, split, paths):
    """Returns the number of examples in the shuffle buffer: all, if memory allows."""
    examples, size = self._count(paths)
    size += examples * _OVERHEAD_BYTES
    if size <= _SHUFFLE_BYTES:
      return examples
    window = max(1, examples * _SHUFFLE_BYTES // size)
    logging.warning(
        "%s: the %d examples take more memory than there is for shuffling; each is "
        "drawn from the next %d of up to %d files that are read side by side. Where "
        "these are sorted, cut them into more files, as by split -n l/64.", split,
        examples, window, self._cycle_length)
    return window

  def _is_named(self, split):
    try:
      self.files(split)
    except ValueError:
      return False
    return True

  def _paths(self, split):
    """Returns the sorted paths of a split's files, after checking that all exist."""
    return find_files(*self.files(split))

  def _count(self, paths):
    """Returns (examples, bytes) of files; reads each file once in each way."""
    counts, way = [], repr(self.made_with())
    for path in paths:
      key = (path, lines_lib.version(path), way)
      if key not in self._counted:
        self._counted[key] = self._read_through(path)
      counts.append(self._counted[key])
    return tuple(map(sum, zip(*counts)))

  def _read_through(self, path):
    """Returns (examples, bytes) of a file; raises ValueError for the first bad line."""
    lines = lines_lib.Lines(path)
    examples = characters = 0
    for example in self.parse(lines):
      examples, characters = examples + 1, characters + sum(map(len, example))
    logging.info("%s: %d examples, %d blank lines skipped, longest line %d "
                 "characters.", path, examples, lines.blank, lines.longest)
    if lines.longest > _LONG:
      logging.warning("Its longest line is one example, and may take minutes to cut "
                      "into tokens; put documents or paragraphs on lines of their own.")
    return examples, max(lines.bytes, characters)


def read_lines(path: tf.Tensor, block: int) -> tf.data.Dataset:
  """Reads the lines that `Lines` yields of a plain file, with TensorFlow alone.

  The hosts of a pod can do this; the trainer's Python does not run there.

  Args:
    path: <string>[].
    block: how many lines to read at a time.

  Returns:
    a tf.data.Dataset of <string>[lines].
  """
  def without_blanks(lines):
    lines = tf.strings.regex_replace(lines, f"^{lines_lib.BOM}", "")
    return tf.boolean_mask(lines, ~tf.strings.regex_full_match(lines, _BLANK))

  # TensorFlow's own class keeps the path in the state of its iterator.
  data = tf.data.experimental.from_variant(
      tf.raw_ops.TextLineDataset(
          filenames=[path], compression_type="", buffer_size=_READ_BYTES),
      tf.TensorSpec([], tf.string))
  return data.batch(block).map(without_blanks)


def find_files(origin: str, globs: Iterable[str]) -> list[str]:
  """Returns the sorted paths of all files that match.

  Args:
    origin: the parameter or variable that gives the globs, for the message.
    globs: an iterable of strings.

  Raises:
    ValueError: a glob matches no file, or matches a folder.
  """
  paths = set()
  for pattern in globs:
    matches = _matches(pattern)
    if not matches:
      where = "" if os.path.isabs(pattern) or "://" in pattern else (
          f", neither beside the gin file nor in {os.getcwd()!r}")
      raise checks.Error(
          f"{origin} is {pattern!r}, but there is no such file{where}; give paths "
          "or globs of files that exist.")
    paths.update(matches)
  for path in sorted(paths):
    checks.check_regular_file(origin, path)
    if tf.io.gfile.isdir(path):
      raise checks.Error(f"{origin} names {path!r}, which is a folder; name its "
                         f"files, as in {os.path.join(path, '*.txt')!r}.")
  return sorted(paths)


def _matches(pattern):
  """Returns the files that match a glob, or the file with exactly this name."""
  try:
    if tf.io.gfile.exists(pattern):
      return [pattern]
    return tf.io.gfile.glob(pattern)
  except tf.errors.OpError:
    return []


def chosen_globs(
    parameter: str, variable: str, value: str | Sequence[str] | None,
) -> tuple[str, Sequence[str]]:
  """Returns (the parameter or variable that names the files, a list of globs).

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
    raise checks.Error(f"{origin} is {value or None!r}; set it to the path, "
                       "the glob or a list of globs of your files.")
  return origin, [*map(os.path.expanduser, globs)]


def chosen_folder(parameter: str, variable: str, value: str | None,
                  files: str) -> tuple[str, str]:
  """Returns (the parameter or variable that names a folder, its path).

  Args:
    parameter: the name of the gin parameter.
    variable: the environment variable that counts when `value` is None.
    value: what gin binds.
    files: what the folder holds, for messages.

  Raises:
    ValueError: neither names one folder that exists.
  """
  origin, folders = chosen_globs(parameter, variable, value)
  if len(folders) != 1 or not tf.io.gfile.isdir(folders[0]):
    raise checks.Error(f"{origin} is {', '.join(folders)!r}, which is not a folder; "
                       f"name the one folder with the files of {files}.")
  return origin, folders[0].rstrip("/")


def chosen_file(parameter: str, variable: str, value: str | None, files: str, name: str,
                remedy: str = "name the folder that has it"
                ) -> tuple[str, Sequence[str]]:
  """Returns (the parameter or variable that names a folder, [the path of a file]).

  The file may have the additional ending ".gz". The arguments are those of
  `chosen_folder`, the name of the file, and what to do if it is missing.

  Raises:
    ValueError: there is no such folder, or no such file in it.
  """
  origin, folder = chosen_folder(parameter, variable, value, files)
  for path in (f"{folder}/{name}", f"{folder}/{name}.gz"):
    if tf.io.gfile.exists(path):
      return origin, [path]
  raise checks.Error(f"{origin} is {folder!r}, which has no {name!r}; put it there, or "
                     f"{remedy}.")
