"""Writes the report of `reproduce`: the paper's figures beside ours."""

import pandas as pd
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import lines
from synthesizer_mtf.tools.experiments import plan

# The digits after the point; other columns have 2.
_DIGITS = {"Log PPL": 3, "TFLOPS": 3}


class Report:
  """The results so far of a table at laptop scale.

  Attributes:
    table, rows, runs, settings: see `plan`.
    state: a dict with "machine" and "versions".
    speed: what `speeds.measure` returned, or {}.
    failures: a dict from runs to the reason, one sentence.
  """

  def __init__(self, table: tables.Table, rows: list[tables.Row],
               runs: list[plan.Run], settings: plan.Settings,
               state: dict[str, dict]) -> None:
    """See the attributes."""
    self.table, self.rows, self.runs = table, rows, runs
    self.settings, self.state = settings, state
    self.speed = {}
    self.failures = {}

  def columns(self) -> list[tables.Column]:
    """The table's columns; a task of the user's replaces the columns of tasks."""
    task = self.settings.task
    if task in (None, self.table.mixture) or task in self.table.trained():
      return [c for c in self.table.columns
              if task in (None, c.task) or c.task is None]
    names = {name for run in self.runs for name in run.scores()}
    return [tables.Column(f"{name.removeprefix('eval/')}", task, (name,))
            for name in sorted(names)] + [
                c for c in self.table.columns if c.task is None]

  def cells(self, column: tables.Column,
            row: tables.Row) -> list[tuple[float, ...]]:
    """Returns a row's figures in a column: a tuple for each seed that has them."""
    if column.task is None:
      measured = self.speed.get(row.name, {}).get(column.scores[0])
      return [] if measured is None else [(measured,)]
    found = [column.cell(run.scores()) for run in self.runs
             if run.row is row and run.task in (column.task, self.settings.task)]
    return [cell for cell in found if cell is not None]

  def values(self, column: tables.Column) -> tuple[pd.Series, pd.DataFrame]:
    """Returns the paper's value of each row, and ours with a column for each seed."""
    names = [row.name for row in self.rows]
    paper = [tables.figure(self.table.number, column.title, name) for name in names]
    ours = [list(map(tables.value, self.cells(column, row))) for row in self.rows]
    return pd.Series(paper, names, dtype=float), pd.DataFrame(ours, names, dtype=float)

  def markdown(self) -> str:
    """Returns the report as Markdown."""
    return "\n".join([
        f"# Table {self.table.number}: {self.table.title}", "",
        self._setting(), "", self._table(), "", *self._notes()])

  def _setting(self):
    sizes = f"{self.settings.steps} steps"
    if self.table.pretrained:
      sizes += (f", or as many on C4 and {self.settings.finetune_steps} more "
                "on the task")
    tasks = ", ".join(dict.fromkeys(run.task for run in self.runs))
    seeds = ", ".join(str(s) for s in dict.fromkeys(r.seed for r in self.runs))
    note = self.settings.note(run.outcome() for run in self.runs if run.is_done())
    place, versions = self.state["machine"], self.state["versions"]
    return (
        f"Scale: laptop, {sizes}; {tasks}; seeds {seeds}. {note}\"ours\" is the mean "
        "over the seeds, with the standard deviation. The paper's models "
        "are T5-base or of its size, trained on other hardware for hundreds of times "
        "as long: compare the order, not the values.\n\n"
        f"{place['cpu']}, {place['cores']} cores; " +
        ", ".join(f"{k} {v}" for k, v in versions.items()) + ".")

  def _table(self):
    columns = self.columns()
    known = {t for row in self.rows for t in row.paper}
    cells = [["model", *(row.name for row in self.rows)]]
    for column in columns:
      if column.title in known:
        cells.append(self._column(column, "paper", self._paper))
      cells.append(self._column(column, "ours", self._ours))
    # A task of the user's has no column in the paper. The paper's columns come last.
    cells += [self._column(column, "paper", self._paper)
              for column in self.table.columns if column not in columns]
    return tabular.markdown([*zip(*cells)])

  def _column(self, column, whose, cell):
    return [f"{column.title}, {whose}", *(cell(column, row) for row in self.rows)]

  def _paper(self, column, row):
    cell = row.paper.get(column.title)
    if cell is None:
      return "-"
    first = self.table.rows[0].paper.get(column.title)
    return _text(column, cell) + _ratio(column, cell, first)

  def _ours(self, column, row):
    cells = self.cells(column, row)
    if not cells:
      return self._status(column, row)
    found = pd.DataFrame(cells)
    means = found.mean()
    text = _text(column, means)
    if len(cells) > 1:
      text += f" ± {_text(column, found.std())}"
    first = self.cells(column, self.rows[0])
    return text + _ratio(column, means, first[0] if first else None)

  def _status(self, column, row):
    if column.task is None:
      return self.speed.get(row.name, {}).get("status", "not measured")
    failed = any(run.row is row for run in self.failures)
    return "failed" if failed else "not run"

  def _notes(self):
    """Yields lines with the orders of the rows and with the failures."""
    for column in self.columns():
      paper, ours = self.values(column)
      means = pd.DataFrame({"paper": paper, "ours": ours.mean(axis=1)})
      if means["ours"].count() > 1:
        yield f"{column.title}, best first:"
        for who, known in means.dropna(axis=1, how="all").items():
          order = known.dropna().sort_values(
              ascending=column.lower_is_better, kind="stable").index
          yield f"- {who}: {' > '.join(order)}"
        yield ""
    if any(c.task is None for c in self.columns()):
      yield ("In parentheses: as a multiple of the first row's. All rows took "
             "turns, step by step; TFLOPS count einsums only.")
    for run, reason in self.failures.items():
      yield f"\n{run.name} on {run.task} failed: {reason}"
    for name, speed in self.speed.items():
      if speed["status"] != "ok":
        yield f"\nThe speed of {name} {speed['status']}: {speed['reason']}"

  def lines(self) -> str:
    """Returns the report as JSON lines: one for each run, and one for each row."""
    return tabular.json_lines([
        *map(self._run_line, self.runs), *map(self._row_line, self.rows)])

  def _common(self):
    return {"format": lines.FORMAT, "table": self.table.number, "scale": "laptop",
            "steps": self.settings.steps,
            "finetune_steps": self.settings.finetune_steps,
            "gin_params": self.settings.gin_params, **self.settings.chosen,
            **self.state}

  def _run_line(self, run):
    status = "ok" if run.is_done() else "not run"
    reason = self.failures.get(run)
    return {"kind": "run", "row": run.row.name, "task": run.task,
            "seed": run.seed, "model_dir": str(run.model_dir),
            "status": "failed" if reason else status, "reason": reason,
            "scores": run.scores(), **(run.outcome() if status == "ok" else {}),
            **self._common()}

  def _row_line(self, row):
    ours = {c.title: self.cells(c, row) for c in self.columns()}
    return {"kind": "row", "row": row.name, "paper": row.paper, "ours": ours,
            "seeds": list(dict.fromkeys(run.seed for run in self.runs)),
            "speed": self.speed.get(row.name), **self._common()}


def _text(column, cell):
  if column.title == "Params":
    return f"{cell[0] / 1e6:.1f}M"
  digits = _DIGITS.get(column.title, 2)
  return "/".join(f"{value:.{digits}f}" for value in cell)


def _ratio(column, cell, first):
  if column.task is not None or column.title == "Params" or not first:
    return ""
  return f" ({cell[0] / first[0]:.2f})"
