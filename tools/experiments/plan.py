"""Makes the commands of `reproduce` that train and evaluate a row, at two scales.

At `paper` scale the commands are those of gin/recipes/pod, for a machine with a TPU. At
`laptop` scale they are those of gin/recipes/laptop, which `reproduce` runs.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import pathlib
from typing import Any

from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.watching import validation_record

_EVALUATED = "@t5.models.mesh_transformer.mesh_eval_dataset_fn"
_C4 = "synth_c4_span_corruption"
_WORDS = "synth_lm1b"  # Its score is the perplexity per word.
# Data sets without a validation split.
_WITHOUT_VALIDATION = (
    _WORDS, "synth_ag_news_encoder", "synth_imdb_reviews_encoder",
    "synth_ag_news", "synth_imdb_reviews")
# At the paper's scale, evaluation of these tasks decodes the test split, with a higher
# limit of tokens than eval.gin's 128.
_LONG = ("synth_wmt14_ende", "synth_wmt14_enfr", "synth_cnn_dailymail")
_PAPER_TOKENS = 256
# The tokens to decode at laptop scale. At the paper's scale these tasks use beams.
_DECODED_TOKENS = {"synth_wmt14_ende": 64, "synth_wmt14_enfr": 64,
                   "synth_cnn_dailymail": 96, "synth_personachat": 32}
_PRETRAINED_STEP = 524288  # gin/recipes/pod/pretraining.gin

# This is more batches than the validation split of any laptop data set has.
_PERPLEXITY_BATCHES = 200

Params = dict[str, Any]  # gin bindings.


@dataclasses.dataclass(frozen=True)
class Settings:
  """The user's choices.

  Attributes:
    steps: the steps of training, or of pre-training; None for the study's own steps.
    finetune_steps: the steps after pre-training; None for the study's own steps.
    task: the task to train and evaluate; None for the tasks of the table.
    flags: more flags of the launcher, for all commands.
    gin_params: more gin bindings, for all commands.
    gin_files: more gin files, after all others.
    best_by: the metric whose best step is evaluated; None for the last step.
  """
  steps: int | None = 1000
  finetune_steps: int | None = 1000
  task: str | None = None
  flags: list[str] = dataclasses.field(default_factory=list)
  gin_params: list[str] = dataclasses.field(default_factory=list)
  gin_files: list[str] = dataclasses.field(default_factory=list)
  best_by: str | None = None

  def choosing(self, task: str, low: Iterable[str]) -> Params:
    """Returns the bindings of a training that keeps its best step, if it is wanted.

    Args:
      task: the task or mixture, or a gin reference to its name.
      low: the scores that are better if they are lower, such as "TASK/edit_distance";
        their last part is the metric.
    """
    if not self.best_by:
      return {}
    metric = self.best_by.rpartition("/")[2]
    is_low = metric in (name.rpartition("/")[2] for name in low)
    return {"mesh_eval_dataset_fn.mixture_or_task_name": task,
            "train_and_eval.eval_dataset_fn": _EVALUATED,
            "train_and_eval.metric": self.best_by,
            **({"train_and_eval.greater_is_better": False} if is_low else {})}

  def evaluated_folder(self, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns the folder with the checkpoint to evaluate, of a model's folder."""
    return model_dir / complete.BEST if self.best_by else model_dir

  def evaluated(self, model_dir: pathlib.Path, step: int) -> tuple[pathlib.Path, int]:
    """Returns the folder and the step to evaluate, of a model with its last step.

    The step is -1 if the best step is not known yet.
    """
    folder = self.evaluated_folder(model_dir)
    return folder, results.latest_step(folder) if self.best_by else step

  def is_trained(self, model_dir: pathlib.Path, step: int) -> bool:
    """Returns whether a training is complete.

    It is if its folder has a checkpoint of `step`, or of a later step; or, if the best
    step is evaluated, if patience has ended it at its newest checkpoint.
    """
    reached = results.latest_step(model_dir)
    return reached >= step or reached == self._stopped_at(model_dir)

  def _stopped_at(self, model_dir):
    return validation_record.stopped_at(str(model_dir)) if self.best_by else None

  def outcome(self, model_dir: pathlib.Path) -> dict[str, int]:
    """Returns what files of results say of the choice of a run's step.

    Returns:
      {"best_step", and "stopped_at" where patience has ended the training}; {} without
      `best_by`.
    """
    if not self.best_by:
      return {}
    stopped = self._stopped_at(model_dir)
    return {"best_step": results.latest_step(self.evaluated_folder(model_dir)),
            **({} if stopped is None else {"stopped_at": stopped})}

  @property
  def chosen(self) -> dict[str, str]:
    """What the settings in files of results name beside the others."""
    return {"best_by": self.best_by} if self.best_by else {}

  def note(self, outcomes: Iterable[Mapping[str, Any]]) -> str:
    """Returns what the heading of a report says of the evaluated steps, with a space.

    Args:
      outcomes: the `outcome` of each run that is done, maybe among other results.
    """
    if not self.best_by:
      return ""
    best = f"Each model is its best step by {self.best_by} of the validation split. "
    ended = [each.get("stopped_at") for each in outcomes]
    stopped = [step for step in ended if step is not None]
    return best + (f"Patience ended {len(stopped)} of {len(ended)} trainings, at step "
                   f"{span(stopped)}. " if stopped else "")


def span(numbers: Sequence[int]) -> str:
  """Returns the least and the greatest of some numbers; one if they are equal."""
  ends = dict.fromkeys([min(numbers), max(numbers)])
  return " to ".join(f"{end:,}" for end in ends)


def launch(settings: Settings, model_dir: results.Folder, gin_files: Iterable[str],
           params: Params) -> list[str]:
  """Returns a command of the launcher, with the user's choices added."""
  return [*pipeline.launcher(), f"--model_dir={model_dir}", *settings.flags,
          *pipeline.flags([*gin_files, *settings.gin_files], params),
          *(f"--gin_param={param}" for param in settings.gin_params)]


class Commands:
  """The commands that train and evaluate one row on one task, at one scale."""

  def __init__(self, table: tables.Table, row: tables.Row, task: str,
               scale: str, settings: Settings = Settings()) -> None:
    """Declares the row, the task and the scale.

    Args:
      table: a `tables.Table`.
      row: a `tables.Row` of it.
      task: a task or mixture.
      scale: "paper" or "laptop".
      settings: a `Settings`.
    """
    self.row, self.task, self.settings = row, task, settings
    self.laptop = scale == "laptop"
    self.encoder_only = task.endswith("_encoder")
    self.pretrained = table.is_pretrained(task)
    self.model = tables.pretrained_model(row.name) if self.pretrained else row.model
    self._is_pre_training = table.columns[0].scores == ("log_perplexity",)

  def pretrain(self, model_dir: results.Folder) -> list[str]:
    """Returns the command that pre-trains on C4."""
    return launch(self.settings, model_dir, self.files(_C4), self.params(_C4))

  def train(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that trains; `params` may name a checkpoint to start from."""
    return launch(self.settings, model_dir, self.files(self.task), {
        **self.params(self.task), **params})

  def evaluate(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that evaluates on the task."""
    return launch(
        self.settings, model_dir, self.files(self.task) + self._evaluation_files(),
        {**self.params(self.task), **self._evaluation_params(), **params})

  def files(self, task: str) -> list[str]:
    """Returns the gin files of the model and of its training on a task."""
    folder = "recipes/laptop" if self.laptop else "recipes/pod"
    if self.encoder_only:
      small = ["models/table7/laptop.gin", "cpu.gin"] if self.laptop else []
      return ["dataset.gin", self.model, *small,
              "learning_rate_schedules/rsqrt_no_ramp_down.gin"]
    recipe = [f"{folder}/{_recipe(task, self.pretrained)}.gin"]
    if self.model.startswith("models/"):
      small = ["models/table4/laptop.gin"] if self.laptop else []
      return [self.model, *recipe, *small]
    model = [] if self.laptop else ["models/t5.1.0.small.gin"]
    return [*model, self.model, *recipe]

  def params(self, task: str) -> Params:
    """Returns a dict of the gin bindings that go with `files`."""
    params: Params = {"MIXTURE_NAME": task}
    if self.laptop:
      params.update(self.row.laptop_params)
    elif not self.model.startswith("models/"):
      params["SyntheticAttention.relative_attention_type"] = "bias_shared"
    if self.encoder_only:
      params["utils.run.batch_size"] = 32 if self.laptop else 128
      params["utils.run.train_steps"] = 10000
      if not self.laptop:
        params["utils.tpu_mesh_shape.tpu_topology"] = "2x2"
    return params

  def _evaluation_files(self):
    if self.task == _WORDS:
      return ["word_perplexity_eval.gin"]
    name = "perplexity_eval.gin" if self._is_pre_training else "eval.gin"
    if self.laptop:
      return [name if self.encoder_only else f"recipes/laptop/{name}"]
    return [name, *["beam_search.gin"] * (self.task in _DECODED_TOKENS)]

  def _evaluation_params(self):
    long = not self.laptop and self.task in _LONG
    params: Params = {"utils.run.dataset_split": (
        "test" if long or self.task in _WITHOUT_VALIDATION else "validation")}
    decoded = _PAPER_TOKENS if long else None
    if self.laptop and self.task != _WORDS:
      if self._is_pre_training:
        params["utils.run.perplexity_eval_steps"] = _PERPLEXITY_BATCHES
      elif self.encoder_only:
        params["utils.run.batch_size"] = 128
      else:
        decoded = _DECODED_TOKENS.get(self.task, 16)
    if decoded:
      params["Bitransformer.decode.max_decode_length"] = decoded
    return params


def _recipe(task, pretrained):
  """Returns the recipe of a task, or of the most similar task."""
  if task in tables.RECIPES:
    return tables.RECIPES[task]
  for name in ("super_glue", "glue"):
    if task.startswith(f"synth_{name}"):
      return name
  return "finetuning" if pretrained else "from_scratch"


class Run:
  """One row, one task and one seed at laptop scale.

  Attributes:
    row: a `tables.Row`.
    task: a task or mixture.
    seed: an integer.
    model_dir: a `pathlib.Path`.
    step: the last step of the training.
  """

  def __init__(self, table: tables.Table, row: tables.Row, task: str, seed: int,
               folder: pathlib.Path, settings: Settings) -> None:
    """See `Commands` and the attributes; `folder` is the folder of the table."""
    self.row, self.task, self.seed = row, task, seed
    self._settings = settings
    folder = folder / row.name.lower() / f"seed_{seed}"
    self._commands = Commands(table, row, task, "laptop", settings)
    self._start = (settings.steps or 0) if self._commands.pretrained else 0
    self._pretrained, self.model_dir = folder / "c4", folder / task
    self.step = (settings.steps or 0) + (
        settings.finetune_steps or 0 if self._start else 0)
    self._columns = [c for c in table.columns if c.task == task]

  def stages(self) -> list[pipeline.Stage]:
    """Returns the `pipeline.Stage`s, in order."""
    return ([self._pretrain()] if self._start else []) + [
        self._train(), self._evaluate()]

  def scores(self) -> dict[str, float]:
    """Returns the scores that the evaluation has written, as {name: float}."""
    return results.scores(*self.evaluated)

  @property
  def evaluated(self) -> tuple[pathlib.Path, int]:
    """The folder and the step whose scores count, as `Settings.evaluated` does."""
    return self._settings.evaluated(self.model_dir, self.step)

  def outcome(self) -> dict[str, int]:
    """Returns the best step and the end by patience, as `Settings.outcome` does."""
    return self._settings.outcome(self.model_dir)

  def is_done(self) -> bool:
    """Returns whether the evaluation has written all scores that the table needs."""
    scores = self.scores()
    cells = [column.cell(scores) for column in self._columns]
    return bool(scores) and None not in cells

  @property
  def name(self) -> str:
    return f"{self.row.name} seed {self.seed}"

  def _pretrain(self):
    return self._training(
        "pre-train", self._commands.pretrain, self._pretrained, range(self._start), {})

  def _train(self):
    start = {"utils.run.init_checkpoint": str(
        self._pretrained / f"model.ckpt-{self._start}")} if self._start else {}
    return self._training("train", self._commands.train, self.model_dir,
                          range(self._start, self.step),
                          {**start, **self._settings.choosing(self.task, [
                              name for column in self._columns
                              if column.lower_is_better for name in column.scores])})

  def _training(self, what, command, model_dir, steps, params):
    return pipeline.Stage(
        f"{what} {self.name}", command(model_dir, {
            "utils.run.train_steps": steps.stop,
            "utils.run.save_checkpoints_steps": max(1, min(500, steps.stop // 4)),
            "utils.run.train_model_fn": "@train_with_seed",
            "train_with_seed.seed": self.seed,
            "mesh_train_dataset_fn.seed": self.seed, **params}),
        pathlib.Path(f"{model_dir}.log"),
        functools.partial(self._settings.is_trained, model_dir, steps.stop), steps)

  def _evaluate(self):
    folder = self._settings.evaluated_folder(self.model_dir)
    step = -1 if self._settings.best_by else self.step
    return pipeline.Stage(
        f"evaluate {self.name}",
        self._commands.evaluate(folder, {"eval_checkpoint_step": step}),
        pathlib.Path(f"{self.model_dir}.eval.log"), self.is_done)


def runs(table: tables.Table, rows: Sequence[tables.Row], seeds: Iterable[int],
         output_dir: results.Folder, settings: Settings) -> list[Run]:
  """Returns all runs of a table at laptop scale: all rows with one seed, then the next.

  Tables 5 and 6 are two views of the same runs and share their folder.
  """
  folder = folder_of(table, output_dir)
  return [Run(table, row, task, seed, folder, settings)
          for seed in seeds for task in table.trained(settings.task) for row in rows]


def folder_of(table: tables.Table, output_dir: results.Folder) -> pathlib.Path:
  """Returns the folder of a table's runs."""
  return pathlib.Path(output_dir) / (table.mixture or f"table{table.number}")


def paper_commands(table: tables.Table, rows: Iterable[tables.Row], bucket: str,
                   settings: Settings) -> Iterator[tuple[str, list[str]]]:
  """Yields the commands of a table at the paper's scale.

  Args:
    table: a `tables.Table`.
    rows: some of its rows.
    bucket: a folder in cloud storage, such as "gs://BUCKET".
    settings: a `Settings`. Its steps have no effect; the recipes decide the steps.

  Yields:
    (description, command).
  """
  for row in rows:
    folder = f"{bucket}/{row.name.lower()}"
    for task in table.trained(settings.task):
      of_row = Commands(table, row, task, "paper", settings)
      start = {}
      if of_row.pretrained:
        c4 = f"{folder}/{_C4}"
        yield f"{row.name}: pre-train", of_row.pretrain(c4)
        start = {"utils.run.init_checkpoint":
                 f"{c4}/model.ckpt-{_PRETRAINED_STEP}"}
      model_dir = f"{folder}/{task}"
      yield f"{row.name}: train on {task}", of_row.train(model_dir, start)
      yield f"{row.name}: evaluate {task}", of_row.evaluate(model_dir, {})
