"""The paper's tables: commands that train and evaluate a row, at two scales.

At `paper` scale the commands are those of gin/recipes/pod, for a machine with a TPU. At
`laptop` scale they are those of gin/recipes/laptop, which `reproduce` runs.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from synthesizer_mtf.tasks import averages
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import study_types
from synthesizer_mtf.tools.experiments.settings import DEFAULT
from synthesizer_mtf.tools.experiments.settings import Settings
import t5.data

STEPS = 1000  # Of a training at laptop scale, by default.
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

# The digits after the point; other columns have 2.
_DIGITS = {"Log PPL": 3}
_NOTE = (
    "Scale: laptop. The paper's models are T5-base or of its size, trained on other "
    "hardware for hundreds of times as long: compare the order, not the values.")

Params = dict[str, Any]  # gin bindings.


class Commands:
  """The commands that train and evaluate one row on one task, at one scale."""

  def __init__(self, table: tables.Table, row: tables.Row, task: str,
               scale: str, settings: Settings = DEFAULT) -> None:
    """Declares the row, the task and the scale.

    Args:
      row: a `tables.Row` of it.
      task: a task or mixture.
      scale: "paper" or "laptop".
    """
    self.row, self.task, self.settings = row, task, settings
    self.laptop = scale == "laptop"
    self.encoder_only = task.endswith("_encoder")
    self.pretrained = table.is_pretrained(task)
    self.model = tables.pretrained_model(row.name) if self.pretrained else row.model
    self._is_pre_training = table.columns[0].scores == ("log_perplexity",)

  def pretrain(self, model_dir: results.Folder) -> list[str]:
    """Returns the command that pre-trains on C4."""
    return self.settings.launch(model_dir, self.files(_C4), self.params(_C4))

  def train(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that trains; `params` may name a checkpoint to start from."""
    return self.settings.launch(model_dir, self.files(self.task), {
        **self.params(self.task), **params})

  def evaluate(self, model_dir: results.Folder, params: Params) -> list[str]:
    """Returns the command that evaluates on the task."""
    return self.settings.launch(
        model_dir, self.files(self.task) + [*self.evaluation_files()],
        {**self.params(self.task), **self.evaluation_params(), **params})

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
    else:
      params.update(self.row.paper_params)
      if not self.model.startswith("models/"):
        params["SyntheticAttention.relative_attention_type"] = "bias_shared"
    if self.encoder_only:
      params["utils.run.batch_size"] = 32 if self.laptop else 128
      params["utils.run.train_steps"] = 10000
      if not self.laptop:
        params["utils.tpu_mesh_shape.tpu_topology"] = "2x2"
    return params

  def evaluation_files(self) -> tuple[str, ...]:
    """Returns the gin files of the evaluation, after those of the training."""
    if self.task == _WORDS:
      return ("word_perplexity_eval.gin",)
    name = "perplexity_eval.gin" if self._is_pre_training else "eval.gin"
    if self.laptop:
      return (name if self.encoder_only else f"recipes/laptop/{name}",)
    return (name, *["beam_search.gin"] * (self.task in _DECODED_TOKENS))

  def evaluation_params(self) -> Params:
    """Returns the gin bindings that go with `evaluation_files`."""
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


def study(table: tables.Table, rows: Iterable[tables.Row],
          settings: Settings) -> study_types.Study:
  """Returns a table at laptop scale, with a score for each figure of its cells."""
  return study_types.Study(
      f"table{table.number}", f"Table {table.number}: {table.title}",
      tuple(_task(table, task, settings) for task in table.trained(settings.task)),
      tuple(study_types.Row(row.name, paper=_figures(table, row)) for row in rows),
      table=table, note=f"{_NOTE} {table.note}".rstrip())


def _figures(table, row):
  """Returns the paper's figures of a row, by the titles of scores."""
  titles = {column.title: _titles(column) for column in table.columns}
  return {title: figure for column, figures in row.paper.items() for title, figure in
          zip(titles.get(column, [column]), figures, strict=True)}


def _titles(column):
  """Returns the title of each score of a column; several scores have their names."""
  if len(column.scores) == 1:
    return [column.title]
  return [f"{column.title}, {name.rpartition('/')[2]}" for name in column.scores]


def _task(table, task, settings):
  """Returns a task of a table, which is evaluated at its end."""
  first = Commands(table, table.rows[0], task, "laptop")
  evaluation = _scored(table, task)._replace(
      gin_files=first.evaluation_files(), params=first.evaluation_params())
  chosen = settings.finetune_steps if first.pretrained else settings.steps
  steps = chosen or STEPS
  return study_types.Task(task, (), (evaluation,), steps, looks=1,
                          saved_every=_saved_every(steps))


def _saved_every(steps):
  return max(1, min(500, steps // 4))


def _scored(table, task):
  """Returns an evaluation with the scores of the columns, or with a task's own."""
  source = f"Table {table.number}"
  columns = [column for column in table.columns if column.task == task]
  if columns:
    return study_types.Evaluation(tuple(
        study_types.Score(title, name, column.lower_is_better,
                          _DIGITS.get(column.title, 2), source,
                          columns=averages.TABLES.get(column.title, {}))
        for column in columns for title, name in zip(_titles(column), column.names)),
                                  keeps_all=True)
  if table.columns[0].scores == ("log_perplexity",):
    return study_types.Evaluation((study_types.Score(
        "log perplexity", "log_perplexity", True, 3),))
  return study_types.Evaluation(tasks=tuple(
      subtask.name for subtask in t5.data.get_subtasks(
          t5.data.get_mixture_or_task(task)) if subtask.metric_fns))


def runs(table: tables.Table, rows: Sequence[tables.Row], seeds: Iterable[int],
         output_dir: results.Folder, settings: Settings) -> list[runs_lib.Run]:
  """Returns all runs of a table at laptop scale: all rows with one seed, then the next.

  Tables 5 and 6 are two views of the same runs and share their folder.
  """
  tasks, place = study(table, rows, settings).tasks, folder(table, output_dir)
  return [_run(table, row, task, seed, place, settings)
          for seed in seeds for task in tasks for row in rows]


def _run(table, row, task, seed, place, settings):
  """Returns a run, and with it the pre-training that it starts from, if any."""
  row_commands = Commands(table, row, task.name, "laptop", settings)

  def model(name):
    return study_types.Row(row.name, params=row_commands.params(name),
                           first_files=tuple(row_commands.files(name)))

  start, place = None, place / row.name.lower() / f"seed_{seed}"
  if row_commands.pretrained:
    steps = settings.steps or STEPS
    start = runs_lib.Run(
        model(_C4), study_types.Task("c4", (), (), steps,
                                     saved_every=_saved_every(steps)),
        seed, place / "c4", dataclasses.replace(settings, best_by=None))
  return runs_lib.Run(model(task.name), task, seed, place / task.name, settings, start)


def folder(table: tables.Table, output_dir: results.Folder) -> pathlib.Path:
  """Returns the folder of a table's runs."""
  return pathlib.Path(output_dir) / (table.mixture or f"table{table.number}")


def commands(table: tables.Table, rows: Iterable[tables.Row], bucket: str,
             settings: Settings) -> Iterator[tuple[str, list[str]]]:
  """Yields the commands of a table at the paper's scale.

  Args:
    rows: some of its rows.
    bucket: a folder in cloud storage, such as "gs://BUCKET".
    settings: the user's choices, whose steps have no effect; the recipes decide.

  Yields:
    (description, command).
  """
  for row in rows:
    place = f"{bucket}/{row.name.lower()}"
    for task in table.trained(settings.task):
      row_commands = Commands(table, row, task, "paper", settings)
      start = {}
      if row_commands.pretrained:
        c4 = f"{place}/{_C4}"
        yield f"{row.name}: pre-train", row_commands.pretrain(c4)
        start = {"utils.run.init_checkpoint":
                 f"{c4}/model.ckpt-{_PRETRAINED_STEP}"}
      model_dir = f"{place}/{task}"
      yield f"{row.name}: train on {task}", row_commands.train(model_dir, start)
      yield f"{row.name}: evaluate {task}", row_commands.evaluate(model_dir, {})
