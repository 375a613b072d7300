"""Describes the data of a training, to tell whether a restart reads the same.

A dataset has no other description than its operations in the graph. The record has a
digest of them, with their texts, numbers and shapes, and one of the contents of each
file that a text names. Seeds and the sizes of buffers may differ, as the saved state
includes them; so may options, of which the estimator adds some.

Sources of our own name their files by `name_files`. Their iterators hold no path, so a
folder with these files may move. Elsewhere the path counts, too.

Python functions, tables and other resources may read what nothing here can compare.
The record names them.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import itertools
import json
import os
from typing import Any
from typing import NamedTuple

import tensorflow.compat.v1 as tf

ITERATORS = "iterators"  # TensorFlow's name of the collection.
# Begins the first text of `name_files`, which only our sources write.
_OURS = b"synthesizer_mtf reads files: "
# The names of inputs that change no example, or that the state includes.
_FREE = ("seed", "seed2", "seed_generator", "buffer_size", "num_parallel_calls",
         "buffer_output_elements", "prefetch_output_elements")
# Texts that name resources, or that change no example.
_NAMES = ("container", "deterministic", "metadata", "shared_name", "token")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset")
_UNKNOWN = ("HashTableV2", "MutableHashTableV2", "VarHandleOp", "SqlDataset",
            "LoadDataset", "LoadDatasetV2", *_PYTHON)
_READERS = ("ReadFile", "TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2",
            "FixedLengthRecordDatasetV2", "CSVDataset", "CSVDatasetV2")
_LONGEST_PATH = 4096  # Bytes; longer texts name no file.
_WHOLE = 1 << 30  # The most bytes of all files that are read as a whole.
_PART = 1 << 16  # Otherwise, so many at the beginning and at the end of each.


class Record(NamedTuple):
  """What a training reads.

  Attributes:
    pipeline: a digest of operations, texts, numbers and shapes.
    parameters: how our sources read their files.
    files: pairs of the path of a file and a digest of its contents.
    unknown: names of operations whose data are not known.
    seed: the seed that gin binds; it may differ.
  """
  pipeline: str
  parameters: list[str]
  files: list[tuple[str, str]]
  unknown: list[str]
  seed: Any = None

  def to_json(self) -> bytes:
    return json.dumps(self._asdict()).encode()


def from_json(text: bytes) -> Record:
  """Returns the record that `Record.to_json` has written."""
  return Record(**json.loads(text))


def difference(then: Record, now: Record) -> str | None:
  """Says in what other data differ; None for the same data."""
  if then.parameters != now.parameters:
    pairs = itertools.zip_longest(then.parameters, now.parameters, fillvalue="nothing")
    return " and ".join(f"{new} instead of {old}" for old, new in pairs if old != new)
  if changed := changed_files(dict(then.files), dict(now.files)):
    return changed
  if [digest for _, digest in then.files] != [digest for _, digest in now.files]:
    return "the order of the files"
  return None if then.pipeline == now.pipeline else (
      "another task, split, length, batch size, rate or path")


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> str:
  """Says by digests which files differ; "" for none, or if files have only moved."""
  changed = sorted([
      *(f"{path} has changed" if path in before else f"{path} is new"
        for path, digest in after.items() if before.get(path) != digest and (
            path in before or digest not in before.values())),
      *(f"{path} is missing" for path, digest in before.items()
        if path not in after and digest not in after.values())])
  more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
  return f"{', '.join(changed[:3])}{more}"


def name_files(paths: Sequence[str], made_with: Mapping[str, Any]) -> tf.Tensor:
  """The paths of files <string>[files], in a form that a record recognizes.

  Call it in the function that reads a file, so that no iterator holds a path.
  `made_with` says how it is read, in values that JSON or `str` can write.
  """
  how = json.dumps(made_with, sort_keys=True, default=str)
  return tf.constant([_OURS.decode() + how, *paths])[1:]


def describe(iterators: list[tf.Tensor], seed: Any = None) -> Record:
  """Describes what initializable iterators of the default graph read."""
  makers = [op.name for i in iterators for op in i.consumers()
            if op.type == "MakeIterator"]
  shapes = [str(i.op.node_def.attr["output_shapes"]).encode() for i in iterators]
  walk = _Walk(tf.get_default_graph())
  # Sets of features make some pipelines in another order in each process.
  parts = sorted([*shapes, *walk.contents(makers)])
  known = digests(path for _, paths in walk.files for path in paths)
  files = sorted((how, [(known[path], path) for path in paths])
                 for how, paths in walk.files)
  return Record(
      hashlib.sha256(b"\0".join(parts)).hexdigest(), [how for how, _ in files if how],
      [(path, digest) for _, some in files for digest, path in some],
      sorted(walk.unknown if files else walk.unknown | walk.readers), seed)


class _Walk:
  """Walks through the operations that data depend on, and notes what they read."""

  def __init__(self, graph):
    definition = graph.as_graph_def()
    self._graph = graph
    self._nodes = {node.name: node for node in definition.node}
    self._functions = {f.signature.name: f for f in definition.library.function}
    self._seen = set()
    self.files = []  # Pairs of (how our source reads them or "", paths).
    self.unknown, self.readers = set(), set()

  def contents(self, names: Iterable[str]) -> Iterator[bytes]:
    """Yields the operations, texts and numbers that operations of the graph need."""
    return self._contents(list(self._needed(self._nodes, names)), False)

  def _needed(self, nodes, names):
    """Yields operations and those that they need."""
    pending, seen = list(names), set()
    while pending:
      name = pending.pop()
      if name in nodes and name not in seen:
        seen.add(name)
        yield nodes[name]
        pending += [source.lstrip("^").partition(":")[0]
                    for argument, source in self._inputs(nodes[name])
                    if argument not in _FREE]

  def _inputs(self, node):
    """Yields (the name of the argument, the name of the input) of an operation."""
    sources = iter(node.input)
    for argument in self._graph.op_def_for_type(node.op).input_arg:
      count = (node.attr[argument.number_attr].i if argument.number_attr else
               len(node.attr[argument.type_list_attr].list.type)
               if argument.type_list_attr else 1)
      for source in itertools.islice(sources, count):
        yield argument.name, source
    for source in sources:
      yield "", source

  def _contents(self, nodes, is_ours):
    is_ours = is_ours or any(map(_is_ours, nodes))
    for node in nodes:
      if node.op == "OptionsDataset":
        continue
      yield node.op.encode()
      if node.op in _UNKNOWN and not (is_ours and node.op in _PYTHON):
        self.unknown.add(node.op)
      if node.op in _READERS:
        self.readers.add(node.op)
      called = [node.op]
      for name, value in node.attr.items():
        if value.HasField("tensor"):
          yield from self._values(value.tensor)
        if name not in _NAMES:
          yield value.s
        called += [function.name for function in [value.func, *value.list.func]]
      for name in called:
        yield from self._function(name, is_ours)

  def _function(self, name, is_ours):
    if name not in self._functions or name in self._seen:
      return
    self._seen.add(name)
    function = self._functions[name]
    results = [source.partition(":")[0] for source in
               [*function.ret.values(), *function.control_ret.values()]]
    nodes = {node.name: node for node in function.node_def}
    yield from self._contents(list(self._needed(nodes, results)), is_ours)

  def _values(self, tensor):
    """Yields the contents of a constant, without the paths of our own files."""
    if not tensor.string_val:
      yield tensor.SerializeToString(deterministic=True)
      return
    texts = list(tensor.string_val)
    if texts[0].startswith(_OURS):
      how = texts[0].removeprefix(_OURS).decode()
      self.files.append((how, [path.decode() for path in texts[1:]]))
      return
    yield from texts
    if paths := [path for text in texts for path in existing(text)]:
      self.files.append(("", paths))


def _is_ours(node):
  texts = list(node.attr["value"].tensor.string_val)
  return node.op == "Const" and any(text.startswith(_OURS) for text in texts[:1])


def existing(text: str | bytes) -> list[str]:
  """The files that a text names, as a path or as a pattern."""
  text = text.encode() if isinstance(text, str) else text
  if not 0 < len(text) < _LONGEST_PATH or b"\n" in text or b"\0" in text:
    return []
  try:
    path = text.decode()
    paths = tf.io.gfile.glob(path) if set("*?[") & set(path) and "/" in path else [path]
    return [path for path in sorted(paths) if _is_file(path)]
  except (UnicodeDecodeError, tf.errors.OpError):
    return []


def _is_file(path):
  if "://" not in path:
    return os.path.isfile(path)  # Pipes would wait for a writer.
  return tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)


def digests(paths: Iterable[str]) -> dict[str, str]:
  """Digests of files by their paths.

  If there are many bytes, they are not all read, and the times of the last changes
  count.
  """
  stats = {path: tf.io.gfile.stat(path) for path in paths}
  is_whole = sum(stat.length for stat in stats.values()) <= _WHOLE
  return {path: _digest(path, stat, is_whole) for path, stat in stats.items()}


def _digest(path, stat, is_whole):
  digest = hashlib.sha256()
  with tf.io.gfile.GFile(path, "rb") as f:
    if is_whole:
      while block := f.read(1 << 20):
        digest.update(block)
    else:
      digest.update(f"{stat.length} {stat.mtime_nsec}".encode() + f.read(_PART))
      f.seek(max(0, stat.length - _PART))
      digest.update(f.read(_PART))
  return digest.hexdigest()
