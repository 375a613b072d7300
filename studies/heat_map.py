"""Draws a study with chance levels as a map of models against tasks.

The color of a cell is the mean score over the seeds, from chance (dark) to 1 (bright).
If there is a file of predictions beside the picture, frames mark wrong predictions, and
name them.
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
  scores = means(study, lines).dropna(axis=1, how="all").T
  chance = np.array([task.chance for task in study.tasks])
  with pictures.written(path, 1, 1, 0.3 * len(scores) + 1.6) as (_, (axis,)):
    axis.imshow(np.ma.masked_invalid(_gained(scores.to_numpy(), chance)), vmin=0,
                vmax=1, aspect="auto")
    axis.set_facecolor("0.92")
    for (row, column), score in np.ndenumerate(scores.to_numpy()):
      if not np.isnan(score):
        task = study.tasks[column]
        said = predicted.get(scores.index[row], {}).get(task.name)
        _draw_cell(axis, (column, row), score, task.chance, said)
    axis.set_xticks(range(len(chance)), [
        f"{task.drawn.title} ({task.chance:.2f})" for task in study.tasks],
        rotation=40, ha="left")
    axis.xaxis.tick_top()
    axis.set_yticks(range(len(scores)), scores.index)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel(_CAPTION)


_CAPTION = (
    "accuracy of the answers, from chance (dark) to 1 (bright); in brackets, of "
    "guesses\ngrey: not run; red: not as predicted, with the prediction: chance (at "
    f"most {_CHANCE:.0%} of\nthe way from chance to 1), solves (at least {SOLVED}) or "
    "partly")


def _draw_cell(axis, place, score, chance, predicted):
  """Writes a score, and frames it with its prediction if that differs."""
  column, row = place
  color = "black" if _gained(score, chance) > 0.6 else "white"
  text = f"{score:.2f}".removeprefix("0")
  if predicted in (None, outcome(score, chance)):
    axis.text(column, row, text, ha="center", va="center", color=color)
    return
  axis.text(column, row, f"{text}\n", ha="center", va="center", color=color,
            linespacing=0.9)
  axis.text(column, row + 0.22, predicted, ha="center", va="center", color=color,
            fontsize="xx-small")
  axis.add_patch(matplotlib.patches.Rectangle(
      (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="red",
      linewidth=2))


def _predictions(path):
  """Returns the predicted outcomes by model and task; nothing if there is no file."""
  path = path.with_name(f"{path.stem}_predictions.json")
  return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
