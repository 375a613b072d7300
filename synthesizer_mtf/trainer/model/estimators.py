"""An estimator that checks checkpoints when it trains, evaluates and exports.

It checks checkpoints before it uses them. What happens beside the steps of a training
is in callbacks (`watching/callbacks.py`), which `_callbacks` lists.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import os
from typing import Any
import warnings

from absl import logging
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import heads_record
from synthesizer_mtf.trainer.checkpoints import matching
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.data import seed
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import exporting
from synthesizer_mtf.trainer.model import prediction
from synthesizer_mtf.trainer.model import scoring
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import data_position
from synthesizer_mtf.trainer.watching import failures
from synthesizer_mtf.trainer.watching import guards
from synthesizer_mtf.trainer.watching import progress
from synthesizer_mtf.trainer.watching import stopping
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

_LOGGED = 100  # Steps between two lines of the Estimator.


class CarefulEstimator(tpu_estimator.TPUEstimator):
  """Checks the checkpoints that it restores and writes; supports a warm start.

  Attributes:
    optimizer: makes the optimizer that trains, whose variables checkpoints may have; or
      None.
    data: what it trains on, in words for `progress.Progress`; None for what gin binds.
    continues_inputs: whether an exported model continues its inputs, as a language
      model does.
    keeps_batches: a function that returns whether the examples of a batch must be
      predicted together, because they decide about each other.
    texts: a function that returns how many examples to predict are no padding; None if
      the data tell it.
    vocabularies: the record of the vocabularies, which training writes; or None.
    validation: evaluates checkpoints while the model trains; or None.
    history: notes what a training does; or None.
  """

  optimizer: optimizer_slots.Optimizer | None = None
  data: str | None = None
  continues_inputs = False
  keeps_batches: Callable[[], bool] = staticmethod(lambda: False)
  texts: Callable[[], int | None] = staticmethod(lambda: None)
  vocabularies: vocabulary_record.Record | None = None
  validation: callbacks.Callback | None = None
  history: callbacks.Callback | None = None
  _config: Any  # A `RunConfig`, of the base class.
  _start = None  # A `WarmStart`.
  _restored = None  # The path of the checkpoint that is being restored.
  _training: callbacks.Training | None = None  # The last one.
  _predicting = None  # The `prediction.Graph` of the last prediction.

  def _assert_members_are_not_overridden(self):
    """Allows overriding members, which the base class would refuse."""

  def configure(self, **changes: Any) -> None:
    """Changes the configuration, as `RunConfig.replace` does."""
    self._config = self._config.replace(**changes)

  def start_from(self, start: warm_start.WarmStart | None) -> None:
    """Makes training start from `start`, unless the folder has a checkpoint."""
    self._start = start

  @contextlib.contextmanager
  def _restoring(self, path):
    """Compares each model with a checkpoint, and explains damage, within a block."""
    before, self._restored = self._restored, path
    try:
      with failures.explained_damage(path), failures.explained_memory():
        yield
    finally:
      self._restored = before

  def _call_model_fn(self, features, labels, mode, config):
    spec = super()._call_model_fn(features, labels, mode, config)
    if complete.find(self.model_dir):
      heads_record.check_restored(self.model_dir)
    if self._restored:
      matching.check_variables(
          self._restored, tf.global_variables(), self.optimizer)
    if mode != tf.estimator.ModeKeys.TRAIN:
      return spec
    spec = seed.raising_last(self._without_waits(progress.quiet(spec)))
    if self._start is None:
      return spec
    if last := self.latest_checkpoint():
      logging.info("No warm start: the model continues from its own %s.", last)
      return spec
    return self._start.added_to(spec, self.optimizer)

  def _without_waits(self, spec):
    """Lets devices of JAX compute while the host goes on: losses are told a step late.

    All that logs a loss waits for its own.
    """
    mesh_impl = getattr(spec.scaffold, "mesh_impl", None)
    delayed = mesh_impl and mesh_impl.delayed(spec.loss)
    if not delayed or self._training is None:
      return spec
    loss, self._training.read_loss = delayed
    tf.summary.scalar("loss", spec.loss)  # The Estimator sees that there is one.
    self.configure(log_step_count_steps=None)
    return spec._replace(loss=loss, training_hooks=[
        *spec.training_hooks,
        tf.train.StepCounterHook(_LOGGED, output_dir=self.model_dir),
        tf.train.LoggingTensorHook(
            {"loss": spec.loss, "step": tf.train.get_global_step()},
            every_n_iter=_LOGGED)])

  def _train_model(self, *args):
    """Trains, and returns the loss of the last step; None without any step."""
    loss = super()._train_model(*args)
    return self._training.loss if self._training and loss is not None else loss

  def latest_checkpoint(self) -> str | None:
    """The checkpoint that is read unless another one is named."""
    return complete.chosen(self.model_dir)

  def train(self, input_fn: Callable[..., Any],
            hooks: Iterable[tf.train.SessionRunHook] | None = None,
            *args: Any, **kwargs: Any) -> "CarefulEstimator":
    """Trains as the base class does, but checks and guards checkpoints.

    Raises:
      ValueError: the checkpoint to resume from is damaged or of another model, or
        another process trains in the folder.
      Stopped: a signal has ended the training, after writing a checkpoint.
      TrainingStopped: the loss or a variable is not finite, or a file cannot
        be written.
    """
    chosen = self._callbacks()
    training = callbacks.Training(self.model_dir, kwargs.get("max_steps"), chosen)
    self._training = training
    with callbacks.running(training, chosen) as hook, self._restoring(training.newest):
      if training.is_ending:
        return self
      _say_if_done(training)
      return super().train(input_fn, [*(hooks or ()), hook], *args, **kwargs)

  def _callbacks(self):
    """What looks on while a model trains, or steps in, in the order of the calls."""
    position = data_position.DataPosition() if self.is_on_cpus() else None
    return [*filter(None, [
        guards.Folder(self.vocabularies), guards.Guard(), position, self.validation,
        self.history, stopping.StopAfterStep(), progress.Progress(self.data)])]

  def evaluate(self, input_fn: Callable[..., Any], steps: int | None = None,
               hooks: Iterable[tf.train.SessionRunHook] | None = None,
               checkpoint_path: str | None = None,
               name: str | None = None) -> dict[str, Any]:
    """Evaluates as the base class; raises a ValueError without a usable checkpoint."""
    path = self._usable(checkpoint_path)
    model_folder.check_room(self.eval_dir(name))
    with self._restoring(path):
      return super().evaluate(input_fn, steps, hooks, path, name)

  def predict(self, input_fn: Callable[..., Any],
              predict_keys: list[str] | None = None,
              hooks: Iterable[tf.train.SessionRunHook] | None = None,
              checkpoint_path: str | None = None,
              yield_single_examples: bool = True) -> Iterator[dict[str, Any]]:
    """Predicts as the base class does; without a TPU, one graph serves all checkpoints.

    Yields:
      predictions, in the order of the data.

    Raises:
      ValueError: there is no usable checkpoint.
    """
    path = self._usable(checkpoint_path)
    with self._restoring(path):
      data = None
      if yield_single_examples and not hooks and self.is_on_cpus():
        data = self._batches(input_fn)
      if data is None:
        yield from decode_length.counted(super().predict(
            input_fn, predict_keys, hooks, path, yield_single_examples))
        return
      spec, batches = data
      yield from self.staying(spec, path)(batches, self.texts(), predict_keys)

  def staying(self, spec: dict[str, tf.TypeSpec], path: str) -> Callable[
      ..., Iterator[dict[str, Any]]]:
    """Makes a graph with the variables of a checkpoint, which predicts again and again.

    Args:
      spec: the batches that it is for.
      path: the checkpoint.

    Returns:
      a function of `batches`, `number` and `keys` of `prediction.examples`, until
      `close`.

    Raises:
      ValueError: the checkpoint is not usable.
    """
    path = self._usable(path)
    with self._restoring(path):
      graph = self._graph_for(spec)
      graph.restore(path)
    by_length = not self.keeps_batches()

    def predict(batches, number=None, keys=None):
      return decode_length.counted(scoring.checked(prediction.examples(
          graph, batches, keys, by_length, number)))

    return predict

  def _call_model_fn_eval(self, input_fn, config):
    """Gives `loss` its mean over the tokens, not over batches, which may be empty."""
    *others, results = super()._call_model_fn_eval(input_fn, config)
    if "neg_log_perplexity" in results:
      results = {**results, "loss": tf.negative(results["neg_log_perplexity"])}
    return (*others, results)

  def _graph_for(self, spec):
    if self._predicting is None or not self._predicting.serves(spec):
      self.close()
      self._predicting = prediction.Graph(self, spec)
    return self._predicting

  def close(self) -> None:
    """Ends the session of the last prediction, and frees its variables."""
    if self._predicting is not None:
      self._predicting.close()
    self._predicting = None

  def is_on_cpus(self) -> bool:
    """Whether the model runs without TPUs."""
    with self._ctx.with_mode(tf.estimator.ModeKeys.PREDICT) as context:
      return context.is_running_on_cpu()

  def _batches(self, input_fn):
    """(batch spec, batches); None unless they are dicts from a Dataset."""
    with tf.Graph().as_default():
      data = self._call_input_fn(input_fn, tf.estimator.ModeKeys.PREDICT)
      spec = getattr(data, "element_spec", None)
      if not isinstance(spec, dict):
        return None
      return spec, prediction.batches(data)

  def export_saved_model(self, export_dir_base: str,
                         serving_input_receiver_fn: Callable[[], Any],
                         *args: Any, checkpoint_path: str | None = None,
                         **kwargs: Any) -> str:
    """Exports as the base class; raises a ValueError without a usable checkpoint."""
    path = self._usable(checkpoint_path)
    if self.continues_inputs:
      serving_input_receiver_fn = exporting.continuing(serving_input_receiver_fn)
    with (self._restoring(path), exporting.served(),
          answers.asking(answers.bound())):
      folder = super().export_saved_model(
          export_dir_base, serving_input_receiver_fn, *args, checkpoint_path=path,
          **kwargs)
    logging.info("The exported model is in %s.", tf.compat.as_text(folder))
    return folder

  def _call_input_fn(self, input_fn, mode, input_context=None):
    """Makes the data, without tf.data's autotuning, which delays the end of training.

    The thread that tunes tf.data's parallelism sleeps for up to a minute. Cancelling
    wakes it before the cancellation is visible, so it sleeps again, and the end of
    training waits for it. Without this thread, autotuned steps run on all cores, up to
    16. A dataset that sets the option itself keeps it. On TPUs the base class returns a
    function, and nothing changes.
    """
    data = super()._call_input_fn(input_fn, mode, input_context)
    if not isinstance(data, tf.compat.v2.data.Dataset):  # Also v1's base.
      return data
    with warnings.catch_warnings():  # In graphs, only Python knows the options.
      warnings.simplefilter("ignore")
      chosen = data.options().autotune.enabled
    options = tf.data.Options()
    options.autotune.enabled = bool(chosen)
    return data.with_options(options)

  def _usable(self, path):
    """Returns the path, by default the latest; raises unless it is complete."""
    path = path or self.latest_checkpoint()
    if path is None:
      raise checks.Error(complete.nothing_in(self.model_dir))
    try:
      complete.check(path)
    except complete.DamagedError as error:
      names = map(os.path.basename, complete.find(os.path.dirname(path)))
      raise checks.Error(
          f"{path} cannot be read: {error}. The directory holds "
          f"{', '.join(names) or 'no checkpoint'}.") from error
    return path


def _say_if_done(training):
  """Warns that there is nothing to train; the Estimator returns without a word."""
  newest, steps = training.newest, training.last_step
  if newest and steps is not None and complete.saved_step(newest) >= steps:
    logging.warning(
        "Nothing is trained: %s is already at step %d of %d; to go on, raise `%s`.",
        newest, complete.saved_step(newest), steps,
        checks.called("utils.run.train_steps"))
