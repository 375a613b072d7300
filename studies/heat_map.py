"""Draws a study with chance levels as a map of tasks against rows.

The color of a cell is the mean score over the seeds, from chance (dark) to 1 (bright).
If there is a file of predictions beside the picture, frames mark wrong predictions.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import matplotlib.patches
import numpy as np
import pandas as pd
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import study_report
from synthesizer_mtf.tools.experiments import study_types

SOLVED = 0.95
_CHANCE = 0.1  # Up to this value of `_gained`, a score counts as chance.


def means(study: study_types.Study,
          lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """Returns the mean score of each task (row) and model (column); NaN if not run."""
  by_task = {task.name: study_report.scores(
      lines, study, task, next(task.scores())[0]).mean() for task in study.tasks}
  return pd.DataFrame(by_task).T.reindex(
      index=[task.name for task in study.tasks],
      columns=[row.name for row in study.rows]).astype(float)


def outcome(score: float, chance: float) -> str:
  """Returns "solves", "partly" or "chance", the words of the predictions."""
  if score >= SOLVED:
    return "solves"
  return "chance" if _gained(score, chance) <= _CHANCE else "partly"


def _gained(score, chance):
  """Returns (score - chance) / (1 - chance): 0 at chance, 1 for a perfect score."""
  return (score - chance) / (1 - chance)


def plot(study: study_types.Study, lines: Sequence[Mapping[str, Any]],
         path: pathlib.Path) -> None:
  """Draws the map, without the models that have no finished run.

  Args:
    study: a `study_types.Study`, whose tasks have a chance level.
    lines: the lines of its runs.
    path: the path of a PNG; predictions are in `NAME_predictions.json` beside it.
  """
  predicted = _predictions(path)
  found = means(study, lines).dropna(axis=1, how="all")
  chance = np.array([task.chance for task in study.tasks])[:, None]
  size = 0.62 * found.shape[1] + 2.6, 0.42 * found.shape[0] + 1.6
  with pictures.written(path, 1, 1, size) as (_, (axis,)):
    axis.imshow(np.ma.masked_invalid(_gained(found.to_numpy(), chance)), vmin=0, vmax=1,
                cmap="viridis", aspect="auto")
    axis.set_facecolor("0.92")
    for (down, across), score in np.ndenumerate(found.to_numpy()):
      if np.isnan(score):
        continue
      task = study.tasks[down]
      assert task.chance is not None  # As the docstring says.
      bright = _gained(score, task.chance) > 0.6
      axis.text(across, down, f"{score:.2f}".removeprefix("0"), ha="center",
                va="center", fontsize=9, color="black" if bright else "white")
      if predicted and predicted[found.columns[across]][task.name] != outcome(
          score, task.chance):
        axis.add_patch(matplotlib.patches.Rectangle(
            (across - 0.46, down - 0.46), 0.92, 0.92, fill=False, edgecolor="red",
            linewidth=2))
    axis.set_xticks(range(found.shape[1]), found.columns, rotation=40, ha="left")
    axis.xaxis.tick_top()
    axis.set_yticks(range(found.shape[0]), [
        f"{task.drawn.title} ({task.chance:.2f})" for task in study.tasks])
    axis.tick_params(length=0)
    axis.set_xlabel("accuracy of the answers; in brackets, of guesses; "
                    "grey: not run; red: not as predicted", fontsize=9)


def _predictions(path):
  """Returns the predicted outcomes by model and task; nothing if there is no file."""
  path = path.with_name(f"{path.stem}_predictions.json")
  return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
