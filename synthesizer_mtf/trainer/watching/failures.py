"""What a run says when a checkpoint cannot be read or written, or memory ends."""

from collections.abc import Iterator
import contextlib
import errno
import os
import re

from synthesizer_mtf import checks
from synthesizer_mtf.runtime import memory
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
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
      complete.check(path, checksums=True)
    except complete.DamagedError as damage:
      raise checks.Error(complete.explain_damage(path, damage)) from error
    raise


@contextlib.contextmanager
def explained_memory() -> Iterator[None]:
  """Reports devices of JAX that have not enough memory."""
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    if said := re.search(f"{memory.OutOfMemory.__name__}: (.*)", error.message):
      raise checks.Error(said[1]) from error
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
    model_folder.remove_partial(model_dir)
    raise TrainingStopped(
        f"{what} could not be written in {model_dir}: {reason[0]}. "
        f"{after_restart(model_dir)}, once there is room and permission.") from error


def after_restart(model_dir: str) -> str:
  """Says where a restart of a training in this folder continues."""
  led = branches.branch(model_dir)
  if not led:
    return "There is no checkpoint yet: training begins at step 0"
  return f"Training continues from {os.path.basename(led[-1])}"
