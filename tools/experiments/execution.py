"""Executes the runs of a table or a study, and prints the commands of others."""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import os
import pathlib
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tools.experiments import contents
from synthesizer_mtf.tools.experiments import first_check
from synthesizer_mtf.tools.experiments import hparams
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import plan
from synthesizer_mtf.tools.experiments import queue
from synthesizer_mtf.tools.experiments import shares


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


def settings(args: argparse.Namespace, steps: int | None = None,
             flags: Sequence[str] = ()) -> plan.Settings:
  """Returns the user's choices.

  Args:
    args: the flags of `reproduce`.
    steps: the default of the numbers of steps.
    flags: more flags of the launcher, for all commands.
  """
  flags, data_dir = [*flags], args.t5_tfds_data_dir
  if args.scale == "paper":
    flags, data_dir = [*flags, f"--tpu={args.tpu}"], data_dir or f"{args.bucket}/tfds"
  if data_dir:
    flags.append(f"--t5_tfds_data_dir={data_dir}")
  flags += [f"--module_import={module}" for module in args.module_import]
  return plan.Settings(args.steps or steps, args.finetune_steps or steps, args.task,
                       flags, args.gin_param, args.gin_file, args.best_by)


def claim(folder: pathlib.Path, chosen: plan.Settings) -> None:
  """Claims a folder as `pipeline.claim` does."""
  modules = [flag.partition("=")[2] for flag in chosen.flags
             if flag.startswith("--module_import=")]
  pipeline.claim(folder, {
      "steps": chosen.steps, "finetune_steps": chosen.finetune_steps,
      "gin_params": chosen.gin_params, **chosen.chosen},
                 contents.of(chosen.gin_files, chosen.gin_params, modules))


def check_first(runs: Iterable[Any], chosen: plan.Settings) -> None:
  """Checks the models of all runs that are not done, as `first_check` does."""
  first_check.check(
      (stage for run in runs if not run.is_done() for stage in run.stages()),
      chosen.best_by)


def run(report: Any, runs: Sequence[Any], machine_shares: Sequence[shares.Share],
        path: pathlib.Path, json_path: str | None,
        draw: Callable[[pathlib.Path], None]) -> int:
  """Executes runs, and writes the report after each; returns the status.

  Args:
    report: a `reports.Report`, or that of a study.
    runs: the runs to execute.
    machine_shares: a share of the machine for each run that goes on at a time.
    path: the path of the report, without the ending of its files.
    json_path: where to write the lines once more; None for nowhere.
    draw: draws the picture, at a path.
  """
  def finished(of, reason):
    if reason:
      report.failures[of] = reason
    else:
      hparams.write(of, report.settings.gin_params)
    _write(report, path, json_path, draw)

  queue.run(runs, machine_shares, finished)
  written = sorted(map(str, path.parent.glob(f"{path.name}.*")))
  print(f"\n{report.markdown()}\n\nWrote {', '.join(written)}")
  return 1 if report.failures else 0


def _write(report, path, json_path, draw):
  """Writes the report so far; replaces an existing one atomically."""
  for suffix, text in ((".md", report.markdown() + "\n"),
                       (".jsonl", report.lines())):
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path.with_suffix(suffix))
  draw(path.with_suffix(".png"))
  if json_path:
    pathlib.Path(json_path).write_text(report.lines(), encoding="utf-8")


def print_all(title: str, number: int | str,
              commands: Iterable[tuple[str, list[str]]]) -> list[dict[str, Any]]:
  """Prints commands; returns a dict for each.

  Args:
    title: the title of the table.
    number: the name of the table in --table.
    commands: (description, command) of each.
  """
  lines = []
  for of, command in commands:
    # Users type them on another machine, so the folder of this Python is left out.
    typed = pipeline.shown([os.path.basename(command[0]), *command[1:]])
    print(f"# {title}, {of}\n{typed.removeprefix('$ ')}\n")
    lines.append({"table": number, "title": of, "command": command})
  return lines
