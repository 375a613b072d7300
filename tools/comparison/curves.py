"""Draws the picture of a study: losses and scores of its rows over the training."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

import pandas as pd
from synthesizer_mtf.tools.comparison import forest
from synthesizer_mtf.tools.comparison import study_types
from synthesizer_mtf.tools.reproduction import pictures

_COLUMNS = 5  # The columns of the legend.


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws for each task the training loss, the validation score, and the final scores.

  The curve of a row is a line through the means of its seeds, in a band from the lowest
  seed to the highest. `forest.draw` draws the final scores.
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
      forest.draw(last, study, task, lines)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center",
                  ncols=_COLUMNS, frameon=False)
    figure.suptitle(study.title)


def _draw(axis, study, task, lines, key):
  highest = 0
  for number, row in enumerate(study.rows):
    seeds = pd.DataFrame({
        line["seed"]: dict(line[key]) for line in lines
        if (line["row"], line["task"]) == (row.name, task.name)}).dropna().sort_index()
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
