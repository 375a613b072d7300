"""Reproduces Tables 2 to 7 of arXiv:2005.00743, at laptop scale or on TPUs.

  python -m synthesizer_mtf.tools.reproduce --table=4 --scale=paper

prints the commands that train and evaluate each row on TPUs.

  SYNTHESIZER_MTF_VOCAB=spm.model python -m synthesizer_mtf.tools.reproduce --table=4 \\
    --scale=laptop --t5_tfds_data_dir=TFDS --seeds=1,2

runs each row at a small size, prints the commands, and writes a report with the
paper's figures beside ours: `TABLE.md`, JSON lines and a picture. If it is started
again, it continues from the last checkpoint. --jobs=4 does four runs at a time.
--task=TASK runs the rows on another task than the table's own.

  python -m synthesizer_mtf.tools.reproduce --table=lra
  python -m synthesizer_mtf.tools.reproduce --table=narang

prints the commands of a table of another paper that has Synthesizers, and the paper's
figures beside our counts.

  python -m synthesizer_mtf.tools.reproduce --compare A.jsonl B.jsonl

says what has changed between two such reports, seed by seed.

  python -m synthesizer_mtf.tools.reproduce --results=studies/results

draws the final scores of the studies whose lines are in this folder. Studies and tables
of other papers are in the folder studies/ of the repository. pip does not install it.
"""

import argparse
from collections.abc import Iterable
import json
import sys
from typing import Any

from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import studies_folder
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.experiments import compare
from synthesizer_mtf.tools.experiments import paper
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import shares
from synthesizer_mtf.tools.experiments import study_report as report_lib
import tqdm

# What studies/ has: its studies, and its tables of other papers. A test there compares.
STUDIES = ("abilities", "ability_heads", "ability_lengths", "blocks", "encoders",
           "finetuning", "growing_tables", "language_modeling", "listops",
           "span_corruption", "tilings", "translation", "warm_start")
OTHER_PAPERS = ("lra", "narang")

# The size of T5's vocabulary, which Mesh TensorFlow rounds up to a multiple of 128.
_VOCABULARY = 32128
# Lengths and batch for the speed at laptop scale, as in the recipes.
_SPEED = {4: ((128, 32), 8), 7: ((64, 1), 32)}


def main(argv: list[str] | None = None) -> int:
  """Reads the flags and prints or runs the commands; returns the status."""
  parser = _parser()
  with arguments.command(parser, argv, stopped=arguments.CONTINUES) as args:
    return _work(_checked(parser, args))


def _work(args):
  """Does what the flags ask for; returns the status."""
  if args.compare:
    compare.compare(args.compare, args.json)
    return 0
  if args.results or args.study or args.table in OTHER_PAPERS:
    return studies_folder.module("run").work(args)
  return _paper(args) if args.scale == "paper" else _table(args)


def _checked(parser, args):
  """Returns the flags, once it is checked that they go together."""
  given = [f"--{name}" for name, value in vars(args).items()
           if value != parser.get_default(name)]
  others = [flag for flag in given if flag not in ("--compare", "--json")]
  if args.compare and others:
    parser.error(f"--compare takes two files and --json, not {' '.join(others)}; "
                 "the files say which table or study it is")
  if args.results and given != ["--results"]:
    parser.error(f"--results takes nothing else, not {' '.join(given)}")
  if args.best_by and not args.study and (
      args.table not in tables.TABLES or args.scale == "paper"):
    parser.error("--best_by is for a table of the paper at laptop scale, or a study; "
                 "leave it out")
  if args.study and args.table:
    parser.error("--table and --study exclude each other; give one of them")
  if args.table in OTHER_PAPERS:
    _check_published(parser, args, given)
    return argparse.Namespace(**{**vars(args), "scale": "paper"})
  if args.table and not args.scale:
    parser.error("--table needs --scale")
  if not (args.table or args.study or args.compare or args.results):
    parser.error("one of --table, --study, --compare and --results is required")
  return args


def _check_published(parser, args, given):
  """Reports the flags that do not go with a table of another paper."""
  wanted = ("--table", "--scale", "--rows", "--gin_param", "--gin_file", "--json",
            "--tpu", "--bucket", "--t5_tfds_data_dir", "--module_import")
  others = [flag for flag in given if flag not in wanted]
  if args.scale == "laptop" or others:
    parser.error(f"--table={args.table} prints the commands of its paper's scale, and "
                 f"counts; leave out {' '.join(others) or '--scale=laptop'}")


def _paper(args):
  """Prints the commands of the paper's scale, and writes them as JSON lines."""
  table = tables.TABLES[args.table]
  title = f"Table {table.number}"
  lines = pipeline.print_all(title, table.number, paper.commands(
      table, report_lib.chosen_rows(table.rows, args.rows, title),
      f"{args.bucket}/reproduce", settings_lib.read(args)))
  tabular.write_json(lines, args.json)
  return 0


def _table(args):
  """Executes the missing runs of a table at laptop scale; returns the status."""
  table = tables.TABLES[args.table]
  rows = report_lib.chosen_rows(table.rows, args.rows, f"Table {table.number}")
  settings = settings_lib.read(args, paper.STEPS)
  machine_shares = shares.shares(args.jobs)
  folder = paper.folder(table, args.output_dir)
  runs = paper.runs(table, rows, args.seeds or [1, 2], args.output_dir, settings)
  report_lib.check_first(runs, settings)
  settings.claim(folder)
  report = report_lib.Report(
      paper.study(table, rows, settings), [], runs, settings, machine.state())
  if table.speed and args.speed_rounds:
    report.speed = _speed(table, rows, args, settings, folder)
  return report.execute(runs, machine_shares, folder / f"table{table.number}",
                        args.json, lambda path: pictures.draw_table(report, path))


def _speed(table, rows, args, settings, folder):
  """Returns the rows' speed and size, which are measured once and stored."""
  path = folder / "speed.json"
  if path.exists():
    known = json.loads(path.read_text(encoding="utf-8"))
    if set(known) == {row.name for row in rows}:
      return known
  lengths, batch = _SPEED[table.number]
  with tqdm.tqdm(desc="speed", total=len(rows) * (2 + args.speed_rounds),
                 unit="run") as bar:
    speed = measure_speed(table, rows, settings, lengths, batch, args.speed_rounds,
                          lambda done, what: bar.update(done))
  path.write_text(json.dumps(speed) + "\n", encoding="utf-8")
  return speed


def measure_speed(table: tables.Table, rows: Iterable[tables.Row],
                  settings: settings_lib.Settings, lengths: tuple[int, int],
                  batch: int, rounds: int, progress: measuring.Progress,
                  vocabulary: int = _VOCABULARY) -> dict[str, dict[str, Any]]:
  """Times training steps of all rows in turns, as `benchmark` does, on random tokens.

  All rows are in one process. So other work on the machine slows all rows alike.

  Args:
    rows: some of its rows.
    settings: the user's gin bindings, and the task.
    lengths: (tokens of the inputs, tokens of the targets).
    batch: the number of examples in a step.
    rounds: the number of rounds that count, after two rounds of warm-up.
    progress: a function (number of runs done, name of the current run).
    vocabulary: the size of the vocabulary.

  Returns:
    a dict from names of rows to dicts with "status" and "reason". If the status is
    "ok", they also have "steps_per_second", "ratio" and "ratio_quartiles" to the first
    row, "parameters", and "tflops", which counts only einsums.
  """
  config = model.Configuration(
      inputs=lengths[0], targets=lengths[1], batch=batch,
      vocabulary=vocabulary, dropout_rate=0.0, relative_bias=True,
      targets_vocabulary=128 if lengths[1] == 1 else None)
  timed = measuring.measure_time(
      [_timed_row(table, row, settings) for row in rows], config, "train", 2, rounds,
      progress)
  first = timed[0].get("seconds")
  return {result["row"]: _speed_and_size(result, first) for result in timed}


def _timed_row(table, row, settings):
  """Returns a row of the benchmark with the gin bindings of a row at laptop scale."""
  task = table.trained(settings.task)[0]
  commands = paper.Commands(table, row, task, "laptop", settings)
  bindings = [f"include '{path}'" for path in commands.files(task)]
  bindings += [flag.split("=", 1)[1]
               for flag in pipeline.flags([], commands.params(task))]
  bindings += settings.gin_params
  return attentions.Row(
      row.name, "ours", lambda stack, length: bindings * (stack == "encoder"))


def _speed_and_size(result, first):
  summary = {key: result.get(key) for key in (
      "status", "reason", "steps_per_second", "parameters")}
  if result["status"] == "ok":
    summary["tflops"] = result["einsum_tflops"]
    if first:
      compared = measuring.compare(result["seconds"], first)
      summary |= {key: compared[key] for key in ("ratio", "ratio_quartiles")}
  return summary


def _parser():
  parser = arguments.parser("reproduce", __doc__)
  parser.add_argument(
      "--table", type=lambda text: int(text) if text.isdigit() else text,
      choices=[*sorted(tables.TABLES), *OTHER_PAPERS],
      help="a table of arXiv:2005.00743, of Long Range Arena or of Narang et al. 2021")
  parser.add_argument("--study", choices=STUDIES)
  parser.add_argument("--scale", choices=("paper", "laptop"),
                      help="the scale of a table")
  parser.add_argument("--compare", nargs=2, metavar=("A.jsonl", "B.jsonl"),
                      help="compare two reports, instead of a table or a study")
  parser.add_argument("--results", metavar="DIR",
                      help="draw the studies of this folder, instead")
  parser.add_argument("--rows", type=lambda text: text.split(","),
                      metavar="A,B,...", help="some rows; all by default")
  parser.add_argument("--task", metavar="TASK",
                      help="train and evaluate on this task instead of the table's; "
                      "with --study, only on this task of the study")
  parser.add_argument("--t5_tfds_data_dir", metavar="DIR",
                      help="the folder of the prepared data sets")
  parser.add_argument("--gin_param", action="append", default=[],
                      metavar="BINDING", help="add to all commands; repeat it")
  parser.add_argument("--gin_file", action="append", default=[], metavar="FILE",
                      help="add to all commands, after their files; repeat it")
  arguments.add_modules(parser)
  parser.add_argument("--json", metavar="FILE", help="write JSON lines there")
  _add_laptop_flags(parser.add_argument_group("laptop scale, and studies"))
  group = parser.add_argument_group("paper scale")
  group.add_argument("--tpu", default="NAME", help="default: %(default)s")
  group.add_argument("--bucket", default="gs://BUCKET",
                     help="the bucket of data and models (default: %(default)s)")
  return parser


def _add_laptop_flags(group):
  settings_lib.add_flags(group, "1,2; of a study 1,2,3")
  group.add_argument("--output_dir", default="reproduce_output", metavar="DIR",
                     help="the folder of all files (default: %(default)s)")
  for name, text in (
      ("steps", "steps of training, or of pre-training"),
      ("finetune_steps", "steps after pre-training, if there is one")):
    group.add_argument(f"--{name}", type=arguments.positive, metavar="N",
                       help=f"{text} (default: {paper.STEPS}; of a study its own)")
  group.add_argument("--speed_rounds", type=arguments.not_negative, default=20,
                     metavar="N", help="training steps timed for each row; 0 for none "
                     "(default: %(default)s)")


if __name__ == "__main__":
  sys.exit(main())
