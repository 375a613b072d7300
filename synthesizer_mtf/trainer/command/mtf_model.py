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
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_origins
from synthesizer_mtf import patches
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.command import arguments
from synthesizer_mtf.trainer.command import model_record
from synthesizer_mtf.trainer.command import precedence
from synthesizer_mtf.trainer.command import run_checks
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.data import file_checks
from synthesizer_mtf.trainer.data import seed as seeds
from synthesizer_mtf.trainer.data import token_batches
from synthesizer_mtf.trainer.data import unknown_pieces
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import padding
from synthesizer_mtf.trainer.model import texts
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import history as history_lib
from synthesizer_mtf.trainer.watching import progress
from synthesizer_mtf.trainer.watching import results
from synthesizer_mtf.trainer.watching import validation as validations
import t5.models
from t5.models import mesh_transformer
from t5.models import mtf_model
import tensorflow.compat.v1 as tf

# The parameters that T5 binds for these arguments of `predict` and `export`.
_DECODING = {"beam_size": "Bitransformer.decode.beam_size",
             "temperature": "Bitransformer.decode.temperature",
             "keep_top_k": "Bitransformer.decode.sampling_keep_top_k"}
_RUN = "mesh_tensorflow.transformer.utils.run"
# Arguments of MtfModel that T5's command takes from `utils.run`. Lengths and the type
# of the model are taken from there, if they are not passed.
_ARGUMENTS = ("batch_size", "iterations_per_loop", "keep_checkpoint_max",
              "layout_rules", "learning_rate_schedule", "mesh_devices", "mesh_shape",
              "optimizer", "save_checkpoints_steps")
_ONE_CPU = {"mesh_shape": "model:1,batch:1", "mesh_devices": ["cpu:0"]}  # cpu.gin.
_ONE_SEQUENCE = ("sequences_per_batch", 1)  # T5's default.
Path = str | os.PathLike[str]


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

  @arguments.checked
  def __init__(self, given: dict[str, Any], *,
               attention: str | list[str] | None = None, seed: int | None = None,
               warm_start: Path | None = None) -> None:
    """Declares T5's parameters, and ours.

    Args:
      given: as in T5; without `tpu`, no TPU is used.
      attention: as `synthesizer_stack.attention`; None for the binding in gin, or in
        the folder's operative_config.gin.
      seed: an integer, as in `train_with_seed`.
      warm_start: a checkpoint or folder, as `warm_start.checkpoint`.
    """
    super().__init__(**{"tpu": None, **given, "batch_size": 1})
    model_folder.check_name(self._model_dir, "`model_dir`")
    if attention is None:
      precedence.check_attentions(self._gin_bindings)
    self._given, self._seed = given, seed
    self._attention, self._warm_start = attention, warm_start
    self._data: str | None = None  # What the running method trains on, in words.
    # How many texts the running method predicts, as in `padding`.
    self._texts: Callable[[], int | None] = _unknown
    self._is_settled = False  # Whether gin holds what counts for a running method.
    self._validation: dict[str, Any] | None = None  # Of `finetune`, which trains.
    self._history: history_lib.History | None = None  # Of the last training.
    self._answers: Any = None  # What `predict` has answered for, and a `texts.Texts`.
    batch = given.get("batch_size", _ONE_SEQUENCE)
    if given.get("sequence_length") or not token_batches.counts_tokens(batch):
      self.batch_size = batch
    run_checks.check(run_checks.Run("new", "new", {
        "mesh_shape": given.get("mesh_shape") or self._mesh_shape,
        "mesh_devices": self._mesh_devices, "layout_rules": self._layout_rules,
        "batch_size": self.batch_size if "batch_size" in given else None}))

  @property
  def batch_size(self) -> int:
    """The number of sequences in a batch; setting it takes what T5's argument takes."""
    return super().batch_size

  @batch_size.setter
  def batch_size(self, batch: Any) -> None:
    batch = value_checks.read("batch_size", batch)
    with arguments.naming("__init__"):
      batch = token_batches.rounded_down(batch, self._sequence_length)
    super(MtfModel, type(self)).batch_size.fset(self, batch)

  @property
  def history(self) -> history_lib.History | None:
    """What the last training has done, also if it was stopped; None before one."""
    return self._history

  def __repr__(self) -> str:
    with console.shown():  # Without a warning of TensorFlow.
      path = complete.chosen(self._model_dir)
    try:
      with self._settled(self._own()):
        shown: dict[str, Any] = {"attention": progress.attentions() or None,
                 "sequence_length": self._sequence_length}
    except checks.Error as error:  # Such as sizes that the folder has not.
      shown = {"error": str(error)}
    if path:
      shown["step"] = complete.saved_step(path)
      if trained := optimizer_slots.count_trained(path):
        shown["parameters"] = trained
    return f"MtfModel({self._model_dir!r}, " + ", ".join(
        f"{name}={value!r}" for name, value in shown.items()) + ")"

  def estimator(self, vocabulary: Any, init_checkpoint: str | None = None,
                **kwargs: Any) -> tf.estimator.Estimator:
    """Makes the estimator; a checkpoint may have another attention or another length.

    Raises:
      ValueError: a parameter is wrong, or there are two checkpoints to start from.
    """
    with self._settled():
      chosen = precedence.by_parameter(gin_origins.chosen())
      made = super().estimator(vocabulary, init_checkpoint, **kwargs)
      mixed_precision.warn_of_lost_activations(
          chosen.get(precedence.ACTIVATIONS, {}).values())
      if self._seed is not None:
        made.configure(tf_random_seed=self._seed)
      made.data, made.texts, made.history = self._data, self._texts, self._history
      return made

  @contextlib.contextmanager
  def _settled(self, *folders: precedence.Folder) -> Iterator[None]:
    """Makes gin hold what counts for one call of a method, and nothing afterwards.

    The folders are those of trained models whose records count, an earlier one more.
    """
    if self._is_settled:  # `finetune` calls `train`, and all call `estimator`.
      yield
      return
    given, lengths = self._gin_bindings, self._sequence_length
    with (gin_files.restored(with_calls=True),
          patches.wrapped("read record", mtf_model, precedence.reading_nothing_again)):
      try:
        precedence.settle(folders, given, self._attention)
        if self._warm_start is not None:
          gin_files.bind({"warm_start.checkpoint": self._warm_start})
        self._take_what_gin_says()
        value_checks.check(gin_internals.bindings())
        # T5 parses these once more, after its own binding of two dtypes.
        self._gin_bindings = precedence.dtype_lines(given)
        self._is_settled = True
        yield
      finally:
        self._gin_bindings, self._is_settled = given, False
        self._sequence_length, self._texts = lengths, _unknown
        self._validation = None

  def _own(self) -> precedence.Folder:
    return precedence.Folder(self._model_dir)

  def _take_what_gin_says(self):
    """Takes lengths and the kind of the model from gin, if no argument says them."""
    given = arguments.passed(self._given)
    if not given.get("sequence_length"):
      self._sequence_length = gin_files.bound(
          "utils.run.sequence_length", self._sequence_length)
      if not isinstance(given.get("batch_size", ()), int):
        self.batch_size = given.get("batch_size", _ONE_SEQUENCE)
    if "model_type" not in given:
      self._model_type = gin_files.bound("utils.run.model_type", self._model_type)

  def _run_arguments(self, split):
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

  def _check(self, mode, task=None, split=None, **others):
    """Checks a method before it runs, as the command checks this mode."""
    run_checks.check(run_checks.Run(
        "method", mode, self._run_arguments(split), task, gin_internals.bindings(),
        self._model_dir, **others))

  @arguments.checked
  def train(self, given: dict[str, Any], *,
            validation: dict[str, Any] | None = None) -> history_lib.History:
    """Trains as T5 does, and passes `total_train_steps` to a learning rate schedule.

    Args:
      given: as in T5.
      validation: parameters of `train_and_eval`, such as {"metric": "bleu", "patience":
        3}, to evaluate checkpoints and keep the best; None for no evaluation.

    Returns:
      the losses, the speed and the results of the evaluations, by step.

    Raises:
      ValueError: an argument or a binding is wrong.
    """
    task, split = given["mixture_or_task_name"], given.get("split", "train")
    resumes = bool(complete.find(self._model_dir))
    if not self._is_settled:  # `finetune` has taken what a folder recorded.
      _name_what_is_not_used(arguments.passed(self._given))
      if not (resumes or self._warm_start or given.get("init_checkpoint")):
        _check_no_start_by_command()
    schedule = self._learning_rate_schedule
    if callable(schedule) and "total_train_steps" in inspect.signature(
        schedule).parameters:
      self._learning_rate_schedule = functools.partial(
          schedule, total_train_steps=given["steps"])
    random = (seeds.random_by_name() if self._seed is not None
              else contextlib.nullcontext())
    with self._settled(*([self._own()] if resumes else [])), random:
      self._check("train", task, split)
      self._data = progress.described(task, self.batch_size)
      unknown_pieces.log(task, split)
      chosen = self._validation if validation is None else validation
      if chosen is not None:
        gin_files.bind(validations.bindings(task, chosen))
        gin_files.bind(seeds.bind_evaluation_seed(gin_internals.bindings(), task))
      model_record.complete(task, self._run_arguments(split))
      self._history = history_lib.History(self._model_dir)
      super().train(**given)
    return self._history

  @arguments.checked
  def eval(self, given: dict[str, Any]) -> dict[Any, Any]:
    """Evaluates as T5 does, prints a table of the scores, and returns them.

    Returns:
      the scores, as {task: {metric: score}}; {step: {task: {metric: score}}} unless
      `checkpoint_steps` is one step.

    Raises:
      ValueError: there is no checkpoint, the task has no such split, or no metrics.
    """
    task, split = given["mixture_or_task_name"], given.get("split", "validation")
    steps, by_score = given.get("checkpoint_steps"), given.get("eval_with_score")
    folder = given.get("summary_dir") or os.path.join(self._model_dir, f"{split}_eval")
    file_checks.check_output("summary_dir", folder, folder=True)
    if steps is None:
      logging.info("Evaluates each new checkpoint until you stop it; "
                   "checkpoint_steps=-1 evaluates the last one only.")
    with self._settled(self._own()), results.read(folder) as scores:
      self._check("score_eval" if by_score else "eval", task, split)
      _check_trained(self._model_dir, waits=steps is None)
      if not by_score:
        unknown_pieces.log(task, split)
      tf.io.gfile.makedirs(folder)
      gin_files.bind(seeds.bind_evaluation_seed(gin_internals.bindings(), task))
      data = data_checks.read_by(task, split)
      try:
        with console.evaluating(data):
          super().eval(**{**given, "summary_dir": folder})
      except checks.LengthError as error:
        raise checks.Error(
            f"{error.problem}, or pass compute_sequence_length=False, which cuts texts "
            "to the model's `sequence_length`.") from error
    results.show(scores, data)
    return next(iter(scores.values()), {}) if isinstance(steps, int) else scores

  @arguments.checked
  def finetune(self, given: dict[str, Any], *,
               validation: dict[str, Any] | None = None) -> history_lib.History:
    """Fine-tunes as T5 does, but also accepts the parameter names of T5's command.

    `validation` is that of `train`, and so is what it returns.

    Raises:
      ValueError: an argument is wrong, or there is no checkpoint to start from.
    """
    start = precedence.Folder(
        given["pretrained_model_dir"], restores=False, argument="pretrained_model_dir")
    resumed = [self._own()] if complete.find(self._model_dir) else []
    with self._settled(*resumed, start):
      _find_steps(given, "pretrained_checkpoint_step", start.path, start.argument)
      self._validation = validation
      super().finetune(**given)
    assert self._history is not None  # It trains by `train`.
    return self._history

  @arguments.checked
  def predict(self, given: dict[str, Any]) -> Any:
    """Predicts as T5 does, with this model's bindings; or answers a list of texts.

    The graph and the checkpoint that answer texts stay for the next call, until it asks
    for something else than other texts, or `close` is called.

    Returns:
      the path of the file that it wrote; a list of them unless `checkpoint_steps` is
      one step. For texts, a list of their answers, each a text; or a dict of "outputs"
      and "scores", as in a file, if `synthesizer_answers.number` is bound. Unless
      `checkpoint_steps` is one step, a dict of such lists by step.

    Raises:
      ValueError: a file is missing, or beam search has a temperature.
    """
    if not isinstance(given["input_file"], str):
      return self._answered(**given)
    if given.get("output_file") is None:
      raise arguments.missing("predict", "output_file")
    with (self._settled(self._own()),
          results.files(given["output_file"]) as paths):
      _find_steps(given, "checkpoint_steps", self._model_dir)
      given = self._decoding(given)
      self._check("infer")
      gin_files.bind(answers.bind_decoding(gin_internals.bindings()))
      self._texts = padding.texts_to_decode
      super().predict(**given)
    for path in paths:
      logging.info("Predictions are in %s.", path)
    one = isinstance(given.get("checkpoint_steps", -1), int) and len(paths) == 1
    return paths[0] if one else paths

  def _answered(self, input_file, output_file=None, checkpoint_steps=-1, **given):
    """The answers to texts, as `predict` returns them."""
    if output_file is not None or checkpoint_steps is None:
      wrong, value = (("checkpoint_steps", None) if output_file is None else
                      ("output_file", output_file))
      raise checks.Error(
          f"`{wrong}` is {value!r}, but `input_file` is a list of texts, whose answers "
          "`predict` returns; leave it out, or give the path of a file of lines.")
    _check_trained(self._model_dir)
    paths = (complete.find(self._model_dir) if checkpoint_steps == "all" else
             complete.at_steps(self._model_dir, checkpoint_steps, "`checkpoint_steps`",
                               "model_dir"))
    made = {complete.saved_step(path): self._answering(path, given)(input_file)
            for path in paths}
    return made.popitem()[1] if isinstance(checkpoint_steps, int) else made

  def _answering(self, path, given):
    """What answers texts by a checkpoint: that of the last call, if nothing differs."""
    key = (path, tf.io.gfile.stat(f"{path}.index").mtime_nsec, given, self.batch_size,
           self._sequence_length, repr(gin_internals.bindings()))
    if self._answers is None or self._answers[0] != key:
      self.close()
      with self._settled(self._own()):
        decoding = self._decoding(given)
        self._check("infer")
        vocabulary = decoding["vocabulary"]
        self._answers = key, texts.Texts(
            self.estimator(vocabulary), path, vocabulary, self._model_type,
            (self.batch_size, self._sequence_length["inputs"]),
            gin_files.bound("decode_from_file.repeats", 1))
    return self._answers[1]

  def close(self) -> None:
    """Ends the session that `predict` keeps for the next texts, and frees its memory.

    The next call of `predict` builds it again.
    """
    if self._answers is not None:
      self._answers[1].close()
    self._answers = None

  @arguments.checked
  def score(self, given: dict[str, Any]) -> Any:
    """Scores as T5 does, with this model's bindings.

    Raises:
      ValueError: a file is missing, or inputs have different numbers of targets.
    """
    both = given.get("inputs"), given.get("targets")
    task = given.get("mixture_or_task_name")
    with self._settled(self._own()):
      self._check("score_from_dataset" if task else "score_from_strings", task,
                  given.get("mixture_or_task_split"), texts=both,
                  vocabulary=given.get("vocabulary"))
      _find_steps(given, "checkpoint_steps", self._model_dir)
      if not task:
        self._texts = functools.partial(padding.texts_to_score, *both)
        if given.get("vocabulary") is None:
          given["vocabulary"] = mesh_transformer.get_vocabulary()
      return super().score(**given)

  @arguments.checked
  def export(self, given: dict[str, Any]) -> str:
    """Exports as T5 does, with this model's bindings; returns the path of the folder.

    Raises:
      ValueError: the step is not one step, or beam search has a temperature.
    """
    decodes = not given.get("eval_with_score")
    with self._settled(self._own()):
      _find_steps(given, "checkpoint_step", self._model_dir)
      given = self._decoding(given, decodes)
      self._check("export_infer" if decodes else "export_score")
      path = super().export(**given)
    return path.decode() if isinstance(path, bytes) else path

  def _decoding(self, given, decodes=True):
    """Adds to arguments of a call what gin binds, where T5 has defaults of its own.

    A language model whose inputs have no length decodes, too, until it is settled.
    """
    bound = {name: gin_files.bound(parameter, None)
             for name, parameter in _DECODING.items()}
    given = {**given, **{name: value for name, value in bound.items()
                         if value is not None}, **arguments.passed(given)}
    if given.get("vocabulary") is None:
      given["vocabulary"] = mesh_transformer.get_vocabulary()
    if not decodes:
      return given
    if given.get("temperature") is None and self._model_type.startswith("bi"):
      if given.get("beam_size", 1) > 1:
        given["temperature"] = 0
      else:
        logging.warning(
            "Outputs are drawn at random, at T5's default temperature of 1.0; pass "
            "temperature=0 for the most likely tokens.")
    gin_files.bind({parameter: given[name] for name, parameter in _DECODING.items()
                    if name in given})
    lengths = decode_length.sharing(self._model_type, self._sequence_length)
    if lengths is not None:
      self._sequence_length = lengths
      gin_files.bind({decode_length.SHARED: True})
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
    ValueError: there is no checkpoint, or none of a step.
  """
  asked = given.get(argument, -1)
  _check_trained(folder, folder_argument, waits=asked is None)
  if asked in (None, "all"):
    return
  steps = [complete.saved_step(path) for path in complete.at_steps(
      folder, asked, f"`{argument}`", folder_argument)]
  given[argument] = steps if isinstance(asked, (list, tuple)) else steps[0]


def _check_trained(folder, argument="model_dir", waits=False):
  """Raises if a folder lacks a checkpoint, unless T5 waits for one, or its record."""
  has_record = tf.io.gfile.exists(os.path.join(folder, precedence.RECORD))
  missing = ("checkpoint" if complete.chosen(folder) is None and not (
      waits and has_record) else precedence.RECORD)
  if missing == "checkpoint" or not has_record:
    raise checks.Error(f"`{argument}` is {folder!r}, where there is no {missing}; "
                       "train first, or name the folder of a trained model.")


def _name_what_is_not_used(given):
  """Warns of parameters of `utils.run` that a person has bound, but not passed."""
  run = {bound.name: bound.value for bound in gin_origins.chosen()
         if not bound.scope and bound.selector == _RUN}
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


def _check_no_start_by_command():
  """Raises if gin names a checkpoint where only T5's command reads it."""
  parameter = "utils.run.init_checkpoint"
  if path := gin_files.bound(parameter, None):
    raise checks.Error(
        f"`{parameter}` is {path!r}, but MtfModel does not read it, and would train "
        "from scratch; pass `init_checkpoint` to `train`, or `warm_start` to MtfModel, "
        f"or bind `{parameter}` to None.")
