"""The report of a study: its table, the orders of its rows, its lines of JSON.

All is made from the lines of the runs that are done, so that a committed file of them
gives the same report as the runs themselves.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools.reproduction import lines as lines_lib
from synthesizer_mtf.tools.reproduction import plan
from synthesizer_mtf.tools.reproduction import rankings
from synthesizer_mtf.tools.reproduction import study_runs
from synthesizer_mtf.tools.reproduction import study_types

Line = Mapping[str, Any]


class Report:
  """What is known of a study, while it runs and afterwards.

  Attributes:
    study: a `study_types.Study`.
    settings: a `plan.Settings`.
    failures: a dict from runs to the reason, one sentence.
  """

  def __init__(self, study: study_types.Study, lines: Sequence[Line],
               runs: Sequence[study_runs.Run] = (),
               settings: plan.Settings | None = None,
               state: Mapping[str, Any] | None = None) -> None:
    """Declares where the figures come from.

    Args:
      study: a `study_types.Study`.
      lines: of runs that were done elsewhere, or before.
      runs: whose figures are taken where there is no line of theirs.
      settings: of the runs.
      state: a dict with the "machine" and the "versions" of the runs.
    """
    self.study, self.failures = study, {}
    self._known = {_key(line): line for line in lines}
    self._runs, self._state = runs, state
    self.settings = settings or plan.Settings()

  def lines_of_runs(self) -> list[Line]:
    """The line of each run that is done, in the order of the runs."""
    for run in self._runs:
      if not self.is_known(run) and run.is_done():
        self._known[_key_of(run)] = {
            "kind": "run", "format": lines_lib.FORMAT,
            **setting(self.study, self.settings), **run.line(),
            **(self._state or {})}
    return list(self._known.values())

  def is_known(self, run: study_runs.Run) -> bool:
    """Whether there is a line of a run."""
    return _key_of(run) in self._known

  def lines(self) -> str:
    """The lines of JSON."""
    return tabular.json_lines(self.lines_of_runs())

  def markdown(self) -> str:
    """The table, and below it the orders of the rows."""
    lines = self.lines_of_runs()
    return "\n".join([
        *self._heading(lines), "", *self._table(lines), "", *self._orders(lines),
        *(f"\n{run.name} on {run.task} failed: {reason}"
          for run, reason in self.failures.items())])

  def _heading(self, lines):
    seeds = sorted({line["seed"] for line in lines})
    hours = sum(line["training_seconds"] for line in lines) / 3600
    steps = ", ".join(
        f"{task.name} {line['training_steps']:,} steps"
        for task in self.study.tasks for line in _of_task(lines, task)[:1])
    places = dict.fromkeys(
        f"{line['machine']['cpu']}, {line['machine']['cores']} cores"
        for line in lines if "machine" in line)
    yield (f"{len(lines)} runs: {steps}; seeds {', '.join(map(str, seeds))}; "
           f"{hours:.1f} hours of training steps in all, on {'; '.join(places)}. "
           "Mean over the seeds ± standard error.")

  def _table(self, lines):
    columns = [(score, estimates(lines, self.study, task, name))
               for task in self.study.tasks for name, score in task.scores()]
    head = ["model"]
    for score, _ in columns:
      head += [score.title] + [f"paper: {score.paper}"] * bool(score.paper)
    yield tabular.markdown_line(head)
    yield tabular.markdown_line(["---"] * len(head))
    for row in self.study.rows:
      cells = [row.name]
      for score, found in columns:
        cells.append(_cell(found.get(row.name), score))
        if score.paper:
          cells.append(str(row.paper.get(score.title, "-")))
      yield tabular.markdown_line(cells)

  def _orders(self, lines) -> Iterator[str]:
    for task in self.study.tasks:
      for name, score in task.scores():
        found = estimates(lines, self.study, task, name)
        if len(found) > 1:
          yield from self._order(found, score)
          yield from self._differences(lines, task, name, score)
          yield from self._agreement(found, score)
          yield ""

  def _order(self, found, score):
    """What is best, and whether the seeds tell the best rows from the worst."""
    yield f"{score.title}, best first, \"=\" where intervals of 95% overlap:"
    yield f"- ours: {rankings.order(found, score.lower_is_better)}"
    apart = rankings.told_apart(found, score.lower_is_better)
    yield "- told apart, also where rows between them are tied with both: " + (
        "; ".join(f"{row} before {', '.join(worse)}" for row, worse in apart.items())
        or "none")
    thirds = rankings.thirds(found)
    if thirds is not None:
      gap, spread = (f"{value:.{score.digits}f}" for value in thirds)
      yield (f"- between the mean of the best third and that of the worst: {gap}; "
             f"twice the standard error of a row, the greatest: {spread}")

  def _agreement(self, found, score):
    """How the order agrees with the paper's."""
    papers = {row.name: row.paper[score.title] for row in self.study.rows
              if score.title in row.paper and row.name in found}
    if papers:
      yield (f"- paper ({score.paper}): " + " > ".join(
          sorted(papers, key=papers.get, reverse=not score.lower_is_better)))
    correlation = rankings.rank_correlation(
        {name: e.mean for name, e in found.items()}, papers)
    if correlation is not None:
      yield f"- Spearman's rank correlation with the paper: {correlation:.2f}"

  def _differences(self, lines, task, name, score):
    """The line of what each row has more than the first one, seed by seed."""
    first, *others = [by_seed(lines, task, name, row) for row in self.study.rows]
    texts = []
    for row, values in zip(self.study.rows[1:], others):
      common = [values[seed] - first[seed] for seed in values if seed in first]
      if len(common) > 1:
        mean, (low, high) = (found := rankings.estimate(common)).mean, found.interval
        texts.append(f"{row.name} {mean:+.{score.digits}f} "
                     f"[{low:+.{score.digits}f}, {high:+.{score.digits}f}]")
    if texts:
      yield (f"- minus {self.study.rows[0].name}, mean of the same seeds [95%]: "
             f"{'; '.join(texts)}")


def _cell(known, score):
  """An estimate as the table shows it; None where there is none."""
  if known is None:
    return "not run"
  few = "" if known.seeds >= 3 else f" ({known.seeds} of 3 seeds)"
  return f"{known.text(score.digits)}{few}"


def setting(study: study_types.Study, settings: plan.Settings) -> dict[str, Any]:
  """What all lines of a study have in common; 0 steps are the study's own."""
  return {"study": study.name, "scale": "laptop", "steps": settings.steps or 0,
          "finetune_steps": settings.finetune_steps or 0,
          "gin_params": settings.gin_params}


def read(path: pathlib.Path, study: study_types.Study,
         settings: plan.Settings) -> list[Line]:
  """The lines of a file, none where there is no file.

  Raises:
    ValueError: they are not of this study with these settings, or `lines.read`
      finds a mistake.
  """
  if not path.exists():
    return []
  found, expected = lines_lib.read(path), setting(study, settings)
  if found.setting != expected:
    raise ValueError(f"{path} holds runs of {found.setting}, not {expected}; move "
                     "it away, or give the same flags.")
  for line in found.runs:
    _check(path, line, study, settings)
  return found.runs


def _check(path, line, study, settings):
  """Raises a ValueError for a run that the study has no longer, or not so."""
  task = {task.name: task for task in study.tasks}.get(line["task"])
  what = f"{path}: {line['row']} on {line['task']}, seed {line['seed']},"
  if task is None or line["row"] not in {row.name for row in study.rows}:
    raise ValueError(f"{what} is no run of the study {study.name}; remove its line.")
  steps = study_runs.trained_steps(study, task, settings)
  names = [name for name, _ in task.scores()]
  if line.get("training_steps") != steps or set(line["scores"]) != set(names):
    raise ValueError(
        f"{what} has {line.get('training_steps')} steps and the scores "
        f"{list(line['scores'])}, not {steps} and {', '.join(names)}; it is of "
        "another version, so move the file away.")


def estimates(lines: Sequence[Line], study: study_types.Study,
              task: study_types.Task, name: str) -> dict[str, rankings.Estimate]:
  """What is known of each row by the score of a name, by the names of the rows."""
  scores = {row.name: by_seed(lines, task, name, row) for row in study.rows}
  return {row: rankings.estimate(list(values.values()))
          for row, values in scores.items() if values}


def by_seed(lines: Sequence[Line], task: study_types.Task, name: str,
            row: study_types.Row) -> dict[int, float]:
  """The scores of a row on a task, by seed."""
  return {line["seed"]: line["scores"][name]
          for line in _of_task(lines, task) if line["row"] == row.name}


def _of_task(lines, task):
  return [line for line in lines if line["task"] == task.name]


def _key_of(run):
  return run.row.name, run.task, run.seed


def _key(line):
  return line["row"], line["task"], line["seed"]
