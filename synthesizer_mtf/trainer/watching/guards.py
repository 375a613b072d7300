"""Guards the folder of a model while it trains, and ends the training at NaN."""

from collections.abc import Iterator
import contextlib

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import saving
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import lock
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import failures
import tensorflow.compat.v1 as tf


class Folder(callbacks.Callback):
  """Locks the folder, and finds the checkpoint to continue from."""

  def __init__(self, vocabularies: vocabulary_record.Record | None = None):
    """Takes the record of the vocabularies, which the folder gets."""
    self._vocabularies = vocabularies

  @contextlib.contextmanager
  def around(self, training: callbacks.Training) -> Iterator[None]:
    folder = training.model_dir
    model_folder.check_folder(folder)
    with (lock.held(folder, checks.called("--model_dir")),
          failures.explained_writes(folder)):
      training.continue_from(branches.prepare(folder))
      if self._vocabularies is not None:
        vocabulary_record.write(folder, self._vocabularies)
      yield


class Guard(callbacks.Callback):
  """Stops before NaN reaches a checkpoint.

  The estimator has a hook for NaN losses. But it runs after the saver's hook, which may
  already have written the result of the step. Besides, a NaN gradient shows in the
  variables one step before it shows in the loss.
  """

  def on_graph(self, training: callbacks.Training) -> None:
    checked = tf.get_collection(saving.CHECKED)
    on_devices = {tensor.op.get_attr("message").decode() for tensor in checked}
    # These operations return their input without copying it.
    self._check = tf.group(checked + [
        tf.debugging.check_numerics(v, v.op.name) for v in tf.global_variables()
        if v.dtype.base_dtype.is_floating and v.op.name not in on_devices])

  def on_step(self, training: callbacks.Training) -> None:
    if np.isnan(training.known_loss):
      _stop(training, "the loss is NaN")

  def on_saving(self, training: callbacks.Training, step: int) -> None:
    if not np.isnan(training.known_loss) and np.isnan(training.loss):
      _stop(training, "the loss is NaN")
    try:
      training.session.run(self._check)
    except tf.errors.InvalidArgumentError as error:
      name = error.op.get_attr("message").decode()
      _stop(training, f"the variable {name} is NaN or infinite")
    branches.will_save(training.model_dir, step)


def _stop(training, what):
  raise failures.TrainingStopped(
      f"{what} after step {training.step}, and training has stopped without a new "
      f"checkpoint. {failures.after_restart(training.model_dir)}: try a lower learning "
      "rate or a longer warm-up, or an older checkpoint, and look for bad examples.")
