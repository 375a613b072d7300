"""A picture of a study with chance levels: tasks against rows, at a glance.

Each cell is the mean score of its seeds, as a color from chance (dark) to 1 (bright).
Where a file of predictions lies beside the picture, a frame marks where it was wrong.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import matplotlib.patches
import numpy as np
import pandas as pd
from synthesizer_mtf.tools.reproduction import pictures
from synthesizer_mtf.tools.reproduction import study_report
from synthesizer_mtf.tools.reproduction import study_types

SOLVED = 0.95
_CHANCE = 0.1  # Of the way from chance to 1.


def means(study: study_types.Study,
          lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """The mean score of each task (a row) and model (a column); NaN if not run."""
  found = {task.name: study_report.scores(
      lines, study, task, next(task.scores())[0]).mean() for task in study.tasks}
  return pd.DataFrame(found).T.reindex(
      index=[task.name for task in study.tasks],
      columns=[row.name for row in study.rows]).astype(float)


def outcome(score: float, chance: float) -> str:
  """"solves", "partly" or "chance", as the predictions have it."""
  if score >= SOLVED:
    return "solves"
  return "chance" if _gained(score, chance) <= _CHANCE else "partly"


def _gained(score, chance):
  """Which part of the way from chance to 1 it is."""
  return (score - chance) / (1 - chance)


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws the map, without the models of which no run is done.

  Args:
    study: a `study_types.Study`, whose tasks have a chance level.
    lines: of its runs. Without any nothing is written.
    path: of a PNG; predictions are read from `NAME_predictions.json` beside it.
  """
  if not lines:
    return
  found = means(study, lines).dropna(axis=1, how="all")
  chance = np.array([task.chance for task in study.tasks])[:, None]
  size = 0.62 * found.shape[1] + 2.6, 0.42 * found.shape[0] + 1.6
  with pictures.written(path, 1, 1, size) as (figure, ((axis,),)):
    axis.imshow(np.ma.masked_invalid(_gained(found.to_numpy(), chance)), vmin=0, vmax=1,
                cmap="viridis", aspect="auto")
    axis.set_facecolor("0.92")
    for (down, across), score in np.ndenumerate(found.to_numpy()):
      if not np.isnan(score):
        bright = _gained(score, chance[down, 0]) > 0.6
        axis.text(across, down, f"{score:.2f}".removeprefix("0"), ha="center",
                  va="center", fontsize=9, color="black" if bright else "white")
    for down, across in _wrong(study, found, path):
      axis.add_patch(matplotlib.patches.Rectangle(
          (across - 0.46, down - 0.46), 0.92, 0.92, fill=False, edgecolor="red",
          linewidth=2))
    axis.set_xticks(range(found.shape[1]), found.columns, rotation=40, ha="left")
    axis.xaxis.tick_top()
    axis.set_yticks(range(found.shape[0]), [
        f"{task.drawn.title} ({task.chance:.2f})" for task in study.tasks])
    axis.tick_params(length=0)
    axis.set_xlabel("accuracy on what is asked for, beside each task that of guessing; "
                    "grey: not run; red: not as predicted", fontsize=9)
    figure.tight_layout()


def _wrong(study, found, path):
  """Yields the (row, column) of cells that are not as predicted."""
  predictions = path.with_name(f"{path.stem}_predictions.json")
  if not predictions.exists():
    return
  predicted = json.loads(predictions.read_text(encoding="utf-8"))["rows"]
  for down, task in enumerate(study.tasks):
    for across, (row, score) in enumerate(found.loc[task.name].items()):
      if not np.isnan(score) and predicted[row][task.name] != outcome(
          score, task.chance):
        yield down, across
