"""A run: one model, one task and one seed, with its commands and its results."""

from collections.abc import Iterable
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
from typing import Any

from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import study_types
from synthesizer_mtf.tools.experiments.settings import Settings
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.watching import validation_record

_EVALUATED = "@t5.models.mesh_transformer.mesh_eval_dataset_fn"
# The number of checkpoints to keep, for evaluation after the training.
_KEPT = 8
# The least number of checkpoints among which the best one is chosen.
_CANDIDATES = 4
# The number of parts of a training curve; each has its mean loss.
_PARTS = 50


class Run:
  """One row, one task and one seed.

  Attributes:
    task: the name of a `study_types.Task`.
    seed: an integer; None for a training that its gin files seed.
    step: the last step of the training.
  """

  def __init__(self, row: study_types.Row, task: study_types.Task, seed: int | None,
               model_dir: pathlib.Path, settings: Settings,
               start: "Run | None" = None) -> None:
    """See the attributes.

    Args:
      row: the model.
      task: the task, with the number of steps.
      seed: the seed of the variables, dropout and data.
      model_dir: the folder of the model.
      settings: the user's choices; their numbers of steps have no effect.
      start: the run whose last checkpoint this one starts from. A warm row takes its
        variables, and counts its own steps. Another row goes on from its step.
    """
    self.row, self.task, self.seed, self.model_dir = row, task.name, seed, model_dir
    self._task, self._settings, self._start = task, settings, start
    self._first: int = start.step if start and not row.is_warm else 0
    self.step: int = self._first + task.steps

  @property
  def name(self) -> str:
    return self.row.name if self.seed is None else f"{self.row.name} seed {self.seed}"

  def stages(self) -> list[pipeline.Stage]:
    """Returns the `pipeline.Stage`s, in order."""
    start = [self._start.training] if self._start else []
    return [*start, self.training, *map(self._evaluation, self._task.evaluations)]

  def scores(self) -> dict[str, float]:
    """Returns the scores of the evaluated step, with the names in the task."""
    return {name: score for evaluation in self._task.evaluations
            for name, score in self._scores(evaluation, *self.evaluated).items()}

  def is_done(self) -> bool:
    """Returns whether the evaluations have written all scores of the task."""
    return all(map(self._is_evaluated, self._task.evaluations))

  def line(self) -> dict[str, Any]:
    """Returns the results of a run that is done, for a JSON line."""
    rate = results.steps_per_second(self.model_dir)
    first = self._task.evaluations[0]
    # With a best step, the training itself has written them.
    drawn = {step: self._scores(first, self.model_dir, step)
             for step in self._looks(first)}
    scores, outcome = self.scores(), self._outcome()
    steps = outcome.get("stopped_at", self.step) - self._first
    name = next(name for name, _ in self._task.with_scores([scores]).scores())
    return {
        "row": self.row.name, "task": self.task, "seed": self.seed, "status": "ok",
        "scores": scores,
        "training_steps": steps, "training_seconds": round(steps / rate), **outcome,
        "training_loss": _parts(results.losses(self.training.log), self.step),
        "validation": [(step, scores[name]) for step, scores in drawn.items()
                       if name in scores]}

  @property
  def evaluated(self) -> tuple[pathlib.Path, int]:
    """The folder and the step whose scores count; -1 if the best is not known yet."""
    folder = self._evaluated_folder
    return folder, results.latest_step(folder) if self._settings.best_by else self.step

  @functools.cached_property
  def training(self) -> pipeline.Stage:
    """The stage that trains."""
    params = {"utils.run.train_steps": self.step,
              "utils.run.save_checkpoints_steps": self._saved_every,
              "utils.run.keep_checkpoint_max": _KEPT}
    if self.seed is not None:
      params |= {"utils.run.train_model_fn": "@train_with_seed",
                 "train_with_seed.seed": self.seed,
                 "mesh_train_dataset_fn.seed": self.seed}
    if self._start and not self.row.is_warm:
      params["utils.run.init_checkpoint"] = self._start.checkpoint
    return pipeline.Stage(
        f"train {self.name}",
        self._launch(self.model_dir, [], {**self._choosing(), **params}),
        pathlib.Path(f"{self.model_dir}.log"), self._is_trained,
        range(self._first, self.step))

  @property
  def checkpoint(self) -> str:
    """The path of the checkpoint that ends the training."""
    return str(self.model_dir / f"model.ckpt-{self.step}")

  def _evaluation(self, evaluation):
    """Returns the stage of an evaluation."""
    suffix = evaluation.suffix
    folders = {"utils.run.eval_dir_suffix": suffix} if suffix else {}
    return pipeline.Stage(
        f"evaluate {self.name}{f', {suffix}' if suffix else ''}",
        self._launch(self._evaluated_folder, evaluation.gin_files, {
            "utils.run.dataset_split": "validation", **evaluation.params, **folders,
            "utils.run.eval_checkpoint_step": (
                -1 if self._settings.best_by else self._looks(evaluation))}),
        pathlib.Path(f"{self.model_dir}.{suffix or 'eval'}.log"),
        functools.partial(self._is_evaluated, evaluation))

  def _launch(self, model_dir, gin_files, params):
    """Returns a command with the model and the data of this run."""
    files = [*self.row.first_files, *self._task.gin_files, *self.row.gin_files]
    own = {**self._task.params, **self.row.params}
    if self._start and self.row.is_warm:
      own["warm_start.checkpoint"] = self._start.checkpoint
    if self.row.annealing:
      own["Mixture.annealing_steps"] = [
          round(share * self.step) for share in self.row.annealing]
    return self._settings.launch(
        model_dir, [*files, *gin_files], {**own, **params}, self.row.bindings)

  def _choosing(self):
    """Returns the bindings of a training that keeps its best step, if it is wanted."""
    best_by = self._settings.best_by
    if not best_by:
      return {}
    lower = {name.rpartition("/")[2] for name in self._task.low()}
    return {"mesh_eval_dataset_fn.mixture_or_task_name": "%MIXTURE_NAME",
            "train_and_eval.eval_dataset_fn": _EVALUATED,
            "train_and_eval.metric": best_by,
            **({"train_and_eval.greater_is_better": False}
               if best_by.rpartition("/")[2] in lower else {})}

  def _is_trained(self):
    """Whether the last step is reached, or patience ended the choice of the best."""
    reached = results.latest_step(self.model_dir)
    return reached >= self.step or reached == self._stopped_at()

  def _stopped_at(self):
    return (validation_record.stopped_at(str(self.model_dir))
            if self._settings.best_by else None)

  def _outcome(self):
    """Returns {"best_step", and "stopped_at" where patience ended the training}."""
    if not self._settings.best_by:
      return {}
    stopped = self._stopped_at()
    return {"best_step": self.evaluated[1],
            **({} if stopped is None else {"stopped_at": stopped})}

  @property
  def _evaluated_folder(self):
    return self.model_dir / complete.BEST if self._settings.best_by else (
        self.model_dir)

  def _looks(self, evaluation):
    """Returns the steps that are evaluated, without a best step."""
    looks = self._validated if evaluation.every_look else 1
    on_the_way = [self._first + self._every * look for look in range(1, looks)]
    return [*(step for step in on_the_way if step < self.step), self.step]

  @property
  def _validated(self):
    """The number of checkpoints that are evaluated, or among which the best is."""
    looks = self._task.looks
    return max(looks, _CANDIDATES) if self._settings.best_by else looks

  @property
  def _every(self):
    """The number of steps between two checkpoints that are evaluated."""
    return max(1, self._task.steps // self._validated)

  @property
  def _saved_every(self):
    return min(self._every, self._task.saved_every or self._every)

  def _scores(self, evaluation, folder, step):
    """Returns the scores of one evaluation at a step, a dict from names to floats."""
    where = folder, step, evaluation.suffix
    scores = results.scores(*where)
    written = results.teacher_forced(*where) | scores
    if not evaluation.scores:
      return {name: score for name, score in written.items()
              if name.startswith("eval/") and math.isfinite(score)}
    others = scores if evaluation.keeps_all else {}
    return others | {evaluation.key(score): value for score in evaluation.scores
                     if (value := score.value(written)) is not None}

  def _is_evaluated(self, evaluation):
    scores = self._scores(evaluation, *self.evaluated)
    if not evaluation.scores:
      written = {name.split("/")[1] for name in scores}
      return bool(scores) and written >= {*evaluation.tasks}
    return all(evaluation.key(score) in scores for score in evaluation.scores)


def _parts(losses, steps):
  """Returns the mean losses over parts of the training, [(last step, mean)]."""
  size = -(-steps // _PARTS)
  parts = itertools.groupby(losses, lambda pair: (pair[0] - 1) // size)
  return [(min((part + 1) * size, steps),
           round(statistics.mean(loss for _, loss in pairs), 4))
          for part, pairs in parts]


def trained_steps(study: study_types.Study, task: study_types.Task,
                  settings: Settings) -> int:
  """Returns the number of steps of a task's run.

  If the study has a start, the user's `steps` are for the model that warm rows start
  from, and `finetune_steps` for the rows. Otherwise `steps` are for the rows.
  """
  chosen = settings.finetune_steps if study.start else settings.steps
  return chosen or task.steps


def runs(study: study_types.Study, rows: Iterable[study_types.Row],
         seeds: Iterable[int], output_dir: results.Folder,
         settings: Settings) -> list[Run]:
  """Returns all runs of a study, or of one of its tasks, seed after seed."""
  folder = pathlib.Path(output_dir) / study.name
  return [Run(row, task._replace(steps=trained_steps(study, task, settings)), seed,
              folder / row.folder / f"seed_{seed}" / task.name, settings,
              _start(study, row, seed, folder, settings) if row.is_warm else None)
          for seed in seeds for task in study.tasks for row in rows
          if settings.task in (None, task.name) and task.name not in row.not_on]


def _start(study, row, seed, folder, settings):
  """Returns the run that a warm row starts from."""
  settings = dataclasses.replace(settings, best_by=None, task=None)
  start = study.start
  if isinstance(start, study_types.Study):
    row, = [other for other in start.rows if other.name == row.name]
    return runs(start._replace(tasks=start.tasks[:1]), [row], [seed], folder.parent,
                settings)[0]
  steps = settings.steps or start.steps
  return Run(study_types.Row(start.name), study_types.Task(
      start.name, start.gin_files, (), steps, looks=10), 1, folder / start.name,
             settings)
