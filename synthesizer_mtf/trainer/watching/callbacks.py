"""One protocol for all that looks on while a model trains, or steps in.

A callback is a class with those methods of `Callback` that it needs. `running` makes
one hook of TensorFlow's sessions of a list of callbacks, and calls them in its order.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import os
from typing import Any

from synthesizer_mtf import patches
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.watching import failures
import tensorflow.compat.v1 as tf


class Training:
  """What callbacks know of the training that runs.

  Attributes:
    model_dir: the folder of the model.
    last_step: the step at which it is to end; None if this is unknown.
    newest: the path of the checkpoint that it continues from, or None.
    known_loss: the loss of the last step, or of the step before if the devices still
      compute.
    read_loss: a function that waits for the loss of the last step; None if it is known.
    session: the session, from `on_start` on.
    is_ending: whether no further step runs.
  """

  def __init__(self, model_dir: str, last_step: int | None = None,
               callbacks: Sequence["Callback"] = ()) -> None:
    """Declares a training that has not begun."""
    self.model_dir, self.last_step, self._callbacks = model_dir, last_step, callbacks
    self.newest: str | None = None
    self.known_loss = float("nan")
    self.read_loss: Callable[[], float] | None = None
    self.session: Any = None
    self.is_ending = False

  @property
  def step(self) -> int:
    """The number of steps that the model has been trained for; it asks the session."""
    return int(self.session.run(tf.train.get_global_step(self.session.graph)))

  @property
  def loss(self) -> float:
    """The loss of the last step, which was computed before its update."""
    return self.known_loss if self.read_loss is None else self.read_loss()

  def continue_from(self, checkpoint: str | None) -> None:
    """Declares the checkpoint that the training continues from."""
    self.newest = checkpoint

  def end(self) -> None:
    """Ends the training after the step that runs, with a checkpoint."""
    self.is_ending = True

  def tell(self, event: str, *args: Any) -> None:
    """Calls a method of all callbacks, by its name."""
    for callback in self._callbacks:
      getattr(callback, event)(self, *args)


class Callback:
  """What happens beside the steps of a training; each method may be overridden."""

  def around(self, training: Training) -> contextlib.AbstractContextManager[Any]:
    """The whole training runs within this `with` block, whichever way it ends."""
    del training
    return contextlib.nullcontext()

  def on_graph(self, training: Training) -> None:
    """The graph is built, and may still get operations; there is no session yet."""

  def on_start(self, training: Training) -> None:
    """The variables have their values, and the first step of a session follows."""

  def on_step(self, training: Training) -> None:
    """A step is done, and its checkpoint written, but for one of the training's end."""

  def on_saving(self, training: Training, step: int) -> None:
    """A checkpoint is about to be written; an exception prevents it."""

  def on_checkpoint(self, training: Training, step: int) -> None:
    """A checkpoint is written; not called for that from which the training starts."""

  def on_evaluation(self, training: Training, step: int,
                    results: Mapping[str, float]) -> None:
    """A checkpoint is evaluated; `results` has the values by "TASK/METRIC"."""

  def on_end(self, training: Training) -> None:
    """The last step is done, and its checkpoint is written."""


@contextlib.contextmanager
def running(training: Training, callbacks: Iterable[Callback]
            ) -> Iterator[tf.train.SessionRunHook]:
  """Yields the hook that calls the callbacks, within what they have around it."""
  with contextlib.ExitStack() as stack:
    for callback in callbacks:
      stack.enter_context(callback.around(training))
    yield _Hook(training)


class _Hook(tf.train.SessionRunHook):
  """Turns the calls of a session and of a saver into those of callbacks."""

  def __init__(self, training):
    self._training = training
    self._has_begun = False  # Whether there was a first step, in any session.
    self._is_started = False  # In this session.

  def begin(self):
    # The estimator adds its loss to this collection.
    self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]
    saver, = tf.get_collection(tf.GraphKeys.SAVERS)
    patches.wrap("save", saver, self._saving)
    self._training.tell("on_graph")

  def after_create_session(self, session, coord):
    self._is_started = False  # Other hooks may still initialize what theirs need.

  def before_run(self, run_context):
    if not self._is_started:
      self._training.session = run_context.session
      self._training.tell("on_start")
      self._has_begun = self._is_started = True
    return tf.train.SessionRunArgs(self._loss)

  def after_run(self, run_context, run_values):
    self._training.known_loss = run_values.results
    self._training.tell("on_step")
    if self._training.is_ending:
      run_context.request_stop()

  def end(self, session):
    self._training.session = session
    self._training.tell("on_end")

  def _saving(self, save):
    """Explains a failed save, which no listener of a saver's hook learns of.

    TensorFlow's error for a file that is too large looks like the end of the data, and
    training would end there without an error.
    """
    @functools.wraps(save)
    def wrapped(session, path, global_step=None, **kwargs):
      training, step, full = self._training, int(global_step), f"{path}-{global_step}"
      self._training.session = session
      try:
        with failures.explained_writes(training.model_dir, os.path.basename(full)):
          training.tell("on_saving", step)
          saved = save(session, path, global_step=global_step, **kwargs)
      except failures.TrainingStopped:
        model_folder.remove_without_index(full)
        raise
      if self._has_begun:
        training.tell("on_checkpoint", step)
      return saved

    return wrapped
