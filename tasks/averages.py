r"""Columns and averages of the paper's Tables 5 and 6, from T5's `eval` mode.

  python -m synthesizer_mtf.tasks.averages MODEL_DIR/validation_eval

prints a row for each evaluated checkpoint and table. `--json FILE` writes the
same rows as JSON lines.

A column is one task. If it has two scores, such as 88.7/92.0, the average over the
columns counts their mean. The paper computes the averages in the first columns of its
tables in this way. Its other columns give these averages, except in DyConv's row.
"""

import argparse
import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import sys
from typing import Any

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf

# From a column to its scores, with the names that `eval` writes after "eval/synth_".
GLUE = {
    "CoLA": ("glue_cola/matthews_corrcoef",),
    "SST": ("glue_sst2/accuracy",),
    "MRPC": ("glue_mrpc/f1", "glue_mrpc/accuracy"),
    "STSB": ("glue_stsb/pearson_corrcoef", "glue_stsb/spearman_corrcoef"),
    "QQP": ("glue_qqp/f1", "glue_qqp/accuracy"),
    "MNLI": ("glue_mnli_matched/accuracy", "glue_mnli_mismatched/accuracy"),
    "QNLI": ("glue_qnli/accuracy",),
    "RTE": ("glue_rte/accuracy",),
}
SUPER_GLUE = {
    "BoolQ": ("super_glue_boolq/accuracy",),
    "CB": ("super_glue_cb/mean_3class_f1", "super_glue_cb/accuracy"),
    "CoPA": ("super_glue_copa/accuracy",),
    "MultiRC": ("super_glue_multirc/f1", "super_glue_multirc/exact_match"),
    "ReCoRD": ("super_glue_record/f1", "super_glue_record/em"),
    "RTE": ("super_glue_rte/accuracy",),
    "WiC": ("super_glue_wic/accuracy",),
    "WSC": ("super_glue_wsc/accuracy",),
}
TABLES = {"Glue": GLUE, "SGlue": SUPER_GLUE}
_PREFIX = "eval/synth_"


def columns(
    scores: Mapping[str, float], table: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[float, ...]]:
  """Returns the columns of a table.

  Args:
    scores: a dict from names as in `table`, or with "eval/synth_" before them,
      to numbers from 0 to 100.
    table: GLUE or SUPER_GLUE.

  Returns:
    a dict from columns to tuples of scores. A column with a missing score is
    left out.
  """
  scores = {name.removeprefix(_PREFIX): value for name, value in scores.items()}
  return {column: tuple(scores[name] for name in names)
          for column, names in table.items()
          if all(name in scores for name in names)}


def average(cells: Mapping[str, tuple[float, ...]]) -> float:
  """Returns the mean over columns of the mean of each column's scores.

  Args:
    cells: a dict from columns to tuples of scores.
  """
  return float(np.mean([np.mean(scores) for scores in cells.values()]))


def read_scores(folder: str) -> dict[int, dict[str, float]]:
  """Returns a dict from steps to dicts from names to scores.

  Args:
    folder: where T5's `eval` mode has written its event files. If a step was
      evaluated several times, the last evaluation counts.

  Raises:
    ValueError: there is no score of a GLUE or SuperGLUE task.
  """
  names = {name for table in TABLES.values() for names_of_column in table.values()
           for name in names_of_column}
  scores = collections.defaultdict(dict)
  for path in sorted(tf.io.gfile.glob(os.path.join(folder, "events*"))):
    for event in _events(path):
      for value in event.summary.value:
        if value.tag.removeprefix(_PREFIX) in names:
          scores[event.step][value.tag] = value.simple_value
  if not scores:
    raise checks.Error(
        f"{folder!r} has no event file with scores of synth_glue_* or "
        "synth_super_glue_* tasks; name the folder that a run with eval.gin "
        "has written, as MODEL_DIR/validation_eval.")
  return dict(scores)


def _events(path):
  """Yields the events of a file; stops where the file is damaged."""
  count = 0
  try:
    for event in tf.train.summary_iterator(path):
      count += 1
      yield event
  except tf.errors.DataLossError as error:
    print(f"averages: {path!r} is damaged after {count} events ({error.message}), as "
          "by a run that was killed; what follows in it is left out.",
          file=sys.stderr)


def rows(
    scores: Mapping[int, Mapping[str, float]],
) -> Iterator[dict[str, Any]]:
  """Yields a dict for each step and table that has any column.

  Args:
    scores: a dict as `read_scores` returns it.
  """
  for step, values in sorted(scores.items()):
    for name, table in TABLES.items():
      cells = columns(values, table)
      if cells:
        complete = len(cells) == len(table)
        yield {"step": step, "table": name, "columns": cells,
               "average": average(cells) if complete else None}


def text(row: Mapping[str, Any]) -> str:
  """Returns a row as the paper prints it, with the average if no column is missing."""
  cells = ["-" if row["average"] is None else f"{row['average']:.1f}"]
  head = [row["table"]]
  for column, scores in row["columns"].items():
    head.append(column)
    cells.append("/".join(f"{score:.1f}" for score in scores))
  widths = [max(map(len, pair)) for pair in zip(head, cells)]
  def line(words):
    return "  ".join(w.rjust(n) for w, n in zip(words, widths))
  return f"step {row['step']}\n{line(head)}\n{line(cells)}\n"


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags, prints the rows and writes them."""
  parser = argparse.ArgumentParser(
      prog="averages", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", help="MODEL_DIR/validation_eval")
  parser.add_argument("--json", metavar="FILE", help="write JSON lines")
  args = parser.parse_args(argv)
  with messages.ending("averages"):
    averages = list(rows(read_scores(args.folder)))
  for row in averages:
    print(text(row))
  if args.json:
    with open(args.json, "w", encoding="utf-8") as f:
      f.writelines(json.dumps(row) + "\n" for row in averages)


if __name__ == "__main__":
  main()
