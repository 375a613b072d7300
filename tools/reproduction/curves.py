"""Draws the picture of a study: losses and scores of its rows over the training."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
import statistics
from typing import Any

from synthesizer_mtf.tools.reproduction import forest
from synthesizer_mtf.tools.reproduction import pictures
from synthesizer_mtf.tools.reproduction import study_types

_WIDTH = 7.0  # The width of a task's part of the picture, in inches.
_COLUMNS = 5  # The columns of the legend.


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws for each task the training loss, the validation score, and the final scores.

  The curve of a row is a line through the means of its seeds, in a band from the lowest
  seed to the highest. `forest.draw` draws the final scores.

  Args:
    study: a `study_types.Study`.
    lines: the lines of its runs. Without lines nothing is written.
    path: the path of a PNG.
  """
  if not lines:
    return
  size = _WIDTH * len(study.tasks), 10
  with pictures.written(path, 3, len(study.tasks), size) as (figure, axes):
    for column, task in zip(axes.T, study.tasks):
      _draw(column[0], study, task, lines, "training_loss")
      column[0].set(title=task.drawn.title.split(", ")[0], ylabel="loss of training")
      _draw(column[1], study, task, lines, "validation")
      column[1].set(xlabel="step",
                    ylabel=f"validation, {task.drawn.title.split(', ')[-1]}")
      forest.draw(column[2], study, task, lines)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center",
                  ncols=_COLUMNS, frameon=False)
    figure.suptitle(study.title)
    figure.tight_layout(rect=(0, 0.02 * (1 + -(-len(study.rows) // _COLUMNS)), 1, 1))


def _draw(axis, study, task, lines, key):
  highest = []  # Without the first steps, whose loss would flatten the curves.
  for number, row in enumerate(study.rows):
    curves = [dict(line[key]) for line in lines
              if (line["row"], line["task"]) == (row.name, task.name)]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    seeds = [[curve[step] for curve in curves] for step in steps]
    color, style = f"C{number}", "-" if number < 10 else "--"
    highest += [max(values) for step, values in zip(steps, seeds)
                if step > 0.05 * max(steps)]
    axis.plot(steps, [statistics.mean(values) for values in seeds], color=color,
              linestyle=style, label=row.name,
              marker="o" if key == "validation" else None, markersize=3)
    axis.fill_between(steps, list(map(min, seeds)), list(map(max, seeds)),
                      color=color, alpha=0.15, linewidth=0)
  axis.grid(alpha=0.3)
  axis.set_xlim(left=0)
  if key == "training_loss" and highest:
    axis.set_ylim(top=1.05 * max(highest))
