"""Ends training at NaN, and if a checkpoint cannot be read or written."""

from collections.abc import Iterator
import contextlib
import errno
import functools
import os
import re

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import patches
from synthesizer_mtf.trainer.checkpoints import checkpoints
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.watching import data_position
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf

# The operating system's reasons why a file cannot be written.
_UNWRITTEN = (*messages.UNWRITTEN, *map(os.strerror, (errno.EACCES, errno.EIO)))


class TrainingStopped(checks.Error):
  """Training cannot continue; the message says why, and what to do."""


@contextlib.contextmanager
def explained_damage(path: str | None) -> Iterator[None]:
  """Reports damage in a checkpoint that TensorFlow fails to restore.

  TensorFlow raises the same errors for damaged data, and for another checkpoint. So the
  whole checkpoint is read again, unless training has removed it since.
  """
  try:
    yield
  except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
    if path is None or not tf.io.gfile.exists(f"{path}.index"):
      raise
    try:
      checkpoints.check(path, checksums=True)
    except checkpoints.DamagedError as damage:
      raise checks.Error(checkpoints.explain_damage(path, damage)) from error
    raise


@contextlib.contextmanager
def explained_writes(model_dir: str, what: str = "a file") -> Iterator[None]:
  """Reports files that cannot be written, and where training will resume."""
  try:
    yield
  # A writer of events raises the last two.
  except (tf.errors.OpError, RuntimeError, IndexError) as error:
    text = getattr(error, "message", None) or str(error)
    reason = re.search("|".join(_UNWRITTEN), text)
    if not reason or model_dir not in text:
      raise
    checkpoints.remove_partial(model_dir)
    raise TrainingStopped(
        f"{what} could not be written in {model_dir}: {reason[0]}. "
        f"{_after_restart(model_dir)}, once there is room and permission.") from error


def _after_restart(model_dir):
  """A sentence about what a restart does."""
  found = checkpoints.branch(model_dir)
  if not found:
    return "There is no checkpoint yet: training begins at step 0"
  return f"Training continues from {os.path.basename(found[-1])}"


class CheckVariables(tf.train.SessionRunHook):
  """Compares the model with a checkpoint before restoring the checkpoint."""

  def __init__(self, path: str | None,
               optimizer: optimizer_slots.Optimizer | None = None):
    """Declares the checkpoint, None for no comparison, and the optimizer."""
    self._path, self._optimizer = path, optimizer

  def begin(self) -> None:
    if self._path:
      checkpoints.check_variables(
          self._path, tf.global_variables(), self._optimizer)


class GuardSaves(tf.train.SessionRunHook):
  """Stops before NaN reaches a checkpoint, and if no checkpoint can be written.

  The estimator has a hook for NaN losses. But it runs after the saver's hook, which may
  already have written the result of the step. Besides, a NaN gradient shows in the
  variables one step before it shows in the loss.

  TensorFlow's error for a file that is too large looks like the end of the data.
  Without this hook, training would end there without an error.
  """

  def __init__(self, model_dir: str,
               position: data_position.DataPosition | None = None):
    """Declares the folder, and the data position to save with each checkpoint."""
    self._model_dir = model_dir
    self._position = position

  def begin(self) -> None:
    self._step = tf.train.get_global_step()
    # The estimator adds its loss to this collection.
    self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]
    # These operations return their input without copying it.
    self._check = tf.group([
        tf.debugging.check_numerics(v, v.op.name)
        for v in tf.global_variables() if v.dtype.base_dtype.is_floating])
    saver, = tf.get_collection(tf.GraphKeys.SAVERS)
    patches.wrap("save", saver, self._guarded)

  def before_run(
      self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
    return tf.train.SessionRunArgs(self._loss)

  def after_run(self, run_context: tf.train.SessionRunContext,
                run_values: tf.train.SessionRunValues) -> None:
    if np.isnan(run_values.results):
      self._stop("the loss is NaN", run_context.session)

  def _guarded(self, save):
    @functools.wraps(save)
    def wrapped(session, path, global_step=None, **kwargs):
      full = f"{path}-{global_step}"
      try:
        with explained_writes(self._model_dir, os.path.basename(full)):
          self._check_variables(session)
          checkpoints.will_save(self._model_dir, global_step)
          if self._position:
            self._position.save(session, global_step)
          saved = save(session, path, global_step=global_step, **kwargs)
      except TrainingStopped:
        checkpoints.remove_without_index(full)
        raise
      finally:
        if self._position:
          self._position.remove_old()
      return saved

    return wrapped

  def _check_variables(self, session):
    try:
      session.run(self._check)
    except tf.errors.InvalidArgumentError as error:
      name = error.op.get_attr("message").decode()
      self._stop(f"the variable {name} is NaN or infinite", session)

  def _stop(self, what, session):
    step = session.run(self._step)
    raise TrainingStopped(
        f"{what} after step {step}, and training has stopped without a new "
        f"checkpoint. {_after_restart(self._model_dir)}: try a lower learning rate or "
        "a longer warm-up, or an older checkpoint, and look for bad examples.")
