"""T5's Python API, `MtfModel`, with a chosen attention.

T5's `MtfModel` fills gin itself: with the operative_config.gin of a model's folder,
then with its `extra_gin_bindings`. In gin, operative_config.gin would win, as its
bindings have scopes. Here the user's choice wins: an argument, then
`extra_gin_bindings`, then the bindings that gin held before. The choice is in gin only
while a method of the model runs.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import inspect
import os
from typing import Any

from absl import logging
import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names
from synthesizer_mtf import patches
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer import answers
from synthesizer_mtf.trainer import checkpoints
from synthesizer_mtf.trainer import data_checks
from synthesizer_mtf.trainer import gin_checks
from synthesizer_mtf.trainer import seed as seeds
from synthesizer_mtf.trainer import unknown_pieces
from synthesizer_mtf.trainer import value_checks
import t5.models
from t5.models import mtf_model
import tensorflow.compat.v1 as tf

_CHECKPOINT = "warm_start.checkpoint"
_ATTENTION = stack.SELECTOR, "attention"
_TEMPERATURE = "Bitransformer.decode", "temperature"
# T5's command passes the parameters of `finetune` by these names.
_OF_THE_COMMAND = {"steps": "finetune_steps",
                   "checkpoint_steps": "pretrained_checkpoint_step"}
_OF_BEAMS = ("beam_size", "temperature")  # Arguments of `predict` and `export`.


class MtfModel(mtf_model.MtfModel):
  """T5's `MtfModel`, whose attention, seed and warm start are arguments."""

  # Of the base class.
  _learning_rate_schedule: Any
  _gin_bindings: Any

  def __init__(self, *args: Any, attention: str | list[str] | None = None,
               seed: int | None = None, warm_start: str | None = None,
               **kwargs: Any) -> None:
    """Declares T5's parameters, and ours.

    Args:
      *args: as in T5.
      attention: as `synthesizer_stack.attention`; None for the binding in gin, or in
        the folder's operative_config.gin.
      seed: an integer, as in `train_with_seed`.
      warm_start: a checkpoint or folder, as `warm_start.checkpoint`.
      **kwargs: as in T5.
    """
    signature = inspect.signature(super().__init__)
    for name in set(kwargs) - set(signature.parameters):
      raise TypeError(f"MtfModel has no argument {name!r}."
                      f"{checks.did_you_mean(name, signature.parameters)}")
    gin_checks.check_arguments(signature.bind_partial(*args, **kwargs).arguments)
    super().__init__(*args, **kwargs)
    checkpoints.check_name(self._model_dir)
    self._attention, self._seed, self._warm_start = attention, seed, warm_start
    # gin's bindings when the running method was called.
    self._before: dict[str, Any] | None = None
    # What the running method checks once all bindings are in gin.
    self._check: Callable[[], None] | None = None

  def estimator(self, vocabulary: Any, init_checkpoint: str | None = None,
                **kwargs: Any) -> tf.estimator.Estimator:
    """Makes the estimator; a checkpoint may have another attention or another length.

    Raises:
      ValueError: a parameter is wrong, or there are two checkpoints to start from.
    """
    with self._own_bindings():
      self._bind_what_was_asked()
      gin_checks.check_model(gin_internals.bindings())
      if self._check is not None and not kwargs.get("score_in_predict_mode"):
        self._check()
      with self._without_extra_attentions():  # T5 binds the others again.
        made = super().estimator(vocabulary, init_checkpoint, **kwargs)
      if self._seed is not None:
        made.configure(tf_random_seed=self._seed)
      return made

  def _bind_what_was_asked(self):
    """Makes the user's choice override an operative_config.gin, in all scopes."""
    assert self._before is not None  # `_own_bindings` surrounds this.
    _bind(_CHECKPOINT, self._before[_CHECKPOINT])  # The file may name another.
    _let_win(self._before["attention"])
    with gin.unlock_config():
      gin.parse_config(self._gin_bindings)
    _let_win(_attentions_in(self._gin_bindings))
    if self._attention is not None:
      _let_win({"": self._attention})
    if self._warm_start is not None:
      _bind(_CHECKPOINT, self._warm_start)

  @contextlib.contextmanager
  def _without_extra_attentions(self):
    """Hides the attentions of `extra_gin_bindings`, as an argument wins over them."""
    given = self._gin_bindings
    self._gin_bindings = _without_attentions(given)
    try:
      yield
    finally:
      self._gin_bindings = given

  @contextlib.contextmanager
  def _own_bindings(self, check: Callable[[], None] | None = None) -> Iterator[None]:
    """Undoes a method's bindings afterwards, as they belong to this model only.

    Args:
      check: a function that raises if the bindings do not fit this method.
    """
    self._check = self._check or check
    if self._before is not None:  # `finetune` calls `train`.
      yield
      return
    self._before = {"attention": stack.bound(),
                    _CHECKPOINT: gin_files.bound(_CHECKPOINT, None)}
    try:
      with gin_files.restored(with_calls=True):
        yield
    finally:
      self._before = self._check = None

  def train(self, mixture_or_task_name: str, steps: int, *args: Any,
            **kwargs: Any) -> None:
    """Trains as T5 does, and passes `total_train_steps` to a learning rate schedule."""
    _name_what_is_not_used()
    self._check_lengths(mixture_or_task_name)
    schedule = self._learning_rate_schedule
    if callable(schedule) and "total_train_steps" in inspect.signature(
        schedule).parameters:
      self._learning_rate_schedule = functools.partial(
          schedule, total_train_steps=steps)
    random = (seeds.random_by_name() if self._seed is not None
              else contextlib.nullcontext())
    data_checks.check_rates(mixture_or_task_name)
    check = functools.partial(
        data_checks.check_cached, mixture_or_task_name, "mixture_or_task_name")
    with self._own_bindings(check), random:
      if not gin_files.bound("mesh_train_dataset_fn.use_cached", False):
        unknown_pieces.tell(mixture_or_task_name, kwargs.get("split", "train"))
      super().train(mixture_or_task_name, steps, *args, **kwargs)

  def _check_beams(self, *names):
    gin_checks.check_beams(gin_internals.bindings(), self._model_type, *names)

  def _check_lengths(self, task):
    if data_checks.is_known(task):
      value_checks.check_lengths(
          self._sequence_length, task, seqio.get_mixture_or_task(task).output_features,
          "sequence_length")

  def eval(self, mixture_or_task_name: str, checkpoint_steps: Any = None,
           summary_dir: str | None = None, split: str = "validation",
           **kwargs: Any) -> None:
    """Evaluates as T5 does, and makes the folder of the results.

    Raises:
      ValueError: the task has no such split, or no metrics.
    """
    named = {"task_parameter": "mixture_or_task_name"}
    data_checks.check_split(
        mixture_or_task_name, split, split_parameter="split", **named)
    self._check_lengths(mixture_or_task_name)
    given = "scores" if kwargs.get("eval_with_score") else "predictions"
    data_checks.check_metrics(mixture_or_task_name, given, **named)
    folder = summary_dir or os.path.join(self._model_dir, f"{split}_eval")
    tf.io.gfile.makedirs(folder)
    seeds.bind_missing()
    with self._own_bindings(self._check_beams):
      try:
        super().eval(mixture_or_task_name, checkpoint_steps, folder, split, **kwargs)
      except checks.LengthError as error:
        raise checks.Error(
            f"{error.found}, or pass compute_sequence_length=False, which cuts texts "
            "to the model's `sequence_length`.") from error

  def finetune(self, *args: Any, **kwargs: Any) -> None:
    """Fine-tunes as T5 does, but also accepts the parameter names of T5's command."""
    kwargs = {_OF_THE_COMMAND.get(name, name): value
              for name, value in kwargs.items()}
    step = inspect.signature(super().finetune).bind(*args, **kwargs).arguments.get(
        "pretrained_checkpoint_step", -1)
    value_checks.check_one_step("pretrained_checkpoint_step", step)
    with self._own_bindings():
      super().finetune(*args, **kwargs)

  def predict(self, *args: Any, **kwargs: Any) -> None:
    """Predicts as T5 does, with this model's bindings.

    Raises:
      ValueError: a file is missing, or beam search has a temperature.
    """
    given = inspect.signature(super().predict).bind(*args, **kwargs).arguments
    value_checks.check_lines("input_file", given["input_file"])
    value_checks.check_output("output_file", given["output_file"])
    self._tell_sampling(given)
    with self._own_bindings(functools.partial(self._check_beams, _OF_BEAMS)):
      answers.bind_missing()
      super().predict(*args, **kwargs)

  def score(self, *args: Any, **kwargs: Any) -> Any:
    """Scores as T5 does, with this model's bindings.

    Raises:
      ValueError: a file is missing.
    """
    given = inspect.signature(super().score).bind(*args, **kwargs).arguments
    for name in ("inputs", "targets"):
      if given.get(name) and isinstance(given[name], str):
        value_checks.check_lines(name, given[name])
    with self._own_bindings():
      return super().score(*args, **kwargs)

  def export(self, *args: Any, **kwargs: Any) -> Any:
    """Exports as T5 does, with this model's bindings.

    Raises:
      ValueError: the step is not one step, or beam search has a temperature.
    """
    given = inspect.signature(super().export).bind(*args, **kwargs).arguments
    value_checks.check_one_step("checkpoint_step", given.get("checkpoint_step", -1))
    if not given.get("eval_with_score"):
      self._tell_sampling(given)
    with self._own_bindings(functools.partial(self._check_beams, _OF_BEAMS)):
      return super().export(*args, **kwargs)

  def _tell_sampling(self, given):
    """Warns that outputs are drawn at random, unless the caller has chosen this."""
    chosen = _chosen_in(self._gin_bindings, _TEMPERATURE)
    if (self._model_type.startswith("bi")  # Other models have other parameters.
        and not chosen and "temperature" not in given
        and given.get("beam_size", 1) == 1):
      logging.warning(
          "Outputs are drawn at random, at T5's default temperature of 1.0; pass "
          "temperature=0 for the most likely tokens.")


def apply() -> None:
  """Replaces T5's `MtfModel`, also in T5's command with `--use_model_api`."""
  patches.assign("mtf_model.MtfModel", mtf_model, MtfModel)
  patches.assign("MtfModel", t5.models, MtfModel)


def _let_win(asked):
  """Binds the user's choice, also in scopes with other bindings."""
  for scope, value in gin_files.winning(
      stack.bound(), asked, "synthesizer_stack.attention").items():
    _bind(f"{scope + '/' if scope else ''}synthesizer_stack.attention", value)


def _attentions_in(bindings: str | Sequence[str] | None) -> dict[str, Any]:
  """The attentions, by scope, in `extra_gin_bindings` alone."""
  return _chosen_in(bindings, _ATTENTION)


def _chosen_in(bindings, parameter):
  """The values of a (selector, name), by scope, in `extra_gin_bindings` alone."""
  return {each.scope: each.value
          for _, each in gin_names.given([], _lines(bindings), "extra_gin_bindings")
          if (gin_names.full_name(each.selector), each.arg_name) == parameter}


def _without_attentions(bindings: str | Sequence[str] | None) -> str:
  """The text of `extra_gin_bindings`, without the bindings of attentions."""
  lines = _lines(bindings)
  statements = list(gin.config_parser.ConfigParser(
      "\n".join(lines), gin.config.ParserDelegate(skip_unknown=True)))
  starts = [statement.location.line_num - 1 for statement in statements]
  for statement, start, end in zip(statements, starts, [*starts[1:], len(lines)]):
    if isinstance(statement, gin.config_parser.BindingStatement) and (
        gin_names.full_name(statement.selector), statement.arg_name) == _ATTENTION:
      lines[start:end] = [""] * (end - start)
  return "\n".join(lines)


def _lines(bindings):
  """The lines of bindings that T5 takes as a text, or as a list of texts."""
  return (bindings if isinstance(bindings, str) else "\n".join(bindings or [])
          ).splitlines()


def _bind(parameter, value):
  with gin.unlock_config():
    gin.bind_parameter(parameter, value)


def _name_what_is_not_used():
  parameter = "utils.run.train_model_fn"
  function: Callable[..., Any] | None = gin.get_bindings(
      "utils.run", resolve_references=False).get("train_model_fn")
  if function is not None and "warm_start" not in repr(function):
    logging.warning(
        "`%s` is %r, but MtfModel does not use it: it trains in its own way, "
        "with a seed if it is given one, and without summaries; "
        "synthesizer_mesh_transformer without --use_model_api has them.",
        parameter, function)
