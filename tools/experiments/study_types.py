"""The types of a study: models, the tasks that they are trained on, and scores.

A table of the paper at laptop scale is a study, too, and so is a comparison.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Any
from typing import NamedTuple

from synthesizer_mtf import checks
from synthesizer_mtf.tasks import averages
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.trainer.watching import measures


class Score(NamedTuple):
  """A score of a task.

  Attributes:
    title: the title of the column.
    name: the name that `runs.results.scores` gives it.
    lower_is_better: whether lower scores are better.
    digits: the number of digits after the point in tables.
    paper: the title of the paper's figures beside it, which are of another task or
      size.
    at: the size of the examples, if a task is evaluated at several sizes.
    columns: the names of scores by column, if this is their average, as in `averages`.
  """
  title: str
  name: str
  lower_is_better: bool = False
  digits: int = 1
  paper: str = ""
  at: int | None = None
  columns: Mapping[str, tuple[str, ...]] = {}

  def value(self, scores: Mapping[str, float]) -> float | None:
    """Returns the score among those of an evaluation; None if it is not there."""
    if not self.columns:
      return scores.get(self.name)
    cells = averages.columns(scores, self.columns)
    return averages.average(cells) if len(cells) == len(self.columns) else None


class Evaluation(NamedTuple):
  """One way to evaluate a trained model.

  Attributes:
    scores: the scores that it writes. The first score of a task is the one drawn.
      Empty for those that T5's mode `eval` writes, whatever they are.
    gin_files: the gin files after those of the training.
    params: gin bindings.
    suffix: the suffix of the folders that it writes, and the prefix of the names of its
      scores; a task with several evaluations tells them apart by it.
    every_look: whether to evaluate all looks of the training, or only the end.
    keeps_all: whether lines also have those of its scores that `scores` does not name.
    tasks: the names of seqio's tasks whose scores it writes, if `scores` is empty.
    metrics: the wanted scores of these tasks, in order; empty for all.
    lower_is_better: those of their scores that are better if lower, beside those whose
      names say so.
  """
  scores: tuple[Score, ...] = ()
  gin_files: tuple[str, ...] = ("eval.gin",)
  params: Mapping[str, object] = {}
  suffix: str = ""
  every_look: bool = True
  keeps_all: bool = False
  tasks: tuple[str, ...] = ()
  metrics: tuple[str, ...] = ()
  lower_is_better: tuple[str, ...] = ()

  def key(self, score: Score) -> str:
    """Returns the name of a score in the lines of a study."""
    return f"{self.suffix}/{score.name}" if self.suffix else score.name

  def with_scores(self, known: Sequence[Mapping[str, float]]) -> "Evaluation":
    """Returns the evaluation with its scores, if it names none.

    Args:
      known: the scores of some runs.

    Raises:
      ValueError: `metrics` names a score that no run has.
    """
    names = dict.fromkeys(name for scores in known for name in scores
                          if name.startswith("eval/"))
    if self.scores or not names:
      return self
    scores = [self._score(name, [run[name] for run in known if name in run])
              for name in names]
    return self._replace(scores=tuple(self._wanted(scores)))

  def _score(self, name, values):
    """Returns the `Score` of a name such as "eval/TASK/METRIC"."""
    task, _, metric = name.removeprefix("eval/").rpartition("/")
    is_low = metric in self.lower_is_better or measures.is_low(metric)
    return Score(f"{task}, {metric}", name, is_low,
                 digits=1 if max(map(abs, values)) > 1 else 3)

  def _wanted(self, scores):
    """Returns the scores of `metrics`, or all."""
    by_metric = {metric: [score for score in scores
                          if score.name.rpartition("/")[2] == metric]
                 for metric in self.metrics}
    for metric, wanted in by_metric.items():
      if not wanted:
        raise checks.Error(
            f"--scores names {metric!r}, but the scores of the evaluation are "
            f"{', '.join(score.name for score in scores)}; name the last part of one.")
    return [score for wanted in by_metric.values() for score in wanted] or scores


class Task(NamedTuple):
  """The task that a row is trained on.

  Attributes:
    name: the name of its folder.
    gin_files: the gin files of the model, the data and the training.
    evaluations: the evaluations of each run.
    steps: the number of training steps.
    looks: how many checkpoints of the training are validated.
    params: gin bindings.
    chance: the score of guessing; None if the study does not need it.
    saved_every: the most steps between two checkpoints; None for those of the looks.
  """
  name: str
  gin_files: tuple[str, ...]
  evaluations: tuple[Evaluation, ...]
  steps: int
  looks: int = 4
  params: Mapping[str, object] = {}
  chance: float | None = None
  saved_every: int | None = None

  def with_scores(self, known: Sequence[Mapping[str, float]]) -> "Task":
    """Returns the task with the scores of its evaluations, as `Evaluation` does."""
    return self._replace(evaluations=tuple(
        evaluation.with_scores(known) for evaluation in self.evaluations))

  def scores(self) -> Iterator[tuple[str, Score]]:
    """Yields the scores with their names in the lines."""
    for evaluation in self.evaluations:
      for score in evaluation.scores:
        yield evaluation.key(score), score

  def low(self) -> list[str]:
    """Returns the names of the scores that are better if they are lower."""
    return [name for evaluation in self.evaluations for name in (
        *evaluation.lower_is_better,
        *(score.name for score in evaluation.scores if score.lower_is_better))]

  @property
  def drawn(self) -> Score:
    """The score of the picture."""
    return self.evaluations[0].scores[0]


class Row(NamedTuple):
  """One model.

  Attributes:
    name: the name in the table.
    gin_files: the gin files after those of the task.
    params: gin bindings.
    bindings: further gin bindings, as text, which win over all others.
    first_files: the gin files before those of the task.
    is_warm: whether it starts from the model that the study trains first.
    annealing: (begin, end) of the annealing of a mixture's weights, as shares of the
      training; None without annealing.
    paper: the figures of arXiv:2005.00743, by the titles of scores.
    not_on: the names of tasks that this model cannot run.
  """
  name: str
  gin_files: tuple[str, ...] = ()
  params: Mapping[str, object] = {}
  is_warm: bool = False
  annealing: tuple[float, float] | None = None
  paper: Mapping[str, float] = {}
  not_on: tuple[str, ...] = ()
  bindings: tuple[str, ...] = ()
  first_files: tuple[str, ...] = ()

  @property
  def folder(self) -> str:
    """The name of the folder of its runs, without what has a meaning in globs."""
    return re.sub(r"[^\w+.-]+", "_", self.name.lower())


class Start(NamedTuple):
  """The model that warm rows start from. It is trained once, with the seed 1.

  Attributes:
    name: the name of its folder.
    gin_files: the gin files of its training.
    steps: the number of its training steps.
  """
  name: str
  gin_files: tuple[str, ...]
  steps: int


class Study(NamedTuple):
  """One study.

  Attributes:
    name: the name of its folder and its files; for `reproduce`, in `--study`.
    title: the title of the page.
    tasks: the tasks. Each row is trained on each task by itself.
    rows: the models. The others are compared with the first.
    needs_data: whether a gin file of the user's has to name the texts.
    start: where warm rows start from: a `Start`; or another study, whose row with the
      same name and seed has been trained on its first task; or None.
    table: the table of the paper that this is at laptop scale, or None.
    note: a paragraph for the head of the report.
  """
  name: str
  title: str
  tasks: tuple[Task, ...]
  rows: tuple[Row, ...]
  needs_data: bool = True
  start: "Start | Study | None" = None
  table: tables.Table | None = None
  note: str = ""

  def with_scores(self, lines: Iterable[Mapping[str, Any]]) -> "Study":
    """Returns the study with the scores that lines of runs have, where it names none.

    Args:
      lines: dicts with "task" and "scores".
    """
    known: dict[str, list] = {}
    for line in lines:
      known.setdefault(line["task"], []).append(line["scores"])
    return self._replace(tasks=tuple(
        task.with_scores(known.get(task.name, [])) for task in self.tasks))
