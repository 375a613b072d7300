r"""Kills training at random moments and checks that it goes on rightly.

  python tools/crash_test.py --kills 20 --seed 0 --json kills.jsonl

It trains a tiny R+V model on Python's manual, kills it with SIGKILL, aiming at
a step or at the moment when a checkpoint is written, and starts it again. Each
restart must go on from the newest checkpoint that was complete when the kill
struck, which is found by reading all of them to the last byte, and all losses
must be finite. After the last kill training runs to its end. Exit status 1 if
not.
"""

import argparse
from collections.abc import Iterator
import math
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools.crash_testing import trainer
import tqdm

_COLUMNS = ("kill", "aim", "struck", "last_step", "newest", "resumed", "loss")


class CrashTestError(Exception):
  """Training did not survive a kill; the message says which, and how."""


def run(kills: int, seed: int,
        folder: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Kills and restarts training.

  Args:
    kills: how many times.
    seed: of the moments, an integer.
    folder: a `pathlib.Path` for data, model and logs, which has no model yet.

  Yields:
    a dict for each kill: its number, what was aimed at and what was struck, the
    last step done, the newest complete checkpoint, the one that the restart
    resumed from, and the first loss after that.

  Raises:
    CrashTestError: a restart went wrong.
  """
  moments = random.Random(seed)
  bindings = trainer.write_data(folder / "data")
  model_dir, newest, row = folder / "model", 0, None
  for kill in range(kills + 1):
    last = kill == kills
    training = trainer.Training(
        model_dir, folder / f"{kill}.log", {
            **bindings, "utils.run.save_checkpoints_steps": 5,
            "utils.run.train_steps": newest + (10 if last else 10_000)})
    aim = None if last else moments.choice(("step", "save", "first save"))
    _strike(training, aim, moments)
    if row:
      yield _checked(row, training)
    row = {"kill": kill + 1, "aim": aim,
           "struck": trainer.where_killed(model_dir),
           "last_step": max(training.steps(), default=None),
           "newest": max(trainer.complete(model_dir), default=None)}
    newest = row["newest"] or 0


def _strike(training, aim, moments):
  """Kills a process at a random moment; without aim waits for its end."""
  if aim is None:
    if training.wait_for_end() != 0:
      raise _failure("the last restart did not end well", training)
    return
  # On a restart the first save comes before the first step.
  started = aim == "first save" or training.wait_for_step()
  if aim != "step":
    started = started and training.wait_for_save()
  time.sleep(moments.uniform(0, 2 if aim == "step" else 0.15))
  training.kill()
  if not started:
    raise _failure("training ended or stood still before a kill", training)


def _checked(row, training):
  """Completes the row of a kill by what the restart after it did."""
  losses = training.steps()
  row = {**row, "resumed": training.restored(),
         "loss": losses[min(losses)] if losses else None}
  if row["resumed"] != row["newest"]:
    raise _failure(f"kill {row['kill']}: the newest complete checkpoint was "
                   f"{row['newest']}, but training resumed from "
                   f"{row['resumed']}", training)
  if not all(map(math.isfinite, losses.values())):
    raise _failure(f"kill {row['kill']}: a loss is not finite", training)
  # The trainer prints the step while the step may already be adding 1 to it.
  if losses and min(losses) - (row["newest"] or 0) not in (0, 1):
    raise _failure(f"kill {row['kill']}: the first step was {min(losses)}",
                   training)
  return row


def _failure(message, training):
  tail = training.log.read_text(errors="replace").splitlines()[-5:]
  return CrashTestError("\n".join([f"{message}. The end of {training.log}:",
                                   *tail]))


def table(rows: list[dict[str, Any]]) -> str:
  """Returns the rows as lines of text."""
  lines = [_COLUMNS] + [[str(row[name]) for name in _COLUMNS] for row in rows]
  return "\n".join(map(str.rstrip, tabular.plain(lines)))


def summary(rows: list[dict[str, Any]]) -> str:
  """Returns a sentence."""
  saves = sum(row["struck"] != "step" for row in rows)
  return (f"{len(rows)} kills survived: {saves} struck while a checkpoint was "
          f"being written, {len(rows) - saves} during a step or a start. Each "
          "restart went on from the newest complete checkpoint, and all losses "
          "were finite.")


def main(argv: list[str] | None = None) -> None:
  """Parses flags, runs, and prints a table."""
  args = _parser().parse_args(argv)
  folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="crash_test_"))
  if (folder / "model").exists():
    sys.exit(f"crash_test: --folder is {args.folder!r}, which has a model "
             "already; name a new folder.")
  rows = []
  # Ends the training with it.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  try:
    for row in tqdm.tqdm(run(args.kills, args.seed, folder), "Kills",
                         args.kills, file=sys.stderr):
      rows.append(row)
      if args.json:
        tabular.write_json(rows, args.json)
  except CrashTestError as error:
    sys.exit(f"{table(rows)}\ncrash_test: {error}\nAll is left in {folder}.")
  print(table(rows))
  print(summary(rows))
  if not args.folder:
    shutil.rmtree(folder)


def _parser():
  parser = argparse.ArgumentParser(
      prog="crash_test", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--kills", type=arguments.positive, default=20, metavar="N",
      help="how many times (default: %(default)s)")
  add("--seed", type=int, default=0, metavar="N",
      help="of the random moments (default: %(default)s)")
  add("--folder", metavar="FOLDER",
      help="keep data, model and logs here (default: a temporary folder)")
  add("--json", metavar="FILE", help="write JSON lines, one for each kill")
  return parser


if __name__ == "__main__":
  main()
