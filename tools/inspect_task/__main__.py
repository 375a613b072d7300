r"""Shows what a task feeds a model: text and ids, lengths, cuts, rates, packed rows.

  SYNTHESIZER_MTF_VOCAB=spm.model python -m synthesizer_mtf.tools.inspect_task \
    synth_glue --split=validation --number=5 --lengths=inputs=128,targets=16 \
    --t5_tfds_data_dir=TFDS --plot=lengths.png

It reads any task or mixture that is registered with seqio: those of T5, of this package
and of --module_import. It reads in the order of the data set, without shuffling. Gin
files and bindings count as in training, also lengths in `utils.run.sequence_length`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import seqio
import synthesizer_mtf  # noqa: F401 (registers its tasks)
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.inspect_task import length_plot
from synthesizer_mtf.tools.inspect_task import task_reading
from t5.data import mixtures  # noqa: F401 (registers T5's tasks)

_SHOWN_IDS = 24  # Ids on a line of about 88 characters.


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags, and prints and writes the findings."""
  with arguments.command(_parser(), argv) as args, checks.calling(
      {"utils.run.sequence_length": "--lengths"}):
    if args.t5_tfds_data_dir:
      seqio.set_tfds_data_dir_override(args.t5_tfds_data_dir)
    arguments.check_folders(args.plot, args.json)
    arguments.check_picture(args.plot)
    gin_files.parse(args.gin_file, args.gin_param)
    lengths = args.lengths or gin_files.bound("utils.run.sequence_length", None)
    findings = task_reading.read(
        args.name, args.split, lengths, args.number, args.examples)
    features = task_reading.find(args.name).output_features
    print("\n".join(text(findings, features)))
    if args.plot:
      length_plot.plot(findings, args.plot)
      print(f"\nThe lengths are in {args.plot}")
    tabular.write_json(rows(findings), args.json)


def text(findings: task_reading.Findings,
         features: dict[str, seqio.Feature]) -> list[str]:
  """Returns the findings as lines of text.

  Args:
    findings: what `task_reading.read` returns.
    features: the features of the task, with their vocabularies.
  """
  lines = []
  for number, row in enumerate(findings.examples, 1):
    lines += [f"\nexample {number}"]
    for key in findings.tokens:
      lines += _shown(key, row[key], features[key], row.get(f"{key}_pretokenized"))
  for number, row in enumerate(findings.packed, 1):
    lines += [f"\npacked row {number}"]
    for key in findings.tokens:
      for index, ids in enumerate(task_reading.segments(row, key), 1):
        lines += _shown(f"{key} of example {index}", ids, features[key])
  unknown = findings.unknown.sentence(findings.name)
  return [*lines, "", *_table(findings), *([unknown] if unknown else []), "",
          *_rates(findings)]


def _shown(title, ids, feature, pretokenized=None):
  """Returns lines with a text, its ids and the text that the ids decode to."""
  lines = [f"  {title}, {len(ids)} tokens"]
  if isinstance(pretokenized, bytes):
    lines.append(f"    text     {pretokenized.decode(errors='replace')!r}")
  if np.ndim(ids) != 1 or not np.issubdtype(np.asarray(ids).dtype, np.integer):
    return [*lines, f"    values   {ids!r}"]
  more = f" ... ({len(ids) - _SHOWN_IDS} more)" if len(ids) > _SHOWN_IDS else ""
  decoded = feature.vocabulary.decode([int(i) for i in ids])
  return [*lines, f"    ids      {' '.join(map(str, ids[:_SHOWN_IDS]))}{more}",
          f"    decoded  {decoded!r}"]


def rows(findings: task_reading.Findings) -> list[dict[str, Any]]:
  """Returns the counts: a dict for each feature, and one for each rate."""
  lines = []
  for key, sizes in findings.tokens.items():
    lines.append({
        "kind": "feature", "name": findings.name, "split": findings.split,
        "feature": key, "examples": len(sizes), "whole_split": findings.whole,
        "limit": findings.lengths[key], "mean": float(np.mean(sizes)),
        "median": float(np.median(sizes)), "longest": int(sizes.max()),
        "longest_uncut": findings.longest_uncut(key), "cut": findings.cut(key),
        "filled_when_packed": findings.fill[key], "examples_per_row": findings.per_row,
        "seconds_to_first_example": findings.first_seconds})
  lines += [{"kind": "member", "task": task, "feature": key,
             "examples": len(member.sizes[key]),
             "longest": int(member.sizes[key].max()),
             "cut": member.cut(key, findings.lengths[key])}
            for task, member in findings.members.items() for key in findings.tokens
            if len(findings.members) > 1]
  if findings.unknown.pieces:
    lines.append({"kind": "unknown", **findings.unknown._asdict()})
  return lines + [{"kind": "rate", "task": task, "rate": rate, "share": share}
                  for task, rate, share in findings.shares]


def _table(findings):
  """Returns lines with the lengths of each feature."""
  cells = [["feature", "examples", "limit", "mean", "median", "longest", "uncut",
            "cut", "filled when packed"]]
  for row in rows(findings):
    if row["kind"] == "feature":
      cells.append([
          row["feature"], f"{row['examples']:,}", str(row["limit"]),
          f"{row['mean']:.1f}", f"{row['median']:.0f}", str(row["longest"]),
          "-" if row["cut"] is None else str(row["longest_uncut"]),
          task_reading.share_in_words(row["cut"]),
          f"{row['filled_when_packed']:.1%}"])
  return [*tabular.plain(cells, str.rjust),
          f"{findings.per_row:.2f} examples in a packed row; the first example came "
          f"after {findings.first_seconds:.2f} s; "
          f"{'the whole split' if findings.whole else 'the first examples only'}"]


def _rates(findings):
  """Returns lines with the rates of a mixture; no lines for a task."""
  if len(findings.rates) < 2:
    return []
  keys = list(findings.tokens)
  return tabular.plain(
      [["member", "rate", "share", *(f"{key} cut" for key in keys)], *(
          [task, f"{rate:g}", f"{share:.2%}",
           *(task_reading.share_in_words(member.cut(key, findings.lengths[key]))
             for key in keys)] for task, rate, share in findings.shares
          for member in [findings.members[task]])], str.rjust)


def _lengths(value):
  pairs = [part.partition("=") for part in value.split(",")]
  if not all(name and number.isdecimal() and int(number) for name, _, number in pairs):
    raise argparse.ArgumentTypeError(
        f"{value!r} is not written as inputs=512,targets=114")
  return {name.strip(): int(number) for name, _, number in pairs}


def _parser():
  parser = arguments.parser("inspect_task", __doc__)
  parser.add_argument("name", help="the task or mixture, such as synth_glue")
  parser.add_argument("--split", default="train", help="default: %(default)s")
  parser.add_argument("--number", type=arguments.positive, default=5, metavar="N",
                      help="rows to show (default: %(default)s)")
  parser.add_argument("--examples", type=arguments.positive, default=1000,
                      metavar="N", help="rows to count (default: %(default)s)")
  parser.add_argument("--lengths", type=_lengths, metavar="FEATURE=N,...",
                      help="as `utils.run.sequence_length`; 512 by default")
  parser.add_argument("--t5_tfds_data_dir", metavar="DIR",
                      help="the folder of the prepared data sets")
  arguments.add_gin(parser)
  parser.add_argument("--plot", metavar="FILE", help="write a histogram as PNG")
  parser.add_argument("--json", metavar="FILE", help="write JSON lines")
  return parser


if __name__ == "__main__":
  main()
