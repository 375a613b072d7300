"""The log lines of a training: what is trained, where, and its progress."""

from collections.abc import Sequence
import datetime
import math
import time

from absl import logging
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer import gin_checks
from synthesizer_mtf.trainer import unread
import tensorflow.compat.v1 as tf

_PERIOD = 10.  # Seconds between two lines.


def is_for_a_person() -> bool:
  """Whether the log is for a person: at verbosity INFO, not DEBUG."""
  return logging.get_verbosity() == logging.INFO


def quiet(spec: tf.estimator.EstimatorSpec) -> tf.estimator.EstimatorSpec:
  """Removes the line that Mesh TensorFlow prints for each step with `tf.Print`.

  Args:
    spec: the specification of Mesh TensorFlow's training.

  Returns:
    the specification, with the loss from before `tf.Print`.
  """
  loss = spec.loss
  while is_for_a_person() and loss.op.type in ("Identity", "Print"):
    loss = loss.op.inputs[0]
  return spec._replace(loss=loss)


class Progress(tf.train.SessionRunHook):
  """Logs what is trained, and then step, loss and speed about every ten seconds."""

  def __init__(self, model_dir: str, last_step: int | None):
    """Declares the folder and the last step, which is None if unknown."""
    self._model_dir = model_dir
    self._last_step = last_step
    self._told = None  # A step and its time.

  def begin(self) -> None:
    self._step = tf.train.get_global_step()
    self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]
    logging.info(
        "Training %s, %s parameters%s, in %s.", _attentions(),
        f"{_parameters(tf.trainable_variables()):,}", _data(), self._model_dir)

  def after_create_session(self, session: tf.Session,
                           coord: tf.train.Coordinator) -> None:
    del coord
    step = session.run(self._step)
    if step:
      logging.info("Training continues from step %d.", step)

  def before_run(
      self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
    return tf.train.SessionRunArgs(self._loss)

  def after_run(self, run_context: tf.train.SessionRunContext,
                run_values: tf.train.SessionRunValues) -> None:
    now = time.monotonic()
    self._value = run_values.results
    if self._told is None or now - self._told[1] >= _PERIOD:
      if self._told is None:
        unread.tell()
      self._tell((run_context.session.run(self._step), now))

  def end(self, session: tf.Session) -> None:
    step = session.run(self._step)
    if self._told and step > self._told[0]:
      self._tell((step, time.monotonic()))

  def _tell(self, now):
    """Logs a step. The speed omits the first step, which includes one-time work."""
    of_all = f" of {self._last_step}" if self._last_step else ""
    line = f"step {now[0]}{of_all}: loss {self._value:.4g}"
    if self._told:
      rate = (now[0] - self._told[0]) / max(now[1] - self._told[1], 1e-9)
      line += f", {rate:.3g} steps/s{self._left(now[0], rate)}"
    self._told = now
    logging.info("%s", line)

  def _left(self, step, rate):
    if not self._last_step or step >= self._last_step or not rate:
      return ""
    left = math.ceil((self._last_step - step) / rate)
    return f", {datetime.timedelta(seconds=left)} left"


def _parameters(variables: Sequence[tf.Variable]) -> int:
  """The number of parameters, without mesh slices, which are copies."""
  return sum(each.shape.num_elements() for each in variables
             if "_slice_" not in each.op.name)


def _data():
  """E.g. " on synth_text_pairs, batches of 16", without what gin does not bind."""
  size = gin_files.bound("utils.run.batch_size", None)
  source = _source()
  return (f" on {source}" if source else "") + (
      f", batches of {size}" if isinstance(size, int) else "")


def _source():
  """The task, T5's TSV files, or the function that reads the data; "" if unknown."""
  function = gin_checks.data_function(gin_internals.bindings())
  task = gin_files.bound("%MIXTURE_NAME", None)
  if function in (None, gin_checks.TASKS):
    return task or ""
  files = gin_files.bound("tsv_dataset_fn.filename", None)
  source = str(files) if function == gin_checks.TSV else f"the data of {function}"
  return f"{source} with the vocabulary of {task}" if task else source


def _attentions():
  """E.g. "R+V", or "encoder R+V, decoder V" if stacks differ."""
  chosen = {scope: _shown(each) for scope, each in stack.choices().items()}
  if not chosen:
    return "a model with the attention of its gin file"
  return ", ".join(f"{scope} {each}".strip() for scope, each in chosen.items())


def _shown(choice):
  if isinstance(choice, (list, tuple)):
    return "[" + ", ".join(map(_shown, choice)) + "]"
  return str(getattr(choice, "selector", choice))
