"""Writes the report of a table, a study or a comparison, and executes its runs.

A report has the means of all scores, the orders of the rows, their differences from the
first row, and, of a table of the paper, the paper's figures beside ours. It needs only
the lines of finished runs. So a committed file of lines gives the same report as the
runs themselves.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
from typing import Any

import pandas as pd
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import first_check
from synthesizer_mtf.tools.experiments import hparams
from synthesizer_mtf.tools.experiments import lines as lines_lib
from synthesizer_mtf.tools.experiments import queue
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import shares
from synthesizer_mtf.tools.experiments import study_types

Line = Mapping[str, Any]
_SPEED_NOTE = (
    "In parentheses: as a multiple of the first row's. All rows took turns, step by "
    "step; TFLOPS count einsums only.")
# A score, and its figures: a column for each row of the study, by seed.
Figures = tuple[study_types.Score, pd.DataFrame]


class Report:
  """The results so far of a study.

  Attributes:
    settings: the settings of the runs.
    speed: the speed and size of each row, as `reproduce` measures them.
    failures: a dict from runs to the reason, one sentence.
  """

  def __init__(self, study: study_types.Study, lines: Sequence[Line],
               runs: Sequence[runs_lib.Run] = (),
               settings: settings_lib.Settings = settings_lib.DEFAULT,
               state: Mapping[str, Any] | None = None,
               intervals: bool = False) -> None:
    """Declares where the figures come from.

    Args:
      lines: the lines of runs that were finished before, here or elsewhere.
      runs: runs whose figures are read from their folders if they have no line.
      settings: the settings of the runs.
      state: a dict with the "machine" and the "versions" of the runs.
      intervals: whether the table of means has a 95% interval beside each mean.
    """
    self.study, self.settings, self.failures = study, settings, {}
    self.speed: dict[str, dict[str, Any]] = {}
    self._known = {_key(line): line for line in lines}
    self._runs, self._state, self._intervals = runs, state or {}, intervals

  def lines_of_runs(self) -> list[Line]:
    """Returns the line of each run that is done, in the order of the runs."""
    for run in self._runs:
      if not self.is_known(run) and run.is_done():
        self._known[_run_key(run)] = self._line("run", run.line())
    return list(self._known.values())

  def is_known(self, run: runs_lib.Run) -> bool:
    """Returns whether there is a line for a run."""
    return _run_key(run) in self._known

  def lines(self) -> str:
    """Returns the JSON lines: one for each run, and of a table one for each row."""
    done = {_key(line): line for line in self.lines_of_runs()}
    runs = {_run_key(run): self._line("run", self._undone(run)) for run in self._runs}
    table = self.study.table
    by_name = {row.name: row for row in table.rows} if table else {}
    rows = [by_name[row.name] for row in self.study.rows] if table else []
    return tabular.json_lines([
        *{**runs, **done}.values(),
        *(self._line("row", self._row(row, list(done.values())))
          for row in rows)])

  def _line(self, kind, contents):
    return {"kind": kind, "format": lines_lib.FORMAT,
            **setting(self.study, self.settings), **contents, **self._state}

  def _undone(self, run):
    reason = self.failures.get(run)
    return {"row": run.row.name, "task": run.task, "seed": run.seed,
            "status": "failed" if reason else "not run", "reason": reason,
            "model_dir": str(run.model_dir), "scores": {}}

  def _row(self, row, done):
    """Returns a row's cells, those of the paper and ours, by the titles of columns."""
    speed = self.speed.get(row.name, {})
    scores = [line["scores"] for line in done if line["row"] == row.name]
    ours = {column.title: [cell for scores_ in (scores if column.task else [speed])
                           if (cell := column.cell(scores_))]
            for column in self._columns}
    return {"row": row.name, "paper": row.paper, "ours": ours,
            "seeds": list(dict.fromkeys(run.seed for run in self._runs)),
            "speed": speed or None}

  @property
  def _columns(self):
    """The columns of the paper's table."""
    return self.study.table.columns if self.study.table else ()

  def figures(self) -> list[Figures]:
    """Returns the scores with their figures; a score without figures has no column."""
    lines = self.lines_of_runs()
    return [(score, scores(lines, self.study, task, name))
            for task in self.study.with_scores(lines).tasks
            for name, score in task.scores()]

  def measured(self) -> list[Figures]:
    """Returns the speed and the sizes that a table of the paper has, as `figures`."""
    source = self.study.title.partition(":")[0]
    return [(study_types.Score(column.title, name, column.lower_is_better,
                               3 if name == "tflops" else 2, source),
             pd.DataFrame({row: [speed[name]] for row, speed in self.speed.items()
                           if name in speed}))
            for column in self._columns if column.task is None
            for name in column.scores]

  def markdown(self) -> str:
    """Returns the means, the rows' orders, and their differences from the first row."""
    lines, figures, measured = self.lines_of_runs(), self.figures(), self.measured()
    return "\n\n".join(filter(None, [
        f"# {self.study.title}" if self.study.table else None, self._heading(lines),
        self.study.note, self._means(figures, measured),
        *(self._order(score, values) for score, values in [*figures, *measured]
          if values.shape[1] > 1),
        *self._differences(figures),
        _SPEED_NOTE if self.speed else None,
        *(f"{run.name} on {run.task} failed: {reason}"
          for run, reason in self.failures.items()),
        *(f"The speed of {name} {speed['status']}: {speed['reason']}"
          for name, speed in self.speed.items() if speed["status"] != "ok")]))

  def _heading(self, lines):
    seeds = sorted({line["seed"] for line in lines})
    seconds = sum(line["training_seconds"] for line in lines)
    time = f"{seconds / 3600:.1f} hours" if seconds >= 180 else f"{seconds} seconds"
    trained = {task.name: [line["training_steps"] for line in lines
                           if line["task"] == task.name] for task in self.study.tasks}
    steps = ", ".join(f"{task} {settings_lib.span(of)} steps"
                      for task, of in trained.items() if of)
    places = dict.fromkeys(
        f"{line['machine']['cpu']}, {line['machine']['cores']} cores"
        for line in lines if "machine" in line)
    return (f"{len(lines)} runs: {steps}; seeds {', '.join(map(str, seeds))}; "
            f"{time} of training steps in all, on {'; '.join(places)}. "
            f"{self.settings.note(lines)}Mean over the seeds ± standard error.")

  def _means(self, figures, measured):
    rows = self.study.rows
    table = [["model", *(row.name for row in rows)]]
    seeds = max((len(values) for _, values in figures), default=0)
    for score, values in figures:
      estimates = over_seeds.estimates(values).T
      table.append([score.title] + [
          _cell(estimates.get(row.name), score, seeds) or self._missing(row)
          for row in rows])
      if self._intervals and seeds > 1:
        table.append(["95% interval"] + [
            _interval(estimates.get(row.name), score) for row in rows])
      if score.paper:
        table.append(self._paper(score.title, f"paper: {score.paper}"))
    for score, values in measured:
      paper = {row.name: row.paper[score.title] for row in rows}
      table += [[score.title] + [
          _relative(values.iloc[0].to_dict() if len(values) else {}, row.name, score)
          or self.speed.get(row.name, {}).get("status", "not measured")
          for row in rows],
                [f"paper: {score.paper}"] + [
                    _relative(paper, row.name, score) for row in rows]]
    titles = {score.title for score, _ in [*figures, *measured]}
    return tabular.markdown([*zip(*table, *(  # Of a table, if the task is the user's.
        self._paper(title, f"paper: {title}") for title in dict.fromkeys(
            title for row in rows for title in row.paper) if title not in titles))])

  def _paper(self, title, heading):
    return [heading, *(str(row.paper.get(title, "-")) for row in self.study.rows)]

  def _missing(self, row):
    return "failed" if any(run.row.name == row.name for run in self.failures) else (
        "not run")

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
             for number, (score, figures) in enumerate(columns)
             if first in figures and score.name != "million_parameters"}
    if not any(differences.size for differences in pairs.values()):
      return
    sizes = pd.concat({number: columns[number][1].abs().max() for number in pairs})
    differences = pd.concat(pairs, axis=1)
    tested = over_seeds.tested(differences, sizes[differences.columns])
    tested = tested[tested["count"] > 1]
    table = [["score", "model", f"minus {first}", "95% interval", "p", ""]]
    for (number, row), difference in tested.iterrows():
      score, _ = columns[number]
      table.append([score.title, row,
                    *over_seeds.cells(difference, f"+.{score.digits}f")])
    if len(table) > 1:
      yield tabular.markdown(table)
      yield over_seeds.note(tested)

  def write(self, path: pathlib.Path, json_path: str | None,
            draw: Callable[[pathlib.Path], None]) -> None:
    """Writes the report so far; replaces an existing one atomically; see `execute`."""
    for suffix, text in ((".md", self.markdown() + "\n"), (".jsonl", self.lines())):
      unfinished = path.with_suffix(".unfinished")
      unfinished.write_text(text, encoding="utf-8")
      unfinished.replace(path.with_suffix(suffix))
    draw(path.with_suffix(".png"))
    if json_path:
      pathlib.Path(json_path).write_text(self.lines(), encoding="utf-8")

  def execute(self, runs: Sequence[runs_lib.Run],
              machine_shares: Sequence[shares.Share], path: pathlib.Path,
              json_path: str | None, draw: Callable[[pathlib.Path], None]) -> int:
    """Executes runs, and writes the report after each; returns the status.

    Args:
      runs: the runs to execute.
      machine_shares: a share of the machine for each run that goes on at a time.
      path: the path of the report, without the ending of its files.
      json_path: where to write the lines once more; None for nowhere.
      draw: draws the picture, at a path.
    """
    def finished(run, reason):
      if reason:
        self.failures[run] = reason
      else:
        hparams.write(run, self.settings.gin_params)
      self.write(path, json_path, draw)

    if not runs:  # All lines were there.
      self.write(path, json_path, draw)
    queue.run(runs, machine_shares, finished)
    written = sorted(map(str, path.parent.glob(f"{path.name}.*")))
    print(f"\n{self.markdown()}\n\nWrote {', '.join(written)}")
    return 1 if self.failures else 0


def check_first(runs: Iterable[runs_lib.Run], settings: settings_lib.Settings) -> None:
  """Checks the models of all runs that are not done, as `first_check` does."""
  first_check.check(
      (stage for run in runs if not run.is_done() for stage in run.stages()),
      settings.best_by)


def chosen_rows(rows: Iterable[Any], names: Sequence[str] | None,
                title: str) -> list[Any]:
  """Returns the rows with some names, or all rows.

  Args:
    rows: rows of a table, each with a `name`.
    names: the value of --rows; None for all.
    title: the table, for the message.

  Raises:
    ValueError: there is no row of a name.
  """
  known = {row.name: row for row in rows}
  for name in names or ():
    if name not in known:
      raise checks.Error(f"--rows names {name!r}, but the rows of {title} are "
                         f"{', '.join(known)}; use these.")
  return [known[name] for name in names or known]


def _best_first(means, score):
  return ", ".join(means.sort_values(
      ascending=score.lower_is_better, kind="stable").index)


def _cell(estimate, score, seeds):
  """Returns an estimate as the table shows it; None without one."""
  if estimate is None:
    return None
  count = int(estimate["count"])
  few = "" if count >= seeds else f" ({count} of {seeds} seeds)"
  return f"{over_seeds.text(estimate, score.digits)}{few}"


def _interval(estimate, score):
  if estimate is None or math.isnan(estimate["low"]):
    return "-"
  return " to ".join(f"{estimate[end]:.{score.digits}f}" for end in ("low", "high"))


def _relative(values, row, score):
  """Returns a row's speed, and its ratio to the first row's; or its size."""
  if row not in values:
    return None
  if score.name == "parameters":
    return f"{values[row] / 1e6:.1f}M"
  first = next(iter(values.values()))
  return f"{values[row]:.{score.digits}f} ({values[row] / first:.2f})"


def setting(study: study_types.Study,
            settings: settings_lib.Settings) -> dict[str, Any]:
  """Returns the settings of all lines of a study; 0 means the study's own steps."""
  which = {"table": study.table.number} if study.table else {"study": study.name}
  return {**which, "scale": "laptop", "steps": settings.steps or 0,
          "finetune_steps": settings.finetune_steps or 0,
          "gin_params": settings.gin_params, **settings.chosen}


def scores(lines: Sequence[Line], study: study_types.Study,
           task: study_types.Task, name: str) -> pd.DataFrame:
  """Returns the scores of a task with a name: a column for each row, by seed."""
  by_row = {row.name: pd.Series({
      line["seed"]: line["scores"].get(name) for line in lines
      if (line["row"], line["task"]) == (row.name, task.name)}, dtype=float)
      for row in study.rows}
  return pd.DataFrame({row: values for row, values in by_row.items() if len(values)})


def _run_key(run):
  return run.row.name, run.task, run.seed


def _key(line):
  return line["row"], line["task"], line["seed"]
