"""Mesh's and T5's iterators over checkpoints raise without those that are asked for."""

from collections.abc import Callable
from collections.abc import Iterator
import functools

from absl import logging
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import patches
from synthesizer_mtf.trainer.checkpoints import complete
from t5.models import utils as t5_utils
import tensorflow.compat.v1 as tf


def apply() -> None:
  """Makes Mesh and T5 use these iterators; a second call changes nothing."""
  patches.wrap("get_checkpoint_iterator", utils, _existing_checkpoints)
  patches.wrap("get_checkpoints_iterator", t5_utils, _existing_steps)


def _existing_checkpoints(
    get_checkpoint_iterator: Callable[..., Iterator[str]]
) -> Callable[..., Iterator[str]]:
  """Makes Mesh's function raise without the checkpoints that are asked for.

  Mesh TensorFlow takes the nearest steps instead, and for -1 and None reads the file
  `checkpoint` only, which copied folders lack. Of "all", incomplete ones are skipped.
  """
  @functools.wraps(get_checkpoint_iterator)
  def wrapped(checkpoint_step, model_dir, *args, **kwargs):
    if checkpoint_step is None and not args and not kwargs:
      return _following(model_dir)
    if checkpoint_step is not None and checkpoint_step != "all":
      return iter(complete.at_steps(
          model_dir, checkpoint_step,
          f"`{checks.called('utils.run.eval_checkpoint_step')}`"))
    return _complete(get_checkpoint_iterator(
        checkpoint_step, model_dir, *args, **kwargs), model_dir)

  return wrapped


def _existing_steps(get_checkpoints_iterator: Callable[..., Iterator[int]]
                    ) -> Callable[..., Iterator[int]]:
  """Makes T5's function, which returns steps, do as `_existing_checkpoints`."""
  @functools.wraps(get_checkpoints_iterator)
  def wrapped(checkpoint_steps, model_dir):
    if model_dir is None:
      return get_checkpoints_iterator(checkpoint_steps, model_dir)
    # T5 evaluates step 0, too.
    also_0 = {"skip_until": -1} if checkpoint_steps == "all" else {}
    return map(complete.saved_step, utils.get_checkpoint_iterator(
        checkpoint_steps, model_dir, **also_0))

  return wrapped


def _following(model_dir):
  """Yields the newest checkpoint, and then each one that a training adds, for ever."""
  first = complete.chosen(model_dir)
  if first is not None:
    yield first
  for path in tf.train.checkpoints_iterator(model_dir):
    if first is None or complete.saved_step(path) != complete.saved_step(first):
      yield path


def _complete(paths, model_dir):
  """Yields those paths that are of complete checkpoints; raises if there are none."""
  is_empty = True
  for path in paths:
    is_empty = False
    if tf.train.checkpoint_exists(path):
      yield path
    else:
      logging.warning("Skipping %s, which is not complete.", path)
  if is_empty:  # Mesh TensorFlow leaves out step 0, which is not trained.
    raise checks.Error(
        complete.nothing_in(model_dir) if not complete.find(model_dir) else
        f"`{checks.called('--model_dir')}` is {model_dir!r}, where only step 0 is "
        "saved, before any training; train first, or bind "
        "`utils.run.eval_checkpoint_step = 0`.")
