"""T5's Python API, `MtfModel`, with a chosen attention.

T5's `MtfModel` reads the operative_config.gin of a model's folder over all that the
user has bound. Here `precedence.settle` fills gin at the beginning of each method: an
argument wins, then `extra_gin_bindings`, then what the user bound in gin, and last the
folder. All this is in gin only while the method runs.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
import os
from typing import Any

from absl import logging
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_origins
from synthesizer_mtf import patches
from synthesizer_mtf.fast import switch
from synthesizer_mtf.trainer.checkpoints import checkpoints
from synthesizer_mtf.trainer.command import arguments
from synthesizer_mtf.trainer.command import gin_checks
from synthesizer_mtf.trainer.command import model_record
from synthesizer_mtf.trainer.command import precedence
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.data import seed as seeds
from synthesizer_mtf.trainer.data import unknown_pieces
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import padding
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import messages
from synthesizer_mtf.trainer.watching import progress
from synthesizer_mtf.trainer.watching import results
from synthesizer_mtf.trainer.watching import validation as validations
import t5.models
from t5.models import mesh_transformer
from t5.models import mtf_model
import tensorflow.compat.v1 as tf

_CHECKPOINT = "warm_start.checkpoint"
# The parameters that T5 binds for these arguments of `predict` and `export`.
_DECODING = {"beam_size": "Bitransformer.decode.beam_size",
             "temperature": "Bitransformer.decode.temperature",
             "keep_top_k": "Bitransformer.decode.sampling_keep_top_k"}
# T5's command passes the parameters of `finetune` by these names.
_OF_THE_COMMAND = {"steps": "finetune_steps",
                   "checkpoint_steps": "pretrained_checkpoint_step"}
_RUN = "mesh_tensorflow.transformer.utils.run"
# Arguments of MtfModel that T5's command takes from `utils.run`. Lengths and the type
# of the model are taken from there, if they are not passed.
_ARGUMENTS = ("batch_size", "iterations_per_loop", "keep_checkpoint_max",
              "layout_rules", "learning_rate_schedule", "mesh_devices", "mesh_shape",
              "optimizer", "save_checkpoints_steps")
_ONE_CPU = {"mesh_shape": "model:1,batch:1", "mesh_devices": ["cpu:0"]}  # cpu.gin.
_OF_BEAMS = ("beam_size", "temperature")  # Arguments of `predict` and `export`.
Path = str | os.PathLike[str]


@contextlib.contextmanager
def _in_python(method):
  """Shows the log, and lets messages name the arguments of a method."""
  with (console.shown(), switch.started(),
        checks.calling(arguments.names(method)), messages.explained_files()):
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
  _sequence_length: Any
  _model_type: str
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
      self._given = arguments.of(base, args, kwargs)
      base(**self._given)
      checkpoints.check_name(self._model_dir, "`model_dir`")
      self._attention, self._seed, self._warm_start = (
          arguments.read("attention", attention), arguments.read("seed", seed),
          arguments.read("warm_start", warm_start))
      if attention is None:
        precedence.check_attentions(self._gin_bindings)
    self._data: str | None = None  # What the running method trains on, in words.
    # How many texts the running method predicts, as in `padding`.
    self._texts: Callable[[], int | None] = _unknown
    self._is_settled = False  # Whether gin holds what counts for a running method.
    # What the running method checks once all bindings are in gin.
    self._check: Callable[[], None] | None = None
    self._validation: dict[str, Any] | None = None  # Of `finetune`, which trains.

  def estimator(self, vocabulary: Any, init_checkpoint: str | None = None,
                **kwargs: Any) -> tf.estimator.Estimator:
    """Makes the estimator; a checkpoint may have another attention or another length.

    Raises:
      ValueError: a parameter is wrong, or there are two checkpoints to start from.
    """
    with self._settled():
      gin_checks.check_model(gin_internals.bindings())
      if self._check is not None:
        self._check()
      made = super().estimator(vocabulary, init_checkpoint, **kwargs)
      if self._seed is not None:
        made.configure(tf_random_seed=self._seed)
      made.data, made.texts = self._data, self._texts
      return made

  @contextlib.contextmanager
  def _settled(self, *folders: precedence.Folder,
               check: Callable[[], None] | None = None) -> Iterator[None]:
    """Makes gin hold what counts for one call of a method, and nothing afterwards.

    Args:
      *folders: trained models whose records count; an earlier one counts more.
      check: a function that raises if the bindings do not fit this method.
    """
    self._check = self._check or check
    if self._is_settled:  # `finetune` calls `train`, and all call `estimator`.
      yield
      return
    given, lengths = self._gin_bindings, self._sequence_length
    with (gin_files.restored(with_calls=True),
          patches.wrapped("read record", mtf_model, precedence.reading_nothing_again)):
      try:
        precedence.settle(folders, given, self._attention)
        if self._warm_start is not None:
          gin_files.bind({_CHECKPOINT: self._warm_start})
        self._take_what_gin_says()
        # T5 parses these once more, after its own binding of two dtypes.
        self._gin_bindings = precedence.lines_of_dtypes(given)
        self._is_settled = True
        yield
      finally:
        self._gin_bindings, self._is_settled = given, False
        self._sequence_length, self._texts = lengths, _unknown
        self._check = self._validation = None

  def _own(self) -> precedence.Folder:
    return precedence.Folder(self._model_dir)

  def _take_what_gin_says(self):
    """Takes lengths and the kind of the model from gin, if no argument says them."""
    given = arguments.passed(self._given)
    if not given.get("sequence_length"):
      self._sequence_length = gin_files.bound(
          "utils.run.sequence_length", self._sequence_length)
      if not isinstance(given.get("batch_size", ()), int):
        self.batch_size = given.get("batch_size", ("sequences_per_batch", 1))
    if "model_type" not in given:
      self._model_type = gin_files.bound("utils.run.model_type", self._model_type)

  def _arguments_of_run(self, split):
    """The arguments that `utils.run` would have had to train this model."""
    shape = self._given.get("mesh_shape")
    devices = self._mesh_devices
    if not self._tpu and not self._mesh_shape.dims:
      shape, devices = _ONE_CPU["mesh_shape"], _ONE_CPU["mesh_devices"]
    return {
        "sequence_length": self._sequence_length, "batch_size": self.batch_size,
        "model_type": self._model_type, "mesh_shape": shape, "mesh_devices": devices,
        "layout_rules": self._given.get("layout_rules"), "dataset_split": split,
        "optimizer": self._optimizer, "autostack": self._autostack,
        "learning_rate_schedule": self._learning_rate_schedule,
        "save_checkpoints_steps": self._save_checkpoints_steps,
        "keep_checkpoint_max": self._keep_checkpoint_max,
        "iterations_per_loop": self._iterations_per_loop}

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
    base = super().train
    given = arguments.of(base, args, kwargs)
    task, steps = given["mixture_or_task_name"], given["steps"]
    resumes = bool(checkpoints.find(self._model_dir))
    if not self._is_settled:  # `finetune` has taken what a folder recorded.
      _name_what_is_not_used(arguments.passed(self._given))
      if not (resumes or self._warm_start or given.get("init_checkpoint")):
        _check_no_start_of_the_command()
    schedule = self._learning_rate_schedule
    if callable(schedule) and "total_train_steps" in inspect.signature(
        schedule).parameters:
      self._learning_rate_schedule = functools.partial(
          schedule, total_train_steps=steps)
    random = (seeds.random_by_name() if self._seed is not None
              else contextlib.nullcontext())
    resumed = [self._own()] if resumes else []
    check = functools.partial(data_checks.check_cached, task)
    with self._settled(*resumed, check=check), random:
      data_checks.check_features(task, self._model_type, "train")
      self._check_lengths(task)
      data_checks.check_rates(task)
      self._data = progress.of_data(task, self.batch_size)
      if not gin_files.bound("mesh_train_dataset_fn.use_cached", False):
        unknown_pieces.log(task, given.get("split", "train"))
      chosen = self._validation if validation is None else validation
      if chosen is not None:
        gin_files.bind(validations.bindings(task, chosen))
        gin_files.bind(seeds.bind_evaluation_seed(gin_internals.bindings(), task))
      model_record.complete(task, self._arguments_of_run(given.get("split", "train")))
      base(**given)

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
    folder = given.get("summary_dir") or os.path.join(self._model_dir, f"{split}_eval")
    value_checks.check_output("summary_dir", folder, folder=True)
    if steps is None:
      logging.info("Evaluates each new checkpoint until you stop it; "
                   "checkpoint_steps=-1 evaluates the last one only.")
    scores = bool(given.get("eval_with_score"))
    with (self._settled(self._own(), check=functools.partial(self._check_eval, scores)),
          results.read(folder) as found, self._explained()):
      data_checks.check_split(task, split)
      data_checks.check_features(task, self._model_type, "eval")
      self._check_lengths(task)
      data_checks.check_metrics(task, "scores" if scores else "predictions")
      if not scores:
        unknown_pieces.log(task, split)
      tf.io.gfile.makedirs(folder)
      gin_files.bind(seeds.bind_evaluation_seed(gin_internals.bindings(), task))
      data = data_checks.read_by(task, split)
      try:
        with console.evaluating(data):
          base(**{**given, "summary_dir": folder})
      except checks.LengthError as error:
        raise checks.Error(
            f"{error.found}, or pass compute_sequence_length=False, which cuts texts "
            "to the model's `sequence_length`.") from error
    results.show(found, data)
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
    base = super().finetune
    given = arguments.of(base, args, kwargs)
    start = precedence.Folder(
        given["pretrained_model_dir"], restores=False, argument="pretrained_model_dir")
    resumed = [self._own()] if checkpoints.find(self._model_dir) else []
    with self._settled(*resumed, start), _explained(start.path, start.argument):
      _find_steps(given, "pretrained_checkpoint_step", start.path, start.argument)
      self._validation = validation
      base(**given)

  @_shown
  def predict(self, *args: Any, **kwargs: Any) -> str | list[str]:
    """Predicts as T5 does, with this model's bindings.

    Returns:
      the path of the file that it wrote; a list of them unless `checkpoint_steps` is
      one step.

    Raises:
      ValueError: a file is missing, or beam search has a temperature.
    """
    base = super().predict
    given = arguments.of(base, args, kwargs)
    with (self._settled(self._own(), check=self._prepare_answers),
          results.files(given["output_file"]) as found, self._explained()):
      _find_steps(given, "checkpoint_steps", self._model_dir)
      self._share_length()
      self._texts = padding.of_inference
      base(**self._decoding(given))
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
    base = super().score
    given = arguments.of(base, args, kwargs)
    check = functools.partial(data_checks.check_unpacked, "`MtfModel.score` needs")
    if given.get("targets") is not None:
      data_checks.check_one_vocabulary(given.get("vocabulary"), "targets")
      check = functools.partial(
          self._check_texts, given.get("inputs"), given["targets"])
      check()  # Again once the model's own bindings are parsed, which may classify.
    task = given.get("mixture_or_task_name")
    with self._settled(self._own(), check=check), self._explained():
      if task:
        data_checks.check_features(task, self._model_type, "score_from_dataset")
      else:
        self._texts = functools.partial(
            padding.of_scores, given.get("inputs"), given.get("targets"))
        if given.get("vocabulary") is None:
          given["vocabulary"] = mesh_transformer.get_vocabulary()
      _find_steps(given, "checkpoint_steps", self._model_dir)
      return base(**given)

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
    base = super().export
    given = arguments.of(base, args, kwargs)
    decodes = not given.get("eval_with_score")
    check = functools.partial(self._check_beams, _OF_BEAMS) if decodes else None
    with self._settled(self._own(), check=check), self._explained():
      _find_steps(given, "checkpoint_step", self._model_dir)
      if decodes:
        self._share_length()
      found = base(**self._decoding(given, decodes))
    return found.decode() if isinstance(found, bytes) else found

  def _share_length(self):
    """Lets a language model whose inputs have no length decode, until it is settled."""
    lengths = decode_length.sharing(self._model_type, self._sequence_length)
    if lengths is not None:
      self._sequence_length = lengths
      gin_files.bind({decode_length.SHARED: True})

  def _explained(self):
    return _explained(self._model_dir, "model_dir")

  def _decoding(self, given, decodes=True):
    """Adds to arguments of a call what gin binds, where T5 has defaults of its own."""
    bound = {name: gin_files.bound(parameter, None)
             for name, parameter in _DECODING.items()}
    given = {**given, **{name: value for name, value in bound.items()
                         if value is not None}, **arguments.passed(given)}
    if given.get("vocabulary") is None:
      given["vocabulary"] = mesh_transformer.get_vocabulary()
    if given.get("temperature") is None and self._model_type.startswith("bi") and (
        decodes):
      if given.get("beam_size", 1) > 1:
        given["temperature"] = 0
      else:
        logging.warning(
            "Outputs are drawn at random, at T5's default temperature of 1.0; pass "
            "temperature=0 for the most likely tokens.")
    return given


def _unknown() -> None:
  """The number of texts if only the data tell it."""


def apply() -> None:
  """Replaces T5's `MtfModel`, also in T5's command with `--use_model_api`."""
  patches.assign("mtf_model.MtfModel", mtf_model, MtfModel)
  patches.assign("MtfModel", t5.models, MtfModel)


def _find_steps(given, argument, folder, folder_argument="model_dir"):
  """Puts steps that exist into arguments; T5 takes the nearest, or the last by a file.

  Raises:
    ValueError: there is no checkpoint of a step.
  """
  asked = given.get(argument, -1)
  if asked in (None, "all") or asked == -1 and checkpoints.chosen(folder) is None:
    return
  steps = [checkpoints.step_of(path) for path in checkpoints.of_steps(
      folder, asked, f"`{argument}`", folder_argument)]
  given[argument] = steps if isinstance(asked, (list, tuple)) else steps[0]


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


def _name_what_is_not_used(given):
  """Warns of parameters of `utils.run` that a person has bound, but not passed."""
  run = {each.name: each.value for each in gin_origins.chosen()
         if not each.scope and each.selector == _RUN}
  function = run.pop("train_model_fn", None)
  if function is not None and "warm_start" not in repr(function):
    logging.warning(
        "`utils.run.train_model_fn` is %r, but MtfModel does not use it: it trains in "
        "its own way, with a seed if it is given one, and without summaries; "
        "synthesizer_mesh_transformer without --use_model_api has them.", function)
  lost = {name: value for name, value in run.items()
          if name in _ARGUMENTS and name not in given and value != _ONE_CPU.get(name)}
  for name, value in lost.items():
    logging.warning("`utils.run.%s` is %r, but MtfModel does not read it; pass %s.",
                    name, value, name)


def _check_no_start_of_the_command():
  """Raises if gin names a checkpoint where only T5's command reads it."""
  parameter = "utils.run.init_checkpoint"
  if path := gin_files.bound(parameter, None):
    raise checks.Error(
        f"`{parameter}` is {path!r}, but MtfModel does not read it, and would train "
        "from scratch; pass `init_checkpoint` to `train`, or `warm_start` to MtfModel, "
        f"or bind `{parameter}` to None.")
