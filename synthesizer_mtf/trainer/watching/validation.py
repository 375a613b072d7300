"""Evaluates checkpoints while a model trains, keeps the best, and stops by patience.

Each checkpoint that is due is evaluated in a graph of its own, in the training's
process, so the training itself goes on as without it. What the evaluation finds is
written before the training continues (`comparison.py`). So a training that was killed
evaluates the checkpoint that it continues from, if it had no time to, and comes to the
same best step.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import inspect
import os
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import dataset as mesh_dataset
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import comparison
from synthesizer_mtf.trainer.watching import measures
import tensorflow.compat.v1 as tf
import tensorflow_datasets as tfds

_NAME = "train_and_eval"
_GREATER = f"{_NAME}.greater_is_better"
_CHECKED = 2  # The number of examples that show the names of a task's metrics.


@gin.configurable(_NAME, module="synthesizer_mtf")
def chosen(eval_dataset_fn: Callable[..., Any] | None = None,
           metric: str = measures.TEACHER_FORCED[0], greater_is_better: bool = True,
           every_steps: int | None = None, patience: int | None = None,
           split: str = "validation") -> "Validation | None":
  """Evaluates checkpoints while a model trains; train_and_eval.gin binds it.

  Args:
    eval_dataset_fn: a function such as `mesh_eval_dataset_fn`; None for no evaluation.
    metric: the name of the metric that chooses the best checkpoint: neg_log_perplexity,
      token_accuracy or sequence_accuracy, or one of the task's own, such as "bleu", or
      "TASK/bleu" for one task of a mixture. Without a task it is the mean over the
      tasks that have the metric. A task's own metric decodes the split.
    greater_is_better: False if a smaller value is better. `bound` binds it, unless a
      user does, by the metric's name.
    every_steps: the least number of steps between two evaluations; None for an
      evaluation of each checkpoint.
    patience: the number of evaluations without a new best one after which training
      ends; None to train to the end.
    split: the split to evaluate.

  Raises:
    ValueError: a parameter has no such value.
  """
  for name, value in (("every_steps", every_steps), ("patience", patience)):
    if value is not None:
      checks.check_whole(_called(name), value, remedy=(
          f"change it, or leave `{_called(name)}` out"))
  for name, text in (("metric", metric), ("split", split)):
    checks.require(isinstance(text, str) and bool(text), _called(name), text,
                   "be a name", "write it in quotes")
  checks.check_boolean(_called("greater_is_better"), greater_is_better)
  if eval_dataset_fn is None:
    return None
  return Validation(eval_dataset_fn, metric, greater_is_better, every_steps, patience,
                    split)


def _called(name):
  return checks.called(f"{_NAME}.{name}")


def bound() -> "Validation | None":
  """The `Validation` that gin chooses, or None."""
  if gin_files.bound(f"{_NAME}.eval_dataset_fn", None) is None:
    return None
  if gin_files.bound(_GREATER, None) is None:
    metric = gin_files.bound(f"{_NAME}.metric", measures.TEACHER_FORCED[0])
    gin_files.bind({_GREATER: not measures.is_low(str(metric))})
  return chosen()


def bindings(task: str, parameters: dict[str, Any]) -> dict[str, Any]:
  """The bindings of train_and_eval.gin for a task or mixture, and of its parameters.

  Raises:
    ValueError: it has no such parameter, or they are not in a dict.
  """
  checks.require(isinstance(parameters, dict), "validation", parameters, "be a dict",
                 "write it as {'metric': 'bleu', 'patience': 3}")
  known = [*inspect.signature(chosen).parameters][1:]  # Without the data.
  for name in set(parameters) - set(known):
    raise checks.Error(f"`validation` names {name!r}, but {_NAME} has no such parameter"
                       f"; write one of {', '.join(known)}.")
  return {
      "mesh_eval_dataset_fn.mixture_or_task_name": task,
      f"{_NAME}.eval_dataset_fn": gin.config.ConfigurableReference(
          "t5.models.mesh_transformer.mesh_eval_dataset_fn", evaluate=False),
      **{f"{_NAME}.{name}": value for name, value in parameters.items()}}


class Validation(callbacks.Callback):
  """Evaluates the checkpoints of a training, as `chosen` describes."""

  def __init__(self, eval_dataset_fn: Callable[..., Any], metric: str,
               greater_is_better: bool, every_steps: int | None, patience: int | None,
               split: str):
    """Takes the parameters of `chosen`."""
    self._eval_dataset_fn = eval_dataset_fn
    self._metric, self._greater = metric, greater_is_better
    self._every, self._patience, self._split = every_steps, patience, split
    self._examples: dict[str, measures.Examples] = {}

  def for_model(self, estimator: Any, vocabulary: Any, sequence_length: Any,
                batch_size: int) -> "Validation":
    """Declares the model, its data and its batches; returns itself."""
    self._estimator, self._vocabulary = estimator, vocabulary
    self._length, self._batch_size = sequence_length, batch_size
    self._folder = estimator.model_dir
    return self

  @contextlib.contextmanager
  def around(self, training: callbacks.Training) -> Iterator[None]:
    self.start(training)
    yield

  def start(self, training: callbacks.Training) -> None:
    """Checks the parameters, and evaluates the checkpoint to continue from.

    The training ends before its first step if the patience is at an end.

    Raises:
      ValueError: no task has the metric, checkpoints are too rare, the model is on a
        TPU or in a cluster, or the best checkpoint is missing.
    """
    self._check_place()
    self._say_which()
    self._comparison = comparison.Comparison(
        self._folder, self._metric, self._greater, self._patience, training.last_step)
    with tf.Graph().as_default():
      self._check_metric()
      self._comparison.measure_by(self._measure(self._datasets()))
    step = complete.saved_step(training.newest) if training.newest else 0
    self._comparison.continue_from(step)
    if training.newest and step not in self._comparison.record.steps and (
        self._is_due(step) or step == training.last_step):
      self._evaluate(training, step)
    self._comparison.write(step, only_changes=True)
    if self._comparison.is_over:
      self._comparison.say_that_nothing_is_trained()
      training.end()

  def _say_which(self):
    """Says that the least value is the best, or warns if that of a loss is not."""
    if not self._greater:
      logging.info("The least %s is the best; set `%s` to True if the greatest is.",
                   self._metric, _called("greater_is_better"))
    elif measures.is_low(self._metric):
      logging.warning(
          "`%s` is %r, and its greatest value is the best; set `%s` to False if its "
          "least value is.", _called("metric"), self._metric,
          _called("greater_is_better"))

  def _check_place(self):
    config, every = self._estimator.config, self._every
    if not self._estimator.is_on_cpus() or config.master:
      raise checks.Error(
          f"`{_called('eval_dataset_fn')}` is bound, which evaluates in the process "
          "that trains, but a TPU or a cluster trains here; leave train_and_eval.gin "
          "out, and evaluate with eval.gin in another process.")
    if every is not None and every < config.save_checkpoints_steps:
      raise checks.Error(
          f"`{_called('every_steps')}` is {every}, but "
          f"`{checks.called('utils.run.save_checkpoints_steps')}` is "
          f"{config.save_checkpoints_steps}, and only checkpoints are evaluated; set "
          f"the latter to {every}, too.")

  def _datasets(self):
    datasets = self._eval_dataset_fn(
        sequence_length=self._length, vocabulary=self._vocabulary,
        dataset_split=self._split)
    if not datasets:
      raise checks.Error(f"`{_called('split')}` is {self._split!r}, which no task has; "
                         "set it to a split of the task.")
    return [mesh_dataset.EvalDataset(*data) for data in datasets]

  def _check_targets(self, datasets):
    for data in datasets:
      if "targets" not in data.dataset_fn().element_spec:
        raise checks.Error(
            f"`{_called('eval_dataset_fn')}` evaluates {data.name!r}, which has no "
            "targets; bind `mesh_eval_dataset_fn.mixture_or_task_name` to a task with "
            "targets.")

  def _check_metric(self):
    """Computes the metrics of targets with themselves, whose names it checks."""
    datasets = self._datasets()
    self._check_targets(datasets)
    name = self._metric.rpartition("/")[2]
    if name not in measures.TEACHER_FORCED[:2]:  # These are sums over tokens.
      data_checks.check_unpacked(f"`{_called('metric')}`, {name!r}, needs")
    known = {}
    for data in datasets:
      metrics = _names(data) if measures.decodes(name) else {name}
      if metrics is None:
        return  # They are known after the first evaluation.
      known.update({f"{data.name}/{metric}": 0.0 for metric in metrics})
    self._value(known)

  def _value(self, results):
    """The value of the metric in results by "TASK/METRIC"."""
    values = [value for name, value in results.items()
              if name == self._metric or name.endswith(f"/{self._metric}")]
    if not values:
      names = {
          *(name.partition("/")[2] for name in results), *measures.TEACHER_FORCED}
      raise checks.Error(
          f"`{_called('metric')}` is {self._metric!r}, which no task has; set it to "
          f"one of {', '.join(map(repr, sorted(names)))}.")
    return sum(values) / len(values)

  def _measure(self, datasets):
    return measures.measure(
        self._metric, self._greater, self._split, datasets, self._examples)

  def _is_due(self, step):
    every = self._every or self._estimator.config.save_checkpoints_steps
    return step >= self._comparison.record.last + every

  def _evaluate(self, training, step):
    """Evaluates a checkpoint, and compares it with the others."""
    path = os.path.join(self._folder, f"model.ckpt-{step}")
    with tf.Graph().as_default(), intermediates.without_capture():
      datasets = self._datasets()
      self._comparison.measure_by(self._measure(datasets))
      results = {name: float(value)
                 for name, value in self._results(datasets, path, step)}
    self._comparison.add(step, self._split, self._value(results), results)
    training.tell("on_evaluation", step, results)

  def _results(self, datasets, path, step) -> Iterator[tuple[str, float]]:
    """Yields ("TASK/METRIC", value)."""
    for data in datasets:
      values = self._estimator.evaluate(
          self._input_fn(data), checkpoint_path=path, name=f"{data.name}_{self._split}")
      yield from ((f"{data.name}/{name}", values[name])
                  for name in measures.TEACHER_FORCED)
    if measures.decodes(self._metric):
      yield from self._decoded(datasets, step)

  def _input_fn(self, data):
    """The data as for perplexity_eval.gin, to their end."""
    def input_fn(params):
      del params
      batches = data.dataset_fn().map(_features).batch(self._batch_size)
      return mesh_dataset.trim_and_pad_dataset(batches, length=self._batch_size)

    return input_fn

  def _decoded(self, datasets, step):
    """Yields what T5's mode `eval` computes, which it also writes to TensorBoard."""
    noted = {}
    kept = [data._replace(metric_fns=[
        _noting(fn, data.name, noted) for fn in data.metric_fns]) for data in datasets]
    utils.eval_model(
        self._estimator, self._vocabulary, self._length, self._batch_size, self._split,
        self._folder, lambda **_: kept, None, step)
    return noted.items()

  def on_checkpoint(self, training: callbacks.Training, step: int) -> None:
    """Evaluates a checkpoint if it is due or the last, unless a signal has arrived."""
    if training.is_ending:
      return
    is_due = self._is_due(step)
    if is_due or step == training.last_step:
      self._evaluate(training, step)
    if is_due and self._comparison.is_over:
      self._comparison.say_that_it_ends(step)
      training.end()


def _features(example):
  """The numbers of an example, as a model reads them."""
  return {name: value for name, value in example.items() if value.dtype != tf.string}


def _noting(metric_fn, task, noted):
  """The metric, which also adds its values to `noted` by "TASK/METRIC"."""
  def noting(targets, predictions):
    values = metric_fn(targets, predictions)
    if isinstance(values, dict):
      noted.update({f"{task}/{name}": value for name, value in values.items()})
    return values

  return noting


def _names(data):
  """The names of a task's metrics; None if they cannot be computed of two targets."""
  examples = [*tfds.as_numpy(data.dataset_fn().take(_CHECKED))]
  names = set()
  for metric_fn in data.metric_fns or ():
    try:
      texts = [example["targets_pretokenized"].decode() for example in examples]
      targets, predictions = ([
          data.postprocess_fn(text, example=example, is_target=is_target)
          for text, example in zip(texts, examples)] for is_target in (True, False))
      names |= set(metric_fn(targets, predictions))
    except Exception:  # A metric of a user's own may want more.
      return None
  return names
