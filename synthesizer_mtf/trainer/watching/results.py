"""What trainings and evaluations write: scores and files."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
import re

import tensorflow.compat.v1 as tf

# The scores of each step, as {step: {task: {metric: score}}}.
Scores = dict[int, dict[str, dict[str, float]]]


@contextlib.contextmanager
def read(folder: str) -> Iterator[Scores]:
  """Yields the scores that T5 writes into a folder within a `with` block.

  T5 only writes them into an event file. The dict is filled at the end of the block.
  """
  scores: Scores = {}
  before = _state(folder, _EVENTS)
  yield scores
  for path in _new(folder, _EVENTS, before):
    for tag, step, value in scalars(path):
      kind, _, name = tag.partition("/")
      task, _, metric = name.partition("/")
      if kind == "eval":
        scores.setdefault(step, {}).setdefault(task, {})[metric] = value


def scalars(path: str) -> Iterator[tuple[str, int, float]]:
  """Yields (tag, step, value) from an event file.

  Raises:
    tf.errors.DataLossError: the rest is damaged, as in the file of a killed process.
  """
  for event in tf.train.summary_iterator(path):
    for value in event.summary.value:
      if value.HasField("simple_value"):
        yield value.tag, event.step, value.simple_value


def logged(folder: str) -> Iterator[tuple[str, int, float]]:
  """Yields (tag, step, value) from the event files of a folder, oldest first."""
  for path in sorted(tf.io.gfile.glob(os.path.join(folder, "events.out.tfevents.*"))):
    try:
      yield from scalars(path)
    except tf.errors.DataLossError:
      continue  # A process was stopped while writing this; the rest is complete.


@contextlib.contextmanager
def files(path: str) -> Iterator[list[str]]:
  """Yields a list; at the end of the block it has the files PATH-STEP that it wrote."""
  paths: list[str] = []
  folder, pattern = os.path.dirname(path), re.escape(os.path.basename(path)) + r"-\d+"
  before = _state(folder, pattern)
  yield paths
  paths += _new(folder, pattern, before)


_EVENTS = r"events\.out\.tfevents\..*"


def show(scores: Scores, data: Mapping[str, str]) -> None:
  """Prints a table: a line for each metric, a column for each step.

  The scores are those of `read`, and the data, by task, those of `data_checks.read_by`.
  """
  rows = sorted({(task, metric) for tasks in scores.values()
                 for task, metrics in tasks.items() for metric in metrics})
  lines = [["task", "data", "metric", *(f"step {step}" for step in scores)]] + [
      [task, data.get(task, ""), metric, *(
          _shown(tasks.get(task, {}).get(metric)) for tasks in scores.values())]
      for task, metric in rows]
  widths = [max(map(len, column)) for column in zip(*lines)]
  for line in lines if rows else []:
    print("  ".join([*map(str.ljust, line[:3], widths),
                     *map(str.rjust, line[3:], widths[3:])]))


def _shown(score):
  return "" if score is None else f"{score:.4g}"


def _state(folder, pattern):
  """The sizes and times of the files of a folder with names of a pattern, by path."""
  names = tf.io.gfile.listdir(folder or ".") if tf.io.gfile.isdir(
      folder or ".") else []
  paths = [os.path.join(folder, name) for name in names if re.fullmatch(pattern, name)]
  return {path: (stat.length, stat.mtime_nsec) for path in paths
          for stat in [tf.io.gfile.stat(path)]}


def _new(folder, pattern, before):
  """The paths of the files that are new or have changed, in the order of writing."""
  after = _state(folder, pattern)
  return sorted((path for path in after if after[path] != before.get(path)),
                key=lambda path: after[path][1])
