"""Shows what is trained, where, and the progress.

The progress is a line in the log about every ten seconds; in a notebook it is one bar.
"""

from collections.abc import Sequence
import datetime
import math
import time
from typing import Any

from absl import logging
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import notebook
from synthesizer_mtf.trainer.watching import unread
import tensorflow.compat.v1 as tf

_PERIOD = 10.  # Seconds between two lines.
_PERIOD_OF_BAR = .5  # Seconds until a bar changes; it takes no more lines.
_PRINTED = b"step, tf_loss"  # How the line of Mesh TensorFlow's `tf.Print` begins.


def is_for_a_person() -> bool:
  """Whether the log is for a person: at a verbosity below DEBUG."""
  return logging.get_verbosity() < logging.DEBUG


def quiet(spec: tf.estimator.EstimatorSpec) -> tf.estimator.EstimatorSpec:
  """Removes the line that Mesh TensorFlow prints for each step with `tf.Print`.

  Args:
    spec: the specification of Mesh TensorFlow's training.

  Returns:
    the specification, with the loss from before `tf.Print`.
  """
  op = spec.loss.op
  if is_for_a_person() and op.type == "Print" and op.get_attr("message") == _PRINTED:
    return spec._replace(loss=op.inputs[0])
  return spec


class Progress(callbacks.Callback):
  """Shows what is trained, and then step, loss and speed."""

  def __init__(self, data: str | None = None):
    """Takes the data and the batch size, in words; None for what gin binds."""
    self._data = data
    self._shown_at = None  # A step and its time.
    self._since = None  # The step and the time after the first step.
    self._bar = notebook.Bar() if notebook.is_one() and is_for_a_person() else None

  def on_graph(self, training: callbacks.Training) -> None:
    logging.info(
        "Training %s, %s parameters%s, in %s.", _attentions(),
        f"{_parameters(tf.trainable_variables()):,}",
        _data() if self._data is None else self._data, training.model_dir)

  def on_start(self, training: callbacks.Training) -> None:
    if step := training.step:
      logging.info("Training continues from step %d.", step)

  def on_step(self, training: callbacks.Training) -> None:
    now = time.monotonic()
    if self._shown_at is None:
      unread.warn()
    elif now - self._shown_at[1] < (_PERIOD_OF_BAR if self._bar else _PERIOD):
      return
    self._show(training, (training.step, now))

  def on_end(self, training: callbacks.Training) -> None:
    step = training.step
    if self._shown_at and step > self._shown_at[0]:
      self._show(training, (step, time.monotonic()))

  def _show(self, training, now):
    """Shows a step. The speed omits the first step, which includes one-time work.

    A line has the speed since the last line; the bar has that of the whole training.
    """
    last = training.last_step
    of_all = f" of {last}" if last else ""
    line = f"step {now[0]}{of_all}: loss {training.loss:.4g}"
    since = self._since if self._bar else self._shown_at
    if since:
      rate = (now[0] - since[0]) / max(now[1] - since[1], 1e-9)
      line += f", {rate:.3g} steps/s{_left(now[0], last, rate)}"
    self._shown_at, self._since = now, self._since or now
    if self._bar:
      self._bar.show(now[0], last, line)
    else:
      logging.info("%s", line)


def _left(step, last_step, rate):
  if not last_step or step >= last_step or not rate:
    return ""
  left = math.ceil((last_step - step) / rate)
  return f", {datetime.timedelta(seconds=left)} left"


def _parameters(variables: Sequence[tf.Variable]) -> int:
  """The number of parameters, without mesh slices, which are copies."""
  return sum(each.shape.num_elements() for each in variables
             if "_slice_" not in each.op.name)


def of_data(source: str | None, batch_size: Any) -> str:
  """E.g. " on synth_text_pairs, batches of 16", without what is not known."""
  return (f" on {source}" if source else "") + (
      f", batches of {batch_size}" if isinstance(batch_size, int) else "")


def _data():
  return of_data(_source(), gin_files.bound("utils.run.batch_size", None))


def _source():
  """The task, T5's TSV files, or the function that reads the data; "" if unknown."""
  function = data_checks.data_function(gin_internals.bindings())
  task = gin_files.bound("%MIXTURE_NAME", None)
  if function in (None, data_checks.TASKS):
    return task or ""
  files = gin_files.bound("tsv_dataset_fn.filename", None)
  source = str(files) if function == data_checks.TSV else f"the data of {function}"
  return f"{source} with the vocabulary of {task}" if task else source


def _attentions():
  """E.g. "R+V", or "encoder R+V, decoder V" if stacks differ."""
  chosen = {scope: _shown(each) for scope, each in stack.choices().items()}
  if not chosen:
    return "a model with the attention of its gin file"
  if len({*chosen.values()}) == 1:
    return chosen.popitem()[1]
  return ", ".join(f"{scope} {each}".strip() for scope, each in chosen.items())


def _shown(choice):
  if isinstance(choice, (list, tuple)):
    return "[" + ", ".join(map(_shown, choice)) + "]"
  return str(getattr(choice, "selector", choice))
