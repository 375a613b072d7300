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
from synthesizer_mtf.fast import switch
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.trainer import answers
from synthesizer_mtf.trainer import arguments
from synthesizer_mtf.trainer import checkpoints
from synthesizer_mtf.trainer import console
from synthesizer_mtf.trainer import data_checks
from synthesizer_mtf.trainer import gin_checks
from synthesizer_mtf.trainer import progress
from synthesizer_mtf.trainer import results
from synthesizer_mtf.trainer import seed as seeds
from synthesizer_mtf.trainer import unknown_pieces
from synthesizer_mtf.trainer import validation as validations
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
Path = str | os.PathLike[str]


@contextlib.contextmanager
def _in_python(method):
  """Shows the log, and lets messages name the arguments of a method."""
  with (console.shown(), switch.started(),
        checks.calling(arguments.names(method))):
    yield


def _shown(method):
  """Runs a method in `_in_python`, and gives it the signature of T5's method.

  Further parameters of the method are keyword-only.
  """
  wrapped = _in_python(method.__name__)(method)
  stock = inspect.signature(getattr(mtf_model.MtfModel, method.__name__))
  own = [each for each in inspect.signature(method).parameters.values()
         if each.kind is inspect.Parameter.KEYWORD_ONLY]
  vars(wrapped)["__signature__"] = stock.replace(
      parameters=[*stock.parameters.values(), *own])
  return wrapped


class MtfModel(mtf_model.MtfModel):
  """T5's `MtfModel`, whose attention, seed and warm start are arguments.

  Paths may be strings or `pathlib.Path`. A wrong argument raises a ValueError that
  names it.
  """

  # Of the base class.
  _learning_rate_schedule: Any
  _gin_bindings: Any

  def __init__(self, *args: Any, attention: str | list[str] | None = None,
               seed: int | None = None, warm_start: Path | None = None,
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
    base = super().__init__
    known = inspect.signature(base).parameters
    for name in set(kwargs) - set(known):
      raise TypeError(f"MtfModel has no argument {name!r}."
                      f"{checks.did_you_mean(name, known)}")
    with _in_python("__init__"):
      base(**arguments.of(base, args, kwargs))
      checkpoints.check_name(self._model_dir, "`model_dir`")
      self._attention, self._seed, self._warm_start = (
          arguments.read("attention", attention), arguments.read("seed", seed),
          arguments.read("warm_start", warm_start))
    self._data: str | None = None  # What the running method trains on, in words.
    # gin's bindings when the running method was called.
    self._before: dict[str, Any] | None = None
    # What the running method checks once all bindings are in gin.
    self._check: Callable[[], None] | None = None
    self._validation: dict[str, Any] | None = None  # Of `finetune`, which trains.

  def estimator(self, vocabulary: Any, init_checkpoint: str | None = None,
                **kwargs: Any) -> tf.estimator.Estimator:
    """Makes the estimator; a checkpoint may have another attention or another length.

    Raises:
      ValueError: a parameter is wrong, or there are two checkpoints to start from.
    """
    with self._own_bindings():
      self._bind_what_was_asked()
      gin_checks.check_model(gin_internals.bindings())
      if self._check is not None:
        self._check()
      with self._without_extra_attentions():  # T5 binds the others again.
        made = super().estimator(vocabulary, init_checkpoint, **kwargs)
      if self._seed is not None:
        made.configure(tf_random_seed=self._seed)
      made.data = self._data
      return made

  def _bind_what_was_asked(self):
    """Makes the user's choice override an operative_config.gin, in all scopes."""
    assert self._before is not None  # `_own_bindings` surrounds this.
    # The file may name another checkpoint.
    gin_files.bind({_CHECKPOINT: self._before[_CHECKPOINT]})
    _let_win(self._before["attention"])
    with gin.unlock_config():
      gin.parse_config(self._gin_bindings)
    _let_win(_chosen_in(self._gin_bindings, _ATTENTION))
    _warn_of_lost(self._before["sizes"])
    if self._attention is not None:
      _let_win({"": self._attention})
    if self._warm_start is not None:
      gin_files.bind({_CHECKPOINT: self._warm_start})

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
    self._before = {"attention": stack.bound(), "sizes": _sizes(),
                    "validation": validations.given(),
                    _CHECKPOINT: gin_files.bound(_CHECKPOINT, None)}
    try:
      with gin_files.restored(with_calls=True):
        yield
    finally:
      self._before = self._check = self._validation = None

  @_shown
  def train(self, *args: Any, validation: dict[str, Any] | None = None,
            **kwargs: Any) -> None:
    """Trains as T5 does, and passes `total_train_steps` to a learning rate schedule.

    Args:
      *args: as in T5.
      validation: parameters of `train_and_eval`, such as {"metric": "bleu", "patience":
        3}, to evaluate checkpoints and keep the best; None for no evaluation.
      **kwargs: as in T5.

    Raises:
      ValueError: an argument or a binding is wrong.
    """
    given = arguments.of(super().train, args, kwargs)
    task, steps = given["mixture_or_task_name"], given["steps"]
    _name_what_is_not_used()
    data_checks.check_features(task, self._model_type, "train")
    self._check_lengths(task)
    schedule = self._learning_rate_schedule
    if callable(schedule) and "total_train_steps" in inspect.signature(
        schedule).parameters:
      self._learning_rate_schedule = functools.partial(
          schedule, total_train_steps=steps)
    random = (seeds.random_by_name() if self._seed is not None
              else contextlib.nullcontext())
    data_checks.check_rates(task)
    self._data = progress.of_data(task, self.batch_size)
    with self._own_bindings(functools.partial(data_checks.check_cached, task)), random:
      if not gin_files.bound("mesh_train_dataset_fn.use_cached", False):
        unknown_pieces.log(task, given.get("split", "train"))
      # `finetune` has read the file of another training, with its own validation.
      assert self._before is not None  # `_own_bindings` surrounds this.
      gin_files.bind(self._before["validation"])
      if (chosen := validation or self._validation) is not None:
        gin_files.bind(validations.bindings(task, chosen))
      super().train(**given)

  def _check_eval(self, with_score):
    data_checks.check_unpacked("`MtfModel.eval` needs")
    if not with_score:
      self._check_beams()

  def _check_beams(self, *names):
    gin_checks.check_beams(gin_internals.bindings(), self._model_type, *names)

  def _check_lengths(self, task):
    value_checks.check_lengths(
        self._sequence_length, task, seqio.get_mixture_or_task(task).output_features)

  @_shown
  def eval(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Evaluates as T5 does, prints a table of the scores, and returns them.

    Returns:
      the scores, as {task: {metric: score}}; {step: {task: {metric: score}}} unless
      `checkpoint_steps` is one step.

    Raises:
      ValueError: there is no checkpoint, the task has no such split, or no metrics.
    """
    base = super().eval
    given = arguments.of(base, args, kwargs)
    task, split = given["mixture_or_task_name"], given.get("split", "validation")
    steps = given.get("checkpoint_steps")
    data_checks.check_split(task, split)
    data_checks.check_features(task, self._model_type, "eval")
    self._check_lengths(task)
    data_checks.check_metrics(
        task, "scores" if given.get("eval_with_score") else "predictions")
    folder = given.get("summary_dir") or os.path.join(self._model_dir, f"{split}_eval")
    value_checks.check_output("summary_dir", folder, folder=True)
    tf.io.gfile.makedirs(folder)
    gin_files.bind(seeds.bind_evaluation_seed(gin_internals.bindings()))
    if steps is None:
      logging.info("Evaluates each new checkpoint until you stop it; "
                   "checkpoint_steps=-1 evaluates the last one only.")
    check = functools.partial(self._check_eval, given.get("eval_with_score"))
    with (self._own_bindings(check), results.read(folder) as found,
          self._explained()):
      try:
        base(**{**given, "summary_dir": folder})
      except checks.LengthError as error:
        raise checks.Error(
            f"{error.found}, or pass compute_sequence_length=False, which cuts texts "
            "to the model's `sequence_length`.") from error
    results.show(found)
    return results.of_one_step(found) if isinstance(steps, int) else found

  @_shown
  def finetune(self, *args: Any, validation: dict[str, Any] | None = None,
               **kwargs: Any) -> None:
    """Fine-tunes as T5 does, but also accepts the parameter names of T5's command.

    Args:
      *args: as in T5.
      validation: as in `train`.
      **kwargs: as in T5.

    Raises:
      ValueError: an argument is wrong, or there is no checkpoint to start from.
    """
    kwargs = {_OF_THE_COMMAND.get(name, name): value
              for name, value in kwargs.items()}
    given = arguments.of(super().finetune, args, kwargs)
    folder = given["pretrained_model_dir"]
    with self._own_bindings(), _explained(folder, "pretrained_model_dir"):
      _find_steps(given, "pretrained_checkpoint_step", folder, "pretrained_model_dir")
      self._validation = validation
      super().finetune(**given)

  @_shown
  def predict(self, *args: Any, **kwargs: Any) -> str | list[str]:
    """Predicts as T5 does, with this model's bindings.

    Returns:
      the path of the file that it wrote; a list of them unless `checkpoint_steps` is
      one step.

    Raises:
      ValueError: a file is missing, or beam search has a temperature.
    """
    given = arguments.of(super().predict, args, kwargs)
    self._warn_of_sampling(given)
    with (self._own_bindings(self._prepare_answers),
          results.files(given["output_file"]) as found, self._explained()):
      _find_steps(given, "checkpoint_steps", self._model_dir)
      super().predict(**given)
    for path in found:
      logging.info("Predictions are in %s.", path)
    one = isinstance(given.get("checkpoint_steps", -1), int) and len(found) == 1
    return found[0] if one else found

  def _prepare_answers(self):
    """Checks the beams, and binds how several answers are decoded."""
    self._check_beams(_OF_BEAMS)
    gin_files.bind(answers.bind_decoding(gin_internals.bindings()))

  @_shown
  def score(self, *args: Any, **kwargs: Any) -> Any:
    """Scores as T5 does, with this model's bindings.

    Raises:
      ValueError: a file is missing, or inputs have different numbers of targets.
    """
    given = arguments.of(super().score, args, kwargs)
    check = functools.partial(data_checks.check_unpacked, "`MtfModel.score` needs")
    if given.get("targets") is not None:
      data_checks.check_one_vocabulary(given.get("vocabulary"), "targets")
      check = functools.partial(
          self._check_texts, given.get("inputs"), given["targets"])
      check()  # Again once the model's own bindings are parsed, which may classify.
    if given.get("mixture_or_task_name"):
      data_checks.check_features(
          given["mixture_or_task_name"], self._model_type, "score_from_dataset")
    with self._own_bindings(check), self._explained():
      _find_steps(given, "checkpoint_steps", self._model_dir)
      return super().score(**given)

  def _check_texts(self, inputs, targets):
    gin_checks.check_scored_texts(
        gin_internals.bindings(), inputs, targets, ("inputs", "targets"))

  @_shown
  def export(self, *args: Any, **kwargs: Any) -> str:
    """Exports as T5 does, with this model's bindings.

    Returns:
      the path of the folder that it wrote.

    Raises:
      ValueError: the step is not one step, or beam search has a temperature.
    """
    given = arguments.of(super().export, args, kwargs)
    check = None
    if not given.get("eval_with_score"):
      self._warn_of_sampling(given)
      check = functools.partial(self._check_beams, _OF_BEAMS)
    with self._own_bindings(check), self._explained():
      _find_steps(given, "checkpoint_step", self._model_dir)
      found = super().export(**given)
    return found.decode() if isinstance(found, bytes) else found

  def _explained(self):
    return _explained(self._model_dir, "model_dir")

  def _warn_of_sampling(self, given):
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
  won = gin_files.winning(stack.bound(), asked, "synthesizer_stack.attention")
  gin_files.bind({gin_files.parameter(scope, *_ATTENTION): value
                  for scope, value in won.items()})


def _sizes():
  """The integers that gin binds to macros and to our parameters.

  Returns:
    a dict from (scope, selector, parameter).
  """
  return {(scope, selector, name): value
          for (scope, selector), values in gin_internals.bindings().items()
          for name, value in values.items() if checks.is_whole(value, 0) and (
              selector == "gin.macro" or selector.startswith("synthesizer_mtf."))}


def _warn_of_lost(given):
  """Names the sizes that gin held, if a trained model's operative_config.gin wins.

  Mesh TensorFlow's own defaults, which nobody has chosen, are left out.
  """
  given = {(scope, *key): value for (scope, *key), value in given.items()
           if gin_files.mesh_macros().get(scope) != value}
  lost = {}
  for (scope, selector, name), value in _sizes().items():
    is_given, wanted = gin_files.nearest(scope, {
        outer: size for (outer, *key), size in given.items()
        if key == [selector, name]})
    if is_given and wanted != value:
      lost[scope if selector == "gin.macro" else gin_files.parameter(
          scope, selector.rpartition(".")[2], name)] = value, wanted
  if lost:
    logging.warning(
        "operative_config.gin of the trained model wins: %s. extra_gin_bindings would "
        "win over it.", ", ".join(f"`{name}` is {value}, not {wanted}"
                                  for name, (value, wanted) in lost.items()))


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


def _find_steps(given, argument, folder, folder_argument="model_dir"):
  """Puts steps that exist into arguments; T5 takes the nearest, or the last by a file.

  Raises:
    ValueError: there is no checkpoint of a step.
  """
  asked = given.get(argument, -1)
  if asked in (None, "all") or asked == -1 and checkpoints.chosen(folder) is None:
    return
  several = isinstance(asked, (list, tuple))
  steps = [checkpoints.step_of(path) for path in checkpoints.of_steps(
      folder, asked if several else [asked], f"`{argument}`", folder_argument)]
  given[argument] = steps if several else steps[0]


@contextlib.contextmanager
def _explained(folder, argument):
  """Says what a folder lacks if T5 fails, which reads the two files named below."""
  try:
    yield
  except (OSError, ValueError) as error:
    missing = ("checkpoint" if checkpoints.chosen(folder) is None else
               "operative_config.gin" if not tf.io.gfile.exists(
                   os.path.join(folder, "operative_config.gin")) else None)
    if missing is None or isinstance(error, checks.Error):
      raise
    raise checks.Error(f"`{argument}` is {folder!r}, where there is no {missing}; "
                       "train first, or name the folder of a trained model.") from None


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
