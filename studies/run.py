"""Runs and draws studies, and prints the tables of other papers.

  python -m studies.run --study=NAME --gin_file=DATA/data.gin
  python -m studies.run --results=studies/results
  python -m studies.run --table=lra

The flags are those of `python -m synthesizer_mtf.tools.reproduce`, which hands these
three over to this module. After `make install` in a clone, or `pip install -e`, both
commands work from any folder.
"""

import argparse
from collections.abc import Callable
import pathlib
import sys

from studies import catalogue
from studies import finished
from studies import heat_map
from studies import published
from studies import size_curves
from synthesizer_mtf import checks
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import shares
from synthesizer_mtf.tools.experiments import study_report as report_lib
from synthesizer_mtf.tools.experiments import study_types
import tqdm

# Lets the commands of runs find the tasks and gin files of this folder.
_FLAGS = ("--module_import=studies",)


def main(argv: list[str] | None = None) -> int:
  """Does what `reproduce` does with these flags; returns the status."""
  return reproduce.main(argv)


def work(args: argparse.Namespace) -> int:
  """Does what the flags of `reproduce` ask for; returns the status."""
  if args.results:
    return _results(pathlib.Path(args.results))
  return _study(args) if args.study else _published(args)


def _results(folder):
  """Draws the studies of a folder; returns the status."""
  known = [(study, finished.read(path, study, settings_lib.Settings()))
           for study in catalogue.STUDIES.values()
           if (path := folder / f"{study.name}.jsonl").exists()]
  together = [(study, lines) for study, lines in known
              if picture(study) is pictures.draw_study]
  if not together:
    raise checks.Error(f"--results is {str(folder)!r} but holds no lines of a study; "
                       "give the folder of files such as warm_start.jsonl.")
  draw_together(together, folder / "results.png")
  print(f"Wrote {folder / 'results.png'}")
  for study, lines in known:
    draw(study, lines, folder / f"{study.name}.png")
    print(f"Wrote {folder / study.name}.png")
  return 0


def picture(study: study_types.Study) -> Callable[..., None]:
  """Returns the function that draws a study."""
  if all(task.chance is not None for task in study.tasks):
    return heat_map.plot
  by_size = all(score.at is not None
                for task in study.tasks for _, score in task.scores())
  return size_curves.plot if by_size else pictures.draw_study


def draw_together(known: list[tuple[study_types.Study, list[report_lib.Line]]],
                  path: pathlib.Path) -> None:
  """Draws the final scores of all tasks of some studies, each with its lines."""
  panels = [(study, task, lines) for study, lines in known for task in study.tasks]
  with pictures.written(path, len(panels), 2, 3) as (_, axes):
    for axis, (study, task, lines) in zip(axes, panels):
      pictures.draw_scores(axis, study, task, lines)
      axis.set_title(f"{study.title}\n{axis.get_title()}", fontsize="small")


def draw(study: study_types.Study, lines: list[report_lib.Line],
         path: pathlib.Path) -> None:
  """Draws a study, if it has lines."""
  if lines:
    picture(study)(study, lines, path)


def _published(args):
  """Prints another paper's table: its commands, its figures and our counts."""
  table = published.TABLES[args.table]
  rows = report_lib.chosen_rows(table.rows, args.rows, f"--table={args.table}")
  lines = pipeline.print_all(table.title, args.table, table.commands(
      rows, f"{args.bucket}/reproduce", settings_lib.read(args, flags=_FLAGS)))
  counts = list(tqdm.tqdm(
      table.lines(rows), "count", len(rows), unit="model", disable=None))
  print(f"{table.title}:\n\n{published.markdown(args.table, counts)}")
  tabular.write_json([*lines, *counts], args.json)
  return 0


def _study(args):
  """Executes the missing runs of a study; returns the status."""
  study = catalogue.STUDIES[args.study]
  rows = report_lib.chosen_rows(study.rows, args.rows, f"--study={study.name}")
  _check(study, args)
  settings = settings_lib.read(args, flags=_FLAGS)
  machine_shares = shares.shares(args.jobs)
  folder = pathlib.Path(args.output_dir) / study.name
  known = finished.read(folder / f"{study.name}.jsonl", study, settings)
  runs = runs_lib.runs(
      study, rows, args.seeds or [1, 2, 3], args.output_dir, settings)
  report = report_lib.Report(study, known, runs, settings, machine.state())
  missing = [run for run in runs if not report.is_known(run)]
  report_lib.check_first(missing, settings)
  settings.claim(folder)
  return report.execute(missing, machine_shares, folder / study.name, args.json,
                        lambda path: draw(study, report.lines_of_runs(), path))


def _check(study, args):
  """Raises a ValueError for flags that do not go with a study."""
  if args.scale:
    raise checks.Error(f"--scale is {args.scale!r}, but a study has only one; leave it "
                       "out.")
  tasks = [task.name for task in study.tasks]
  if args.task not in (None, *tasks):
    raise checks.Error(
        f"--task is {args.task!r}, but the tasks of --study={study.name} "
        f"are {', '.join(tasks)}; use one of these.")
  if study.needs_data and not args.gin_file:
    raise checks.Error("--study needs --gin_file=data.gin, which names its texts; "
                       "python -m studies.prepare makes it.")


if __name__ == "__main__":
  sys.exit(main())
