"""Reads the lines of runs of a study that were finished before, here or elsewhere."""

import pathlib

from synthesizer_mtf import checks
from synthesizer_mtf.tools.experiments import lines
from synthesizer_mtf.tools.experiments import runs
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import study_report
from synthesizer_mtf.tools.experiments import study_types


def read(path: pathlib.Path, study: study_types.Study,
         settings: settings_lib.Settings) -> list[study_report.Line]:
  """Returns the lines of runs that are done; no lines if there is no file.

  Raises:
    ValueError: the lines are not of this study with these settings, or `lines.read`
      finds a mistake.
  """
  if not path.exists():
    return []
  known, expected = lines.read(path), study_report.setting(study, settings)
  if known.setting != expected:
    raise checks.Error(f"{path} holds runs of {known.setting}, not {expected}; move "
                       "it away, or give the same flags.")
  done = [line for line in known.runs if line["status"] == "ok"]
  for line in done:
    _check(path, line, study, settings)
  return done


def _check(path, line, study, settings):
  """Raises a ValueError for a run that the study does not have, or no longer has."""
  task = {task.name: task for task in study.tasks}.get(line["task"])
  what = f"{path}: {line['row']} on {line['task']}, seed {line['seed']},"
  if task is None or line["row"] not in {row.name for row in study.rows}:
    raise checks.Error(f"{what} is not of the study {study.name}; remove its line.")
  steps = runs.trained_steps(study, task, settings)
  names = [name for name, _ in task.scores()]
  steps = line.get("stopped_at", steps)
  if line.get("training_steps") != steps or set(line["scores"]) != set(names):
    raise checks.Error(
        f"{what} has {line.get('training_steps')} steps and the scores "
        f"{list(line['scores'])}, not {steps} and {', '.join(names)}; it is of "
        "another version, so move the file away.")
