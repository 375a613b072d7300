"""Draws a study of several sizes: the score of each row over the size."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

import pandas as pd
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import study_report
from synthesizer_mtf.tools.experiments import study_types


def means(study: study_types.Study, task: study_types.Task,
          lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """Returns the mean score over the seeds of each size (row) and model (column)."""
  by_size = {score.at: study_report.scores(lines, study, task, name).mean()
             for name, score in task.scores()}
  return pd.DataFrame(by_size).T.sort_index()


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws a panel for each task, with a line at the largest size in training.

  Args:
    study: a `study_types.Study`, all of whose scores have a size.
    lines: the lines of its runs.
    path: the path of a PNG.
  """
  count = len(study.tasks)
  with pictures.written(path, count, count, 3.4, sharey=True) as (figure, axes):
    for axis, task in zip(axes, study.tasks):
      found = means(study, task, lines)
      for number, row in enumerate(study.rows):
        if row.name in found:
          axis.plot(found.index, found[row.name], marker="o",
                    color=f"C{number}", label=row.name)
      sizes = [score.at for _, score in task.scores()]
      axis.axvline(sizes[0], color="0.7", linestyle=":")
      axis.set(title=task.name.replace("_", " "), ylim=(-0.03, 1.03), xticks=sizes,
               xlabel=task.drawn.title.split(", ")[-1].rpartition(" ")[0])
      axis.grid()
    axes[0].set_ylabel("accuracy of the answers")
    known = {label: line for axis in axes
             for line, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(known.values(), known, loc="outside lower center",
                  ncols=len(study.rows), title="means over the seeds; "
                  "dotted: the largest size in training")
