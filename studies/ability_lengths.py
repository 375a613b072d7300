"""The study of longer texts: models train on sizes up to N, and predict up to 2 N."""

from collections.abc import Callable
from typing import Any

from studies import ability_study
from studies.tasks import ability
from studies.tasks import ability_positions
from studies.tasks import ability_recall
from studies.tasks import ability_selection
from synthesizer_mtf.tools.experiments.study_types import Evaluation
from synthesizer_mtf.tools.experiments.study_types import Score
from synthesizer_mtf.tools.experiments.study_types import Study
from synthesizer_mtf.tools.experiments.study_types import Task

_ROWS = ("V", "V with bias", "R", "FR", "T", "D", "LightConv", "uniform with bias")


def _task(make: Callable[..., ability.Ability], steps: int, largest: int,
          lengths: Callable[[int], dict[str, int]], **others: Any) -> Task:
  """Returns a task with training sizes N / 2 to N, and evaluation sizes N to 2 N.

  Args:
    make: the class of the task.
    steps: the number of training steps.
    largest: N, the largest size in training.
    lengths: a function from a size to the lengths of the features.
    **others: gin bindings, and `sizes`, the sizes of the task that do not vary.
  """
  parameter = make().parameter
  module, _, size = parameter.partition(".")
  trained = {**others.pop("sizes", {}), size: largest, "shortest": largest // 2}
  trained_task = ability_study.task(
      make, steps, lengths(largest), sizes=trained, **others)
  title = trained_task.drawn.title
  return trained_task._replace(chance=None, evaluations=tuple(
      Evaluation(
          (Score(f"{title}, {size} {at}", "token_accuracy", digits=2, at=at),),
          ("ability_eval.gin",),
          {parameter: at, f"{module}.shortest": None,
           "utils.run.sequence_length": lengths(at)}, suffix=f"size_{at}")
      for at in range(largest, 2 * largest + 1, largest // 2)))


STUDY = Study(
    "ability_lengths", "Trained up to N, asked for up to 2 N",
    (_task(ability_recall.Recall, 1500, 4, lambda pairs: {"targets": 2 * pairs + 16},
           sizes={"alphabet": 8}, **ability_study.LM, **ability_study.LOW_RATE),
     _task(ability_selection.SelectiveCopying, 2000, 16,
           lambda length: {"targets": length + 5},
           sizes={"letters": 4, "alphabet": 18}, **ability_study.LM),
     _task(ability_positions.Reverse, 1500, 16,
           lambda length: {"inputs": length, "targets": length})),
    tuple(row for row in ability_study.STUDY.rows if row.name in _ROWS),
    needs_data=False)
