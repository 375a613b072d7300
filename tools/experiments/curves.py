"""Draws the picture of a study: losses and scores of its rows over the training."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

import pandas as pd
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import study_report
from synthesizer_mtf.tools.experiments import study_types

_COLUMNS = 5  # The columns of the legend.


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws for each task the training loss, the validation score, and the final scores.

  The curve of a row is a line through the means of its seeds, in a band from the lowest
  seed to the highest. `draw_scores` draws the final scores.
  """
  across, legend = len(study.tasks), -(-len(study.rows) // _COLUMNS)
  with pictures.written(path, 3 * across, across, (7, 10 / 3),
                        below=0.02 * (1 + legend)) as (figure, axes):
    for task, losses, scores, last in zip(study.tasks, *axes.reshape(3, across)):
      _draw(losses, study, task, lines, "training_loss")
      losses.set(title=task.drawn.title.split(", ")[0], ylabel="loss of training")
      _draw(scores, study, task, lines, "validation")
      scores.set(xlabel="step",
                 ylabel=f"validation, {task.drawn.title.split(', ')[-1]}")
      draw_scores(last, study, task, lines)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center",
                  ncols=_COLUMNS, frameon=False)
    figure.suptitle(study.title)


def _draw(axis, study, task, lines, key):
  highest = 0
  for number, row in enumerate(study.rows):
    seeds = pd.DataFrame({
        line["seed"]: dict(line[key]) for line in lines
        if (line["row"], line["task"]) == (row.name, task.name)}).dropna().sort_index()
    if seeds.empty:  # A score that training has not computed on its way to a best step.
      continue
    color, style = f"C{number}", "-" if number < 10 else "--"
    # Without the first steps, whose loss would flatten the curves.
    late = seeds[seeds.index > 0.05 * seeds.index.max()]
    highest = max(highest, late.to_numpy().max(initial=0))
    axis.plot(seeds.mean(axis=1), color=color, linestyle=style, label=row.name,
              marker="o" if key == "validation" else None, markersize=3)
    axis.fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=color,
                      alpha=0.15, linewidth=0)
  axis.grid(alpha=0.3)
  axis.set_xlim(left=0)
  if key == "training_loss" and highest:
    axis.set_ylim(top=1.05 * highest)


def draw_scores(axis: Any, study: study_types.Study, task: study_types.Task,
                lines: Sequence[Mapping[str, Any]]) -> None:
  """Draws the final scores of a task: seeds, mean and interval, the best row on top.

  Args:
    axis: an axis of matplotlib.
    study: a `study_types.Study`.
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
