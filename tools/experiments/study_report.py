"""Writes the report of a study: tables, orders of the rows, and JSON lines.

The report needs only the lines of finished runs. So a committed file of lines gives the
same report as the runs themselves.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import pandas as pd
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import lines as lines_lib
from synthesizer_mtf.tools.experiments import plan
from synthesizer_mtf.tools.experiments import study_runs
from synthesizer_mtf.tools.experiments import study_types

Line = Mapping[str, Any]


class Report:
  """The results so far of a study.

  Attributes:
    study: a `study_types.Study`.
    settings: a `plan.Settings`.
    failures: a dict from runs to the reason, one sentence.
  """

  def __init__(self, study: study_types.Study, lines: Sequence[Line],
               runs: Sequence[study_runs.Run] = (),
               settings: plan.Settings | None = None,
               state: Mapping[str, Any] | None = None,
               intervals: bool = False) -> None:
    """Declares where the figures come from.

    Args:
      study: a `study_types.Study`.
      lines: the lines of runs that were finished before, here or elsewhere.
      runs: runs whose figures are read from their folders if they have no line.
      settings: the settings of the runs.
      state: a dict with the "machine" and the "versions" of the runs.
      intervals: whether the table of means has a 95% interval beside each mean.
    """
    self.study, self.failures = study, {}
    self._known = {_key(line): line for line in lines}
    self._runs, self._state, self._intervals = runs, state, intervals
    self.settings = settings or plan.Settings()

  def lines_of_runs(self) -> list[Line]:
    """Returns the line of each run that is done, in the order of the runs."""
    for run in self._runs:
      if not self.is_known(run) and run.is_done():
        self._known[_key_of(run)] = {
            "kind": "run", "format": lines_lib.FORMAT,
            **setting(self.study, self.settings), **run.line(),
            **(self._state or {})}
    return list(self._known.values())

  def is_known(self, run: study_runs.Run) -> bool:
    """Returns whether there is a line for a run."""
    return _key_of(run) in self._known

  def lines(self) -> str:
    """Returns the JSON lines."""
    return tabular.json_lines(self.lines_of_runs())

  def markdown(self) -> str:
    """Returns the means, the rows' orders, and their differences from the first row."""
    lines = self.lines_of_runs()
    columns = [(score, scores(lines, self.study, task, name))
               for task in self.study.with_scores(lines).tasks
               for name, score in task.scores()]
    return "\n\n".join(filter(None, [
        self._heading(lines), self._means(columns),
        *(self._order(score, figures) for score, figures in columns
          if figures.shape[1] > 1),
        *self._differences(columns),
        *(f"{run.name} on {run.task} failed: {reason}"
          for run, reason in self.failures.items())]))

  def _heading(self, lines):
    seeds = sorted({line["seed"] for line in lines})
    seconds = sum(line["training_seconds"] for line in lines)
    time = f"{seconds / 3600:.1f} hours" if seconds >= 180 else f"{seconds} seconds"
    known = {task.name: [line["training_steps"] for line in lines
                         if line["task"] == task.name] for task in self.study.tasks}
    steps = ", ".join(f"{task} {plan.span(of)} steps"
                      for task, of in known.items() if of)
    places = dict.fromkeys(
        f"{line['machine']['cpu']}, {line['machine']['cores']} cores"
        for line in lines if "machine" in line)
    return (f"{len(lines)} runs: {steps}; seeds {', '.join(map(str, seeds))}; "
            f"{time} of training steps in all, on {'; '.join(places)}. "
            f"{self.settings.note(lines)}Mean over the seeds ± standard error.")

  def _means(self, columns):
    rows = self.study.rows
    table = [["model", *(row.name for row in rows)]]
    seeds = max((len(figures) for _, figures in columns), default=0)
    for score, figures in columns:
      found = over_seeds.estimates(figures).T
      table.append([score.title] + [
          _cell(found.get(row.name), score, seeds) for row in rows])
      if self._intervals and seeds > 1:
        table.append(["95% interval"] + [
            _interval(found.get(row.name), score) for row in rows])
      if score.paper:
        table.append([f"paper: {score.paper}"] + [
            str(row.paper.get(score.title, "-")) for row in rows])
    return tabular.markdown([*zip(*table)])

  def _order(self, score, figures):
    """Returns the order of the means, beside the paper's order."""
    ours = figures.mean()
    papers = pd.Series({
        row.name: row.paper[score.title] for row in self.study.rows
        if score.title in row.paper and row.name in ours}, dtype=float)
    lines = [f"{score.title}, best mean first:",
             f"- ours: {_best_first(ours, score)}"]
    if len(papers):
      lines.append(f"- paper ({score.paper}): {_best_first(papers, score)}")
    if len(papers) > 2 and min(ours[papers.index].nunique(), papers.nunique()) > 1:
      correlation = ours.corr(papers, "spearman")
      lines.append(f"- Spearman's rank correlation with the paper: {correlation:.2f}")
    return "\n".join(lines)

  def _differences(self, columns):
    """Yields the paired differences of each row from the first row, and a note."""
    first = self.study.rows[0].name
    pairs = {number: figures.drop(columns=first).sub(figures[first], axis=0)
             for number, (_, figures) in enumerate(columns) if first in figures}
    if not any(of.size for of in pairs.values()):
      return
    sizes = pd.concat({number: columns[number][1].abs().max() for number in pairs})
    differences = pd.concat(pairs, axis=1)
    found = over_seeds.tested(differences, sizes[differences.columns])
    found = found[found["count"] > 1]
    table = [["score", "model", f"minus {first}", "95% interval", "p", ""]]
    for (number, row), difference in found.iterrows():
      score, _ = columns[number]
      table.append([score.title, row,
                    *over_seeds.cells(difference, f"+.{score.digits}f")])
    if len(table) > 1:
      yield tabular.markdown(table)
      yield over_seeds.note(found)


def _best_first(means, score):
  return ", ".join(means.sort_values(
      ascending=score.lower_is_better, kind="stable").index)


def _cell(known, score, seeds):
  """Returns an estimate as the table shows it; "not run" if it is None."""
  if known is None:
    return "not run"
  count = int(known["count"])
  few = "" if count >= seeds else f" ({count} of {seeds} seeds)"
  return f"{over_seeds.text(known, score.digits)}{few}"


def _interval(known, score):
  if known is None or math.isnan(known["low"]):
    return "-"
  return " to ".join(f"{known[end]:.{score.digits}f}" for end in ("low", "high"))


def setting(study: study_types.Study, settings: plan.Settings) -> dict[str, Any]:
  """Returns the settings of all lines of a study; 0 means the study's own steps."""
  return {"study": study.name, "scale": "laptop", "steps": settings.steps or 0,
          "finetune_steps": settings.finetune_steps or 0,
          "gin_params": settings.gin_params, **settings.chosen}


def scores(lines: Sequence[Line], study: study_types.Study,
           task: study_types.Task, name: str) -> pd.DataFrame:
  """Returns the scores of a task with a name: a column for each row, by seed."""
  found = {row.name: pd.Series({
      line["seed"]: line["scores"].get(name) for line in lines
      if (line["row"], line["task"]) == (row.name, task.name)}, dtype=float)
      for row in study.rows}
  return pd.DataFrame({row: values for row, values in found.items() if len(values)})


def _key_of(run):
  return run.row.name, run.task, run.seed


def _key(line):
  return line["row"], line["task"], line["seed"]
