"""MODEL_DIR/best: the best checkpoint, and what other modes need of a model's folder.

A process can be killed at any moment, so `copy` comes before the record, which names
the best step, and `settle` comes after it. Until then best/ holds the former best
checkpoint, too.
"""

import os

from absl import logging
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from synthesizer_mtf.trainer.watching import validation_record
import tensorflow.compat.v1 as tf


def _path(model_dir, step, name=complete.BEST):
  return os.path.join(model_dir, name, f"model.ckpt-{step}")


def holds(model_dir: str, step: int) -> bool:
  """Whether best/ has the whole checkpoint of a step.

  If the model's folder has this step, too, both have to be the same: an index has the
  checksums of all variables.
  """
  ours, copy = _path(model_dir, step, ""), _path(model_dir, step)
  return complete.is_whole(copy) and (
      not complete.is_whole(ours) or _index(ours) == _index(copy))


def _index(path):
  with tf.io.gfile.GFile(f"{path}.index", "rb") as f:
    return f.read()


def has_whole(model_dir: str, step: int) -> bool:
  """Whether best/ has a whole checkpoint of a step, of whatever training."""
  return complete.is_whole(_path(model_dir, step))


def copy(model_dir: str, step: int) -> None:
  """Copies a checkpoint and what belongs to it to best/, beside those that it holds."""
  folder = os.path.join(model_dir, complete.BEST)
  tf.io.gfile.makedirs(folder)
  if has_whole(model_dir, step) and not holds(model_dir, step):
    _say_what_goes(folder, step, step)
  _remove(folder, step)  # A training that was left may have had this step, too.
  names = [name for name in tf.io.gfile.listdir(model_dir)
           if name.startswith(f"model.ckpt-{step}.")]
  names.sort(key=_is_index)  # It says that the data are complete.
  for name in ["operative_config.gin", vocabulary_record.NAME, *names]:
    source = os.path.join(model_dir, name)
    if tf.io.gfile.exists(source):
      tf.io.gfile.copy(source, os.path.join(folder, name), overwrite=True)


def _is_index(name):
  return name.endswith(".index")


def settle(model_dir: str, step: int, worse: set[int], only: bool = False) -> None:
  """Makes best/ name a step, and removes others; the log names what it did not measure.

  The evaluations found the steps `worse` to be no better; with `only`, only these are
  removed.
  """
  folder = os.path.join(model_dir, complete.BEST)
  name = f"model.ckpt-{step}"
  state = tf.train.latest_checkpoint(folder)
  if state is None or os.path.basename(state) != name:
    model_folder.write_state(folder, [name])
  others = {complete.saved_step(path) for path in complete.find(folder)} - {step}
  for other in sorted(others & worse if only else others):
    if other not in worse:
      _say_what_goes(folder, step, other)
    _remove(folder, other)


def _say_what_goes(folder, step, other):
  logging.warning(
      "In %s step %d takes the place of step %d, which did not lead to it.", folder,
      step, other)


def _remove(folder, step):
  """Removes a checkpoint, first the file without which it counts as unfinished."""
  names = [name for name in tf.io.gfile.listdir(folder)
           if name.startswith(f"model.ckpt-{step}.")]
  for name in sorted(names, key=_is_index, reverse=True):
    tf.io.gfile.remove(os.path.join(folder, name))


def set_aside(model_dir: str) -> str | None:
  """Renames best/ to best.1/, or to the next number, with the record of its choice.

  It returns the path of that folder; None if there is no best/.
  """
  folder = os.path.join(model_dir, complete.BEST)
  if not tf.io.gfile.isdir(folder):
    return None
  record = os.path.join(model_dir, validation_record.NAME)
  tf.io.gfile.copy(
      record, os.path.join(folder, validation_record.NAME), overwrite=True)
  number = 1
  while tf.io.gfile.exists(f"{folder}.{number}"):
    number += 1
  tf.io.gfile.rename(folder, f"{folder}.{number}")
  return f"{folder}.{number}"
