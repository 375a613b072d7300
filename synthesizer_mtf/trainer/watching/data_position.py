"""Restarts that resume the data at the position of the checkpoint.

Next to the last checkpoints model.ckpt-STEP, the state of the input pipeline is saved
as input.ckpt-STEP: the examples read so far, the contents of buffers for shuffling,
packing and batching, and the state of the random numbers. A restart from this
checkpoint restores the state, with or without a seed. The state is saved before the
checkpoint, so every complete checkpoint has one.

Mesh TensorFlow has two parameters for the same purpose. `utils.run.skip_seen_data`
reads and prepares all earlier examples again. That takes as long as the first time, and
is right only for runs with a seed. `utils.run.checkpoint_input_pipeline` saves the same
state as this module, but restores the newest state, which after a kill may belong to
another step. If one of these parameters is bound to True, it replaces this module.

TPUs read examples ahead, so this module does nothing there.
"""

from collections.abc import Iterator
import contextlib
import os
import re

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.data import data_record
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import failures
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf

_FILE = re.compile(r"input\.ckpt-(\d+)\..*")
_RECORD = "record"
_SEED = "mesh_train_dataset_fn.seed"
_KEPT = 2  # The last two checkpoints, in case the last is damaged.
_IGNORE = 1  # Ignores external state, which hardly exists here.


@gin.configurable(module="synthesizer_mtf")
def synthesizer_data(resume: bool = True) -> bool:
  """Whether restarts resume the data at the position of the checkpoint.

  Args:
    resume: False starts the data from the beginning at each start. It has no effect if
      Mesh TensorFlow resumes the data.

  Raises:
    ValueError: resume is not a boolean.
  """
  checks.check_boolean("synthesizer_data.resume", resume)
  return resume and not any(
      gin_files.bound(f"utils.run.{name}", False) is True
      for name in ("skip_seen_data", "checkpoint_input_pipeline"))


class DataPosition(callbacks.Callback):
  """Saves and restores the position in the data."""

  def __init__(self) -> None:
    """Declares a training that has not begun."""
    self._is_restored = False
    self._write = None

  @contextlib.contextmanager
  def around(self, training: callbacks.Training) -> Iterator[None]:
    # Without a checkpoint, a step above 0 is that of another model's warm start.
    self._resumes = training.newest is not None
    try:
      yield
    except failures.TrainingStopped:
      _remove_old(training.model_dir)
      raise

  def on_graph(self, training: callbacks.Training) -> None:
    self._is_restored = False
    iterators = tf.get_collection(data_record.ITERATORS)
    if not iterators or not synthesizer_data():
      return
    self._record = data_record.describe(iterators, gin_files.bound(_SEED, None))
    self._path = tf.placeholder(tf.string, [], "input_state_path")
    names = [f"iterator_{i}" for i in range(len(iterators))]
    with tf.device(iterators[0].device):
      states = [tf.raw_ops.SerializeIterator(
          resource_handle=iterator, external_state_policy=_IGNORE)
                for iterator in iterators]
      self._write = tf.raw_ops.SaveV2(
          prefix=self._path, tensor_names=[_RECORD, *names],
          shape_and_slices=[""] * (1 + len(names)),
          tensors=[tf.constant(self._record.to_json()), *states])
      read = tf.raw_ops.RestoreV2(
          prefix=self._path, tensor_names=names,
          shape_and_slices=[""] * len(names), dtypes=[tf.variant] * len(names))
      self._read = tf.group([
          tf.raw_ops.DeserializeIterator(resource_handle=iterator, serialized=state)
          for iterator, state in zip(iterators, read)])

  def on_start(self, training: callbacks.Training) -> None:
    if self._write is not None:
      self._restore(training.session, training.model_dir, training.step)
      self._resumes = True  # As a later session does.
    self._is_restored = True

  def on_saving(self, training: callbacks.Training, step: int) -> None:
    """Writes the position in the data; an error of writing it prevents the save."""
    if self._write is None or not self._is_restored:
      return
    path = _path(training.model_dir, step)
    try:
      training.session.run(self._write, {self._path: path})
    except tf.errors.OpError as error:
      model_folder.remove_without_index(path)
      if error.op is not None and error.op.name == self._write.name:
        raise  # The file cannot be written; otherwise, the state cannot be read.
      logging.warning(
          "The position in the data cannot be saved, so restarts read the data "
          "from the beginning: %s", messages.reason(error))
      self._write = None

  def on_checkpoint(self, training: callbacks.Training, step: int) -> None:
    _remove_old(training.model_dir)

  def _restore(self, session, model_dir, step):
    path = _path(model_dir, step)
    if not tf.io.gfile.exists(f"{path}.index"):
      if step and self._resumes and tf.io.gfile.exists(os.path.join(
          model_dir, f"model.ckpt-{step}.index")):
        logging.info(
            "%s is missing, so training reads the data from the beginning.", path)
      return
    saved = _saved_record(path)
    other = ("no record of them, as of older versions" if saved is None else
             data_record.difference(saved, self._record))
    if other:
      logging.warning("%s is of other data, lengths or batches (%s), so training reads "
                      "the data from the beginning.", path, other)
      return
    try:
      session.run(self._read, {self._path: path})
    except tf.errors.OpError as error:
      logging.warning("%s cannot be used, so training reads the data from the "
                      "beginning: %s", path, messages.reason(error))
    else:
      logging.info("The data continue from the position of step %d.", step)
      _say_what_is_not_compared(saved, self._record)


def _path(model_dir, step):
  return os.path.join(model_dir, f"input.ckpt-{step}")


def _remove_old(model_dir):
  """Removes the saved positions of all but the last checkpoints of a training.

  A shuffle buffer can be as large as a model.
  """
  kept = {complete.saved_step(path) for path in branches.branch(model_dir)[-_KEPT:]}
  for name in tf.io.gfile.listdir(model_dir):
    match = _FILE.fullmatch(name)
    if match and int(match[1]) not in kept:
      tf.io.gfile.remove(os.path.join(model_dir, name))


def _saved_record(path):
  """The record of a saved position; None if an older version has saved it."""
  reader = tf.train.load_checkpoint(path)
  if not reader.has_tensor(_RECORD):
    return None
  return data_record.from_json(reader.get_tensor(_RECORD))


def _say_what_is_not_compared(then, now):
  if then.seed != now.seed:
    logging.warning(
        "Their order is that of `%s` = %r, with which they began; to read them from "
        "the beginning in the order of %r, bind `synthesizer_data.resume = False`.",
        _SEED, then.seed, now.seed)
  if now.unknown:
    logging.warning(
        "They come from %s, whose contents cannot be compared; if these have changed, "
        "bind `synthesizer_data.resume = False`.", ", ".join(now.unknown))
