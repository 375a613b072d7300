"""Reproduces Tables 2 to 7 of arXiv:2005.00743, small here or large elsewhere.

  python tools/reproduce.py --table=4 --scale=paper

prints the commands that train and evaluate each row on TPUs.

  SYNTHESIZER_MTF_VOCAB=spm.model python tools/reproduce.py --table=4 \\
    --scale=laptop --t5_tfds_data_dir=TFDS --seeds=1,2

runs each row at a small size, prints the commands, and writes a report with the
paper's figures beside ours: `TABLE.md`, JSON lines and a picture. Stopped and
started again, it goes on from the last checkpoint. --jobs=4 does four runs at a
time. --task=TASK runs the rows on another task than the table's own.

  python tools/reproduce.py --compare A.jsonl B.jsonl

says what has changed between two such reports, seed by seed.
"""

import argparse
import json
import pathlib
import sys

from synthesizer_mtf.runs import commands
from synthesizer_mtf.runs import machine
from synthesizer_mtf.runs import queue
from synthesizer_mtf.runs import shares
from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools import benchmark
from synthesizer_mtf.tools.reproduction import compare
from synthesizer_mtf.tools.reproduction import hparams
from synthesizer_mtf.tools.reproduction import plan
from synthesizer_mtf.tools.reproduction import plot
from synthesizer_mtf.tools.reproduction import reports
from synthesizer_mtf.tools.reproduction import speeds
from synthesizer_mtf.tools.reproduction import tables
import tensorflow.compat.v1 as tf

# Lengths and batch of the speed at laptop scale: those of the recipes.
_SPEED = {4: ((128, 32), 8), 7: ((64, 1), 32)}


def main(argv: list[str] | None = None) -> int:
  """Reads the flags and prints or runs the commands; returns the status."""
  args = _parse(argv)
  tf.logging.set_verbosity(tf.logging.ERROR)
  if args.compare:
    return _compare(args)
  table = tables.TABLES[args.table]
  try:
    rows = _rows(table, args.rows)
    settings = plan.Settings(
        args.steps, args.finetune_steps, args.task, _flags(args),
        args.gin_param)
    if args.scale == "laptop":
      places = shares.shares(args.jobs)
      _check_folder(table, args, settings)
  except ValueError as error:
    sys.exit(f"reproduce: {error}")
  if args.scale == "paper":
    _print_commands(table, rows, args, settings)
    return 0
  try:
    return _run(table, rows, args, settings, places)
  except KeyboardInterrupt:
    print("\nStopped. The same command goes on from the last checkpoint.",
          file=sys.stderr)
    return 130


def _parse(argv):
  """Reads the flags; what needs a table and a scale is told so."""
  parser = _parser()
  args = parser.parse_args(argv)
  given = [f"--{name}" for name, value in vars(args).items()
           if value != parser.get_default(name)]
  missing = [flag for flag in ("--table", "--scale") if flag not in given]
  others = [flag for flag in given if flag not in ("--compare", "--json")]
  if args.compare and others:
    parser.error(f"--compare takes two files and --json, not {' '.join(others)}; "
                 "the files say themselves what they are of")
  if missing and not args.compare:
    parser.error(f"the following arguments are required: {', '.join(missing)}")
  return args


def _compare(args):
  try:
    compare.compare(args.compare, args.json)
  except ValueError as error:
    sys.exit(f"reproduce: {error}")
  return 0


def _rows(table, names):
  known = {row.name: row for row in table.rows}
  for name in names or ():
    if name not in known:
      raise ValueError(f"--rows names {name!r}, but the rows of Table "
                       f"{table.number} are {', '.join(known)}; use these.")
  return [known[name] for name in names or known]


def _flags(args):
  """The launcher's flags that all commands have."""
  tpu = [f"--tpu={args.tpu}"] if args.scale == "paper" else []
  data_dir = args.t5_tfds_data_dir or (
      f"{args.bucket}/tfds" if args.scale == "paper" else None)
  return tpu + ([f"--t5_tfds_data_dir={data_dir}"] if data_dir else [])


def _print_commands(table, rows, args, settings):
  """Prints the commands of the paper's scale, and writes them as JSON lines."""
  lines = []
  for title, command in plan.paper_commands(
      table, rows, f"{args.bucket}/reproduce", settings):
    print(f"# Table {table.number}, {title}\n"
          f"{plan.shown(command)[2:]}\n")
    lines.append({"table": table.number, "title": title, "command": command})
  if args.json:
    tabular.write_json(lines, args.json)


def _check_folder(table, args, settings):
  """Raises a ValueError if the folder holds a run with other settings."""
  folder = plan.folder_of(table, args.output_dir)
  commands.check_settings(folder, {
      "steps": settings.steps, "finetune_steps": settings.finetune_steps,
      "gin_params": settings.gin_params})


def _run(table, rows, args, settings, places):
  """Runs what is not done of a table at laptop scale; returns the status."""
  folder = plan.folder_of(table, args.output_dir)
  runs = plan.runs(
      table, rows, args.seeds, args.output_dir, settings)
  report = reports.Report(
      table, rows, runs, settings, machine.state())
  if table.speed and args.speed_rounds:
    report.speed = _speed(table, rows, args, settings, folder)

  def finished(run, reason):
    if reason:
      report.failures[run] = reason
    else:
      hparams.write(run, settings.gin_params)
    _write(report, folder / f"table{table.number}", args.json)

  queue.run(runs, places, finished)
  written = sorted(map(str, folder.glob(f"table{table.number}.*")))
  print(f"\n{report.markdown()}\n\nWrote {', '.join(written)}")
  return 1 if report.failures else 0


def _write(report, path, json_path):
  """Writes the report so far; what is there is replaced at once or not at all."""
  for suffix, text in ((".md", report.markdown() + "\n"),
                       (".jsonl", report.lines())):
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path.with_suffix(suffix))
  plot.plot(report, path.with_suffix(".png"))
  if json_path:
    pathlib.Path(json_path).write_text(report.lines(), encoding="utf-8")


def _speed(table, rows, args, settings, folder):
  """The rows' speed and size, measured once and remembered."""
  path = folder / "speed.json"
  if path.exists():
    known = json.loads(path.read_text(encoding="utf-8"))
    if set(known) == {row.name for row in rows}:
      return known
  lengths, batch = _SPEED[table.number]
  with benchmark.Progress("speed", len(rows) * (2 + args.speed_rounds)) as p:
    speed = speeds.measure(
        table, rows, settings, lengths, batch, args.speed_rounds, p)
  path.write_text(json.dumps(speed) + "\n", encoding="utf-8")
  return speed


def _parser():
  parser = argparse.ArgumentParser(
      prog="reproduce", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--table", type=int, choices=sorted(tables.TABLES))
  parser.add_argument("--scale", choices=("paper", "laptop"))
  parser.add_argument("--compare", nargs=2, metavar=("A.jsonl", "B.jsonl"),
                      help="two reports, instead of a table and a scale")
  parser.add_argument("--rows", type=lambda text: text.split(","),
                      metavar="A,B,...", help="some rows; all by default")
  parser.add_argument("--task", metavar="TASK",
                      help="train and evaluate on this one")
  parser.add_argument("--t5_tfds_data_dir", metavar="DIR",
                      help="where the data sets lie, prepared")
  parser.add_argument("--gin_param", action="append", default=[],
                      metavar="BINDING", help="for all commands; many are fine")
  parser.add_argument("--json", metavar="FILE", help="write JSON lines there")
  _add_laptop_flags(parser.add_argument_group("laptop scale"))
  group = parser.add_argument_group("paper scale")
  group.add_argument("--tpu", default="NAME", help="default: %(default)s")
  group.add_argument("--bucket", default="gs://BUCKET",
                     help="of data and models (default: %(default)s)")
  return parser


def _add_laptop_flags(group):
  group.add_argument("--seeds", default=[1, 2], metavar="N,N,...",
                     type=lambda text: [int(seed) for seed in text.split(",")],
                     help="of variables and data (default: 1,2)")
  group.add_argument("--output_dir", default="reproduce_output", metavar="DIR",
                     help="where all files go (default: %(default)s)")
  for name, kind, number, text in (
      ("jobs", arguments.positive, 1, "runs at a time, with their share of the "
       "cores and GPUs"),
      ("steps", arguments.positive, 1000, "of training, or of pre-training"),
      ("finetune_steps", arguments.positive, 1000,
       "after pre-training, where there is one"),
      ("speed_rounds", arguments.not_negative, 20,
       "training steps timed for each row; 0 for none")):
    group.add_argument(f"--{name}", type=kind, default=number, metavar="N",
                       help=f"{text} (default: %(default)s)")


if __name__ == "__main__":
  sys.exit(main())
