"""Draws the final scores of a study's rows: seeds, mean and interval."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from synthesizer_mtf.tools import over_seeds
from synthesizer_mtf.tools.comparison import study_report
from synthesizer_mtf.tools.comparison import study_types
from synthesizer_mtf.tools.reproduction import pictures


def draw(axis: Any, study: study_types.Study, task: study_types.Task,
         lines: Sequence[Mapping[str, Any]]) -> None:
  """Draws one task of a study, with the best row at the top.

  Args:
    axis: an axis of matplotlib.
    study: a `Study`.
    task: one of its tasks, whose first score is drawn.
    lines: the lines of its runs.
  """
  score, name = task.drawn, next(task.scores())[0]
  figures = study_report.scores(lines, study, task, name)
  figures = figures[figures.mean().sort_values(
      ascending=not score.lower_is_better).index]  # From bottom to top.
  numbers = {row.name: number for number, row in enumerate(study.rows)}
  for index, (row, estimate) in enumerate(over_seeds.estimates(figures).iterrows()):
    color, values = f"C{numbers[row]}", figures[row].dropna()
    axis.plot(values, [index] * len(values), "o", color=color, markersize=3, alpha=0.5)
    axis.plot(estimate["mean"], index, "|", color=color, markersize=12)
    axis.plot(estimate[["low", "high"]], [index] * 2, color=color)
  axis.set_yticks(range(figures.shape[1]), figures.columns)
  better = "lower" if score.lower_is_better else "higher"
  axis.set_xlabel(f"{score.title} ({better} is better)")
  axis.grid(axis="x", alpha=0.3)


def plot(known: Iterable[tuple[study_types.Study, Sequence[Mapping[str, Any]]]],
         path: pathlib.Path) -> None:
  """Draws all tasks of some studies.

  Args:
    known: for each study, a pair of the study and the lines of its runs.
    path: the path of a PNG.
  """
  panels = [(study, task, lines) for study, lines in known for task in study.tasks]
  with pictures.written(path, len(panels), 3, (4.6, 3.3)) as (_, axes):
    for axis, (study, task, lines) in zip(axes, panels):
      draw(axis, study, task, lines)
      axis.set_title(study.title, fontsize=10)
