"""The runs of a study: their commands, and what they have left."""

from collections.abc import Iterable
import functools
import itertools
import pathlib
import statistics
from typing import Any

from synthesizer_mtf.runs import commands
from synthesizer_mtf.runs import results
from synthesizer_mtf.tools.reproduction import plan
from synthesizer_mtf.tools.reproduction import studies

# Checkpoints that are kept, and so can be evaluated afterwards.
_KEPT = 8
# A training curve has the mean of the loss over each of so many parts.
_PARTS = 50


class Run:
  """One row, one task and one seed.

  Attributes:
    study: a `studies.Study`.
    row: a `studies.Row`.
    task: the name of a `studies.Task`.
    seed: an integer.
    step: the last of the training.
    model_dir: a `pathlib.Path`.
  """

  def __init__(self, study: studies.Study, row: studies.Row, task: studies.Task,
               seed: int, folder: pathlib.Path, settings: plan.Settings) -> None:
    """See the attributes.

    Args:
      study: a `studies.Study`.
      row: one of its rows.
      task: one of its tasks.
      seed: of the variables, dropout and data.
      folder: that of the study.
      settings: of which `steps` are those of the model that warm rows start
        from, and `finetune_steps` those of the others; None for the study's own.
    """
    self.study, self.row, self.task, self.seed = study, row, task.name, seed
    self._task, self._folder, self._settings = task, folder, settings
    self.step = trained_steps(study, task, settings)
    self.model_dir = (
        folder / row.name.lower().replace(" ", "_") / f"seed_{seed}" / task.name)

  @property
  def name(self) -> str:
    return f"{self.row.name} seed {self.seed}"

  def stages(self) -> list[commands.Stage]:
    """The `commands.Stage`s, in order."""
    start = [self._start()] if self.row.is_warm else []
    return [*start, self._train(), self._evaluate()]

  def scores(self) -> dict[str, float]:
    """What the last evaluation has left, a dict from names to floats."""
    return results.scores(self.model_dir, self.step)

  def is_done(self) -> bool:
    """Whether the last evaluation has left the score of the task."""
    return self._task.score.name in self.scores()

  def line(self) -> dict[str, Any]:
    """What is kept of a run that is done, for a line of JSON."""
    log = pathlib.Path(f"{self.model_dir}.log")
    rate = results.steps_per_second(self.model_dir)
    name = self._task.score.name
    scores = {step: results.scores(self.model_dir, step) for step in self._looks()}
    return {
        "row": self.row.name, "task": self.task, "seed": self.seed, "status": "ok",
        "scores": {name: scores[self.step][name]},
        "training_steps": self.step, "training_seconds": round(self.step / rate),
        "training_loss": _parts(results.losses(log), self.step),
        "validation": [(step, found[name]) for step, found in scores.items()
                       if name in found]}

  def _looks(self):
    looks = self._task.looks
    return [self.step * look // looks for look in range(1, looks + 1)]

  def _start(self):
    start = self.study.start
    model_dir, steps = self._folder / start.name, _start_steps(start, self._settings)
    return commands.Stage(
        f"train {start.name}",
        self._launch(model_dir, start.gin_files, _training(1, steps, steps // 10)),
        model_dir.with_suffix(".log"),
        functools.partial(plan.is_trained, model_dir, steps), range(steps))

  def _train(self):
    return commands.Stage(
        f"train {self.name}",
        self._launch(self.model_dir, self._files(), {
            **self._params(),
            **_training(self.seed, self.step, self.step // self._task.looks)}),
        pathlib.Path(f"{self.model_dir}.log"),
        functools.partial(plan.is_trained, self.model_dir, self.step),
        range(self.step))

  def _evaluate(self):
    return commands.Stage(
        f"evaluate {self.name}",
        self._launch(
            self.model_dir, [*self._files(), *self._task.evaluation], {
                **self._params(), **self._task.eval_params,
                "utils.run.dataset_split": "validation",
                "utils.run.eval_checkpoint_step": self._looks()}),
        pathlib.Path(f"{self.model_dir}.eval.log"), self.is_done)

  def _files(self):
    return [self._task.gin_file, *self.row.gin_files]

  def _params(self):
    params = dict(self.row.params)
    if self.row.is_warm:
      start = self.study.start
      steps = _start_steps(start, self._settings)
      params["warm_start.checkpoint"] = str(
          self._folder / start.name / f"model.ckpt-{steps}")
    if self.row.annealing:
      params["Mixture.annealing_steps"] = [
          round(share * self.step) for share in self.row.annealing]
    return params

  def _launch(self, model_dir, gin_files, params):
    return plan.launch(self._settings, model_dir, gin_files, params)


def _training(seed, steps, save_every):
  return {"utils.run.train_steps": steps,
          "utils.run.save_checkpoints_steps": max(1, save_every),
          "utils.run.keep_checkpoint_max": _KEPT,
          "utils.run.train_model_fn": "@train_with_seed",
          "train_with_seed.seed": seed, "mesh_train_dataset_fn.seed": seed}


def _start_steps(start, settings):
  return settings.steps or start.steps


def trained_steps(study: studies.Study, task: studies.Task,
                  settings: plan.Settings) -> int:
  """How many steps a run of a task has."""
  chosen = settings.finetune_steps if study.start else settings.steps
  return chosen or task.steps


def _parts(losses, steps):
  """The means of [(step, loss)] over parts of the training, [(last step, mean)]."""
  size = -(-steps // _PARTS)
  parts = itertools.groupby(losses, lambda pair: (pair[0] - 1) // size)
  return [(min((part + 1) * size, steps),
           round(statistics.mean(loss for _, loss in pairs), 4))
          for part, pairs in parts]


def runs(study: studies.Study, rows: Iterable[studies.Row], seeds: Iterable[int],
         output_dir: results.Folder, settings: plan.Settings) -> list[Run]:
  """All runs of a study, or of one of its tasks, seed after seed."""
  folder = pathlib.Path(output_dir) / study.name
  return [Run(study, row, task, seed, folder, settings)
          for seed in seeds for task in study.tasks for row in rows
          if settings.task in (None, task.name)]
