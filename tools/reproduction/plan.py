"""Makes the commands of `reproduce` that train and evaluate a row, at two scales.

At `paper` scale the commands are those of gin/recipes/pod, for a machine with a TPU. At
`laptop` scale they are those of gin/recipes/laptop, which `reproduce` runs.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any

from synthesizer_mtf.runs import pipeline
from synthesizer_mtf.runs import results
from synthesizer_mtf.tools.reproduction import tables

_C4 = "synth_c4_span_corruption"
# The splits for evaluation of data sets without a validation split, or whose validation
# split the paper does not use. The first dictionary is for both scales.
_SPLITS = {"synth_lm1b": "test", "synth_ag_news_encoder": "test",
           "synth_imdb_reviews_encoder": "test", "synth_ag_news": "test",
           "synth_imdb_reviews": "test"}
_PAPER_SPLITS = {"synth_wmt14_ende": "test", "synth_wmt14_enfr": "test",
                 "synth_cnn_dailymail": "test"}
_BEAM_SEARCH = ("synth_wmt14_ende", "synth_wmt14_enfr", "synth_cnn_dailymail",
                "synth_personachat")
_PRETRAINED_STEP = 524288  # gin/recipes/pod/pretraining.gin

# This is more batches than the validation split of any laptop data set has.
_PERPLEXITY_BATCHES = 200
_DECODED_TOKENS = {"synth_wmt14_ende": 64, "synth_wmt14_enfr": 64,
                   "synth_cnn_dailymail": 96, "synth_personachat": 32}
# For tasks whose recipe has more tokens than eval.gin's 128.
_PAPER_DECODED_TOKENS = {"synth_wmt14_ende": 256, "synth_wmt14_enfr": 256,
                         "synth_cnn_dailymail": 256}

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
  """
  steps: int | None = 1000
  finetune_steps: int | None = 1000
  task: str | None = None
  flags: list[str] = dataclasses.field(default_factory=list)
  gin_params: list[str] = dataclasses.field(default_factory=list)
  gin_files: list[str] = dataclasses.field(default_factory=list)


def launch(settings: Settings, model_dir: results.Folder, gin_files: Iterable[str],
           params: Params) -> list[str]:
  """Returns a command of the launcher, with the user's choices added."""
  return [*pipeline.launcher(), f"--model_dir={model_dir}", *settings.flags,
          *pipeline.flags([*gin_files, *settings.gin_files], params),
          *(f"--gin_param={param}" for param in settings.gin_params)]


def trained_tasks(table: tables.Table, settings: Settings) -> list[str]:
  """Returns the tasks or mixtures that each row of a table is trained on."""
  return [settings.task] if settings.task else table.trained()


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
    self.table = table
    self.row = row
    self.task = task
    self.laptop = scale == "laptop"
    self.pretrained = table.is_pretrained(task)
    self.model = self.pretrained and row.pretrained_model or row.model
    self.settings = settings

  def pretrain(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that pre-trains on C4."""
    return self._launch(model_dir, self.files(_C4), {
        **self.params(_C4), **params})

  def train(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that trains; `params` may name a checkpoint to start from."""
    return self._launch(model_dir, self.files(self.task), {
        **self.params(self.task), **params})

  def evaluate(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that evaluates on the task."""
    return self._launch(
        model_dir, self.files(self.task) + self._evaluation_files(),
        {**self.params(self.task), **self._evaluation_params(), **params})

  def _launch(self, model_dir, gin_files, params):
    return launch(self.settings, model_dir, gin_files, params)

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
    params = {"MIXTURE_NAME": task}
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
    kind = self.measure
    if kind == "words":
      return ["word_perplexity_eval.gin"]
    name = "perplexity_eval.gin" if kind == "log_perplexity" else "eval.gin"
    if self.laptop:
      return [name if self.encoder_only else f"recipes/laptop/{name}"]
    beams = ["beam_search.gin"] if self.task in _BEAM_SEARCH else []
    return [name, *beams]

  def _evaluation_params(self):
    splits = _SPLITS if self.laptop else {**_SPLITS, **_PAPER_SPLITS}
    params = {"utils.run.dataset_split": splits.get(self.task, "validation")}
    if not self.laptop:
      if self.task in _PAPER_DECODED_TOKENS:
        params["Bitransformer.decode.max_decode_length"] = (
            _PAPER_DECODED_TOKENS[self.task])
      return params
    if self.measure == "log_perplexity":
      params["utils.run.perplexity_eval_steps"] = _PERPLEXITY_BATCHES
    elif self.encoder_only:
      params["utils.run.batch_size"] = 128
    elif self.measure == "scores":
      params["Bitransformer.decode.max_decode_length"] = _DECODED_TOKENS.get(
          self.task, 16)
    return params

  @property
  def encoder_only(self) -> bool:
    return self.task.endswith("_encoder")

  @property
  def measure(self) -> str:
    """The kind of evaluation of the task: "log_perplexity", "words" or "scores"."""
    if self.task == "synth_lm1b":
      return "words"
    first = self.table.columns[0].scores
    return "log_perplexity" if first == ("log_perplexity",) else "scores"


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
    self._pretrained = folder / "c4" if table.is_pretrained(task) else None
    self.model_dir = folder / task
    self.step = settings.steps + (
        settings.finetune_steps if self._pretrained else 0)
    self._columns = [c for c in table.columns if c.task == task]
    self._commands = Commands(table, row, task, "laptop", settings)

  def stages(self) -> list[pipeline.Stage]:
    """Returns the `pipeline.Stage`s, in order."""
    return ([self._pretrain()] if self._pretrained else []) + [
        self._train(), self._evaluate()]

  def scores(self) -> dict[str, float]:
    """Returns the scores that the evaluation has written, as {name: float}."""
    return results.scores(self.model_dir, self.step)

  def is_done(self) -> bool:
    """Returns whether the evaluation has written all scores that the table needs."""
    scores = self.scores()
    cells = [column.cell(scores) for column in self._columns]
    return bool(scores) and None not in cells

  @property
  def name(self) -> str:
    return f"{self.row.name} seed {self.seed}"

  def _pretrain(self):
    model_dir, steps = self._pretrained, self._settings.steps
    return pipeline.Stage(
        f"pre-train {self.name}",
        self._commands.pretrain(model_dir, self._training(steps)),
        model_dir.with_suffix(".log"),
        functools.partial(is_trained, model_dir, steps), range(steps))

  def _train(self):
    params = self._training(self.step)
    start = 0
    if self._pretrained:
      start = self._settings.steps
      params["utils.run.init_checkpoint"] = str(
          self._pretrained / f"model.ckpt-{start}")
    return pipeline.Stage(
        f"train {self.name}",
        self._commands.train(self.model_dir, params),
        pathlib.Path(f"{self.model_dir}.log"),
        functools.partial(is_trained, self.model_dir, self.step),
        range(start, self.step))

  def _training(self, steps):
    return {"utils.run.train_steps": steps,
            "utils.run.save_checkpoints_steps": max(1, min(500, steps // 4)),
            "utils.run.train_model_fn": "@train_with_seed",
            "train_with_seed.seed": self.seed,
            "mesh_train_dataset_fn.seed": self.seed}

  def _evaluate(self):
    return pipeline.Stage(
        f"evaluate {self.name}",
        self._commands.evaluate(
            self.model_dir, {"eval_checkpoint_step": self.step}),
        pathlib.Path(f"{self.model_dir}.eval.log"), self.is_done)


def is_trained(model_dir: results.Folder, step: int) -> bool:
  """Returns whether a folder has a checkpoint of a step, or of a later step."""
  return results.latest_step(model_dir) >= step


def runs(table: tables.Table, rows: Sequence[tables.Row], seeds: Iterable[int],
         output_dir: results.Folder, settings: Settings) -> list[Run]:
  """Returns all runs of a table at laptop scale: all rows with one seed, then the next.

  Tables 5 and 6 are two views of the same runs and share their folder.
  """
  folder = folder_of(table, output_dir)
  return [Run(table, row, task, seed, folder, settings)
          for seed in seeds for task in trained_tasks(table, settings)
          for row in rows]


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
    for task in trained_tasks(table, settings):
      of_row = Commands(table, row, task, "paper", settings)
      start = {}
      if of_row.pretrained:
        c4 = f"{folder}/{_C4}"
        yield f"{row.name}: pre-train", of_row.pretrain(c4, {})
        start = {"utils.run.init_checkpoint":
                 f"{c4}/model.ckpt-{_PRETRAINED_STEP}"}
      model_dir = f"{folder}/{task}"
      yield f"{row.name}: train on {task}", of_row.train(model_dir, start)
      yield f"{row.name}: evaluate {task}", of_row.evaluate(model_dir, {})


def shown(command: list[str]) -> str:
  """Returns a command with the launcher's bare name, to type on another machine."""
  name = os.path.basename(command[0])
  return pipeline.shown([name, *command[1:]])
