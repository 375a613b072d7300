"""Shows what is trained, where, and the progress.

The progress is a line in the log about every ten seconds; in a notebook it is one bar.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import datetime
import math
import sys
import time
from typing import Any

from absl import logging
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import unread
import tensorflow.compat.v1 as tf
from tqdm import auto as tqdm

_PERIOD = 10.  # Seconds between two lines.
_PERIOD_OF_BAR = .5  # Seconds until a bar changes; it takes no more lines.
_PRINTED = b"step, tf_loss"  # How the line of Mesh TensorFlow's `tf.Print` begins.


def period_of_bar() -> float:
  """Seconds until a bar changes; in a file, where each change is text, more."""
  changes = console.in_notebook() or sys.stderr.isatty()
  return _PERIOD_OF_BAR if changes else _PERIOD


def quiet(spec: tf.estimator.EstimatorSpec) -> tf.estimator.EstimatorSpec:
  """Removes the line that Mesh TensorFlow prints for each step with `tf.Print`.

  The specification of a training gets the loss from before it.
  """
  op = spec.loss.op
  if console.is_for_a_person() and op.type == "Print" and (
      op.get_attr("message") == _PRINTED):
    return spec._replace(loss=op.inputs[0])
  return spec


class Progress(callbacks.Callback):
  """Shows what is trained, and then step, loss and speed."""

  def __init__(self, data: str | None = None):
    """Takes the data and the batch size, in words; None for what gin binds."""
    self._data = data
    self._shown_at: tuple[int, float] | None = None  # A step and its time.
    self._bar: Any = None

  @contextlib.contextmanager
  def around(self, training: callbacks.Training) -> Iterator[None]:
    """Closes the bar of an interrupted training, too; others would go below it."""
    try:
      yield
    finally:
      if self._bar is not None:
        self._bar.close()

  def on_graph(self, training: callbacks.Training) -> None:
    logging.info(
        "Training %s, %s parameters%s, in %s.",
        attentions() or "a model with the attention of its gin file",
        f"{_parameters(tf.trainable_variables()):,}",
        _bound_data() if self._data is None else self._data, training.model_dir)

  def on_start(self, training: callbacks.Training) -> None:
    if step := training.step:
      logging.info("Training continues from step %d.", step)
    if self._bar is None and console.in_notebook() and console.is_for_a_person():
      self._bar = tqdm.tqdm(total=training.last_step, initial=step, unit=" steps")

  def on_step(self, training: callbacks.Training) -> None:
    now = time.monotonic()
    if self._shown_at is None:
      unread.warn()
    elif now - self._shown_at[1] < (_PERIOD_OF_BAR if self._bar else _PERIOD):
      return
    self._show(training, training.step, now)

  def on_end(self, training: callbacks.Training) -> None:
    step = training.step
    if self._shown_at and step > self._shown_at[0]:
      self._show(training, step, time.monotonic())
    if self._bar is not None:
      self._bar.close()

  def _show(self, training, step, now):
    """Shows a step, and the speed since the last one that was shown."""
    before, self._shown_at = self._shown_at, (step, now)
    if self._bar is not None:
      self._bar.set_postfix_str(f"loss {training.loss:.4g}", refresh=False)
      self._bar.update(step - self._bar.n)
      return
    last = training.last_step
    line = f"step {step}{f' of {last}' if last else ''}: loss {training.loss:.4g}"
    if before:  # The first step includes work that is done once.
      rate = (step - before[0]) / max(now - before[1], 1e-9)
      line += f", {rate:.3g} steps/s"
      if last and step < last and rate:
        left = math.ceil((last - step) / rate)
        line += f", {datetime.timedelta(seconds=left)} left"
    logging.info("%s", line)


def _parameters(variables: Sequence[tf.Variable]) -> int:
  """The number of parameters, without mesh slices, which are copies."""
  return sum(variable.shape.num_elements() for variable in variables
             if "_slice_" not in variable.op.name)


def described(source: str | None, batch_size: Any) -> str:
  """E.g. " on synth_text_pairs, batches of 16", without what is not known."""
  return (f" on {source}" if source else "") + (
      f", batches of {batch_size}" if isinstance(batch_size, int) else "")


def _bound_data():
  """The task, T5's TSV files, or the function that reads the data, if it is known."""
  function = data_checks.data_function(gin_internals.bindings())
  source = task = gin_files.bound("%MIXTURE_NAME", None)
  if function not in (None, data_checks.TASKS):
    files = gin_files.bound("tsv_dataset_fn.filename", None)
    source = str(files) if function == data_checks.TSV else f"the data of {function}"
    source += f" with the vocabulary of {task}" if task else ""
  return described(source, gin_files.bound("utils.run.batch_size", None))


def attentions() -> str:
  """E.g. "R+V", or "encoder R+V, decoder V" if stacks differ; "" if none is bound."""
  chosen = {scope: _shown(choice) for scope, choice in stack.choices().items()}
  if not chosen:
    return ""
  if len({*chosen.values()}) == 1:
    return chosen.popitem()[1]
  return ", ".join(f"{scope} {name}".strip() for scope, name in chosen.items())


def _shown(choice):
  if isinstance(choice, (list, tuple)):
    return "[" + ", ".join(map(_shown, choice)) + "]"
  return str(getattr(choice, "selector", getattr(choice, "__name__", choice)))
