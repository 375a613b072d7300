"""Writes the settings and scores of a run for TensorBoard's HPARAMS tab."""

import ast
from collections.abc import Iterable
import os
import time

from synthesizer_mtf.tools.experiments import runs
import tensorflow.compat.v1 as tf

try:
  from tensorboard.plugins.hparams import api
  from tensorboard.plugins.hparams import api_pb2
  from tensorboard.plugins.hparams import summary
  from tensorboard.plugins.scalar import summary_v2 as scalar
except ImportError:  # Newer versions of TensorFlow do not install TensorBoard.
  api = None

_SUFFIX = ".hparams"


def write(run: runs.Run, gin_params: Iterable[str]) -> None:
  """Writes an event file beside those of a finished run, once.

  The tags of scores are "scores/TASK/METRIC", unlike the tags of an evaluation. Without
  TensorBoard nothing is written. A later call with TensorBoard then writes the file.

  Args:
    run: a run that is done.
    gin_params: gin bindings of the user, in addition to those of the run itself.
  """
  if api is None or list(run.model_dir.glob(f"events.out.tfevents.*{_SUFFIX}")):
    return
  unfinished = run.model_dir / f"unfinished{_SUFFIX}"
  with tf.io.TFRecordWriter(str(unfinished)) as records:
    for event in _events(run, gin_params):
      records.write(event.SerializeToString())
  name = f"events.out.tfevents.{int(time.time()):010d}{_SUFFIX}"
  os.replace(unfinished, run.model_dir / name)


def _events(run, gin_params):
  now = time.time()
  yield tf.Event(wall_time=now, file_version="brain.Event:2")
  protos = [api.hparams_pb(_hparams(run, gin_params),
                           trial_id=f"{run.name} on {run.task}"),
            *(scalar.scalar_pb(f"scores/{name.removeprefix('eval/')}", value)
              for name, value in run.scores().items()),
            summary.session_end_pb(api_pb2.STATUS_SUCCESS)]
  for step, proto in zip([0] + [run.evaluated[1]] * len(protos), protos):
    yield tf.Event(wall_time=now, step=step, summary=tf.Summary.FromString(
        proto.SerializeToString()))


def _hparams(run, gin_params):
  bindings = (param.partition("=") for param in gin_params)
  return {**{name.strip(): _value(text.strip()) for name, _, text in bindings},
          "row": run.row.name, "task": run.task, "seed": run.seed,
          "steps": run.step}


def _value(text):
  """Returns a number, boolean or string of gin itself; other values as gin's text."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
  return value if isinstance(value, int | float | str) else text
