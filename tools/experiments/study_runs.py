"""The runs of a study, with their commands and their results."""

from collections.abc import Iterable
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
from typing import Any
from typing import NamedTuple

from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import plan
from synthesizer_mtf.tools.experiments import study_types

# The number of checkpoints to keep, for evaluation after the training.
_KEPT = 8
# The least number of checkpoints among which the best one is chosen.
_CANDIDATES = 4
# The number of parts of a training curve; each has its mean loss.
_PARTS = 50


class _Checkpoint(NamedTuple):
  """The checkpoint that a warm row starts from, and the stage that trains it."""
  stage: pipeline.Stage
  model_dir: pathlib.Path
  step: int


class Run:
  """One row, one task and one seed.

  Attributes:
    study: a `study_types.Study`.
    row: a `study_types.Row`.
    task: the name of a `study_types.Task`.
    seed: an integer.
    step: the last step of the training.
    model_dir: a `pathlib.Path`.
  """

  def __init__(self, study: study_types.Study, row: study_types.Row,
               task: study_types.Task, seed: int, folder: pathlib.Path,
               settings: plan.Settings) -> None:
    """See the attributes.

    Args:
      study: a `study_types.Study`.
      row: one of its rows.
      task: one of its tasks.
      seed: the seed of the variables, dropout and data.
      folder: the folder of the study.
      settings: a `plan.Settings`. If the study has a `start`, `steps` are for the model
        that warm rows start from, and `finetune_steps` for the rows. Otherwise `steps`
        are for the rows. None stands for the study's own steps.
    """
    self.study, self.row, self.task, self.seed = study, row, task.name, seed
    self._task, self._folder, self._settings = task, folder, settings
    self.step = trained_steps(study, task, settings)
    self.model_dir = folder / row.folder / f"seed_{seed}" / task.name

  @property
  def name(self) -> str:
    return f"{self.row.name} seed {self.seed}"

  def stages(self) -> list[pipeline.Stage]:
    """Returns the `pipeline.Stage`s, in order."""
    start = [self._start.stage] if self.row.is_warm else []
    return [*start, self._train(), *map(self._evaluate, self._task.evaluations)]

  def scores(self) -> dict[str, float]:
    """Returns the scores of the evaluated step, with the names in the task."""
    folder, step = self.evaluated
    return {name: score for evaluation in self._task.evaluations
            for name, score in self._scores(evaluation, folder, step).items()}

  def is_done(self) -> bool:
    """Returns whether the evaluations have written all scores of the task."""
    return all(map(self._is_evaluated, self._task.evaluations))

  def line(self) -> dict[str, Any]:
    """Returns the results of a run that is done, for a JSON line."""
    log = pathlib.Path(f"{self.model_dir}.log")
    rate = results.steps_per_second(self.model_dir)
    first = self._task.evaluations[0]
    # With a best step, the training itself has written them.
    drawn = {step: self._scores(first, self.model_dir, step)
             for step in self._looks(first)}
    scores, outcome = self.scores(), self._settings.outcome(self.model_dir)
    steps = outcome.get("stopped_at", self.step)
    name = next(name for name, _ in self._task.with_scores([scores]).scores())
    return {
        "row": self.row.name, "task": self.task, "seed": self.seed, "status": "ok",
        "scores": scores,
        "training_steps": steps, "training_seconds": round(steps / rate), **outcome,
        "training_loss": _parts(results.losses(log), self.step),
        "validation": [(step, found[name]) for step, found in drawn.items()
                       if name in found]}

  @property
  def evaluated(self) -> tuple[pathlib.Path, int]:
    """The folder and the step whose scores count."""
    return self._settings.evaluated(self.model_dir, self.step)

  def _looks(self, evaluation):
    looks = self._validated if evaluation.every_look else 1
    on_the_way = [self._every * look for look in range(1, looks)]
    return [*(step for step in on_the_way if step < self.step), self.step]

  @property
  def _validated(self):
    """The number of checkpoints that are evaluated, or among which the best is."""
    looks = self._task.looks
    return max(looks, _CANDIDATES) if self._settings.best_by else looks

  @property
  def _every(self):
    """The number of steps between two checkpoints that are evaluated."""
    return max(1, self.step // self._validated)

  def _scores(self, evaluation, folder, step):
    """Returns the scores of one evaluation at a step, a dict from names to floats."""
    of = folder, step, evaluation.suffix
    found = results.teacher_forced(*of) | results.scores(*of)
    if not evaluation.scores:
      return {name: score for name, score in found.items()
              if name.startswith("eval/") and math.isfinite(score)}
    return {evaluation.key(score): found[score.name]
            for score in evaluation.scores if score.name in found}

  def _is_evaluated(self, evaluation):
    found = self._scores(evaluation, *self.evaluated)
    if not evaluation.scores:
      return all(any(name.startswith(f"eval/{task}/") for name in found)
                 for task in evaluation.tasks)
    return len(found) == len(evaluation.scores)

  @functools.cached_property
  def _start(self):
    """The `_Checkpoint` that a warm row starts from."""
    start = self.study.start
    if isinstance(start, study_types.Study):
      row, = [row for row in start.rows if row.name == self.row.name]
      run = Run(start, row, start.tasks[0], self.seed,
                self._folder.parent / start.name,
                dataclasses.replace(self._settings, best_by=None))
      return _Checkpoint(run._train(), run.model_dir, run.step)
    assert start is not None  # Only warm rows have a checkpoint to start from.
    model_dir, steps = self._folder / start.name, self._settings.steps or start.steps
    return _Checkpoint(pipeline.Stage(
        f"train {start.name}",
        self._launch(model_dir, start.gin_files, _training(1, steps, steps // 10)),
        model_dir.with_suffix(".log"),
        functools.partial(self._settings.is_trained, model_dir, steps), range(steps)),
                       model_dir, steps)

  def _train(self):
    return pipeline.Stage(
        f"train {self.name}",
        self._launch(self.model_dir, self._files(), {
            **self._params(),
            **self._settings.choosing("%MIXTURE_NAME", self._task.low()),
            **_training(self.seed, self.step, self._every)}),
        pathlib.Path(f"{self.model_dir}.log"),
        functools.partial(self._settings.is_trained, self.model_dir, self.step),
        range(self.step))

  def _evaluate(self, evaluation):
    suffix = evaluation.suffix
    folders = {"utils.run.eval_dir_suffix": suffix} if suffix else {}
    return pipeline.Stage(
        f"evaluate {self.name}{f', {suffix}' if suffix else ''}",
        self._launch(
            self._settings.evaluated_folder(self.model_dir),
            [*self._files(), *evaluation.gin_files], {
                **self._params(), "utils.run.dataset_split": "validation",
                **evaluation.params, **folders,
                "utils.run.eval_checkpoint_step": (
                    -1 if self._settings.best_by else self._looks(evaluation))}),
        pathlib.Path(f"{self.model_dir}.{suffix or 'eval'}.log"),
        functools.partial(self._is_evaluated, evaluation))

  def _files(self):
    return [*self._task.gin_files, *self.row.gin_files]

  def _params(self):
    params = {**self._task.params, **self.row.params}
    if self.row.is_warm:
      params["warm_start.checkpoint"] = str(
          self._start.model_dir / f"model.ckpt-{self._start.step}")
    if self.row.annealing:
      params["Mixture.annealing_steps"] = [
          round(share * self.step) for share in self.row.annealing]
    return params

  def _launch(self, model_dir, gin_files, params):
    return [*plan.launch(self._settings, model_dir, gin_files, params),
            *(f"--gin_param={binding}" for binding in self.row.bindings)]


def _training(seed, steps, save_every):
  return {"utils.run.train_steps": steps,
          "utils.run.save_checkpoints_steps": max(1, save_every),
          "utils.run.keep_checkpoint_max": _KEPT,
          "utils.run.train_model_fn": "@train_with_seed",
          "train_with_seed.seed": seed, "mesh_train_dataset_fn.seed": seed}


def trained_steps(study: study_types.Study, task: study_types.Task,
                  settings: plan.Settings) -> int:
  """Returns the number of steps of a task's run."""
  chosen = settings.finetune_steps if study.start else settings.steps
  return chosen or task.steps


def _parts(losses, steps):
  """Returns the mean losses over parts of the training, [(last step, mean)]."""
  size = -(-steps // _PARTS)
  parts = itertools.groupby(losses, lambda pair: (pair[0] - 1) // size)
  return [(min((part + 1) * size, steps),
           round(statistics.mean(loss for _, loss in pairs), 4))
          for part, pairs in parts]


def runs(study: study_types.Study, rows: Iterable[study_types.Row],
         seeds: Iterable[int], output_dir: results.Folder,
         settings: plan.Settings) -> list[Run]:
  """Returns all runs of a study, or of one of its tasks, seed after seed."""
  folder = pathlib.Path(output_dir) / study.name
  return [Run(study, row, task, seed, folder, settings)
          for seed in seeds for task in study.tasks for row in rows
          if settings.task in (None, task.name) and task.name not in row.not_on]
