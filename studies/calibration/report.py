"""Makes the tables of the study of calibrated attention.

  python -m studies.calibration.report studies/results/calibration

`torch_training.py` wrote `v.jsonl`, `v_en_de.jsonl`, `recovery.jsonl` and
`recovery_en_de.jsonl` in FOLDER, and `calibrate --curve --json` wrote `curve.jsonl` and
`curve_en_de.jsonl`.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import pandas as pd
from studies.calibration import drawing
from studies.calibration import heads
from studies.calibration import held_out
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.base import tabular

_STARTS = {"V": "V itself", "calibrated": "calibrated R",
           "annealed": "random R, annealed from V", "scratch": "R, from scratch"}


def pretraining(lines: Iterable[dict[str, Any]]) -> str:
  """Returns a table of V's training, from the lines of its log."""
  table = [["step", "log-perplexity", "its text stands earlier", "another text does",
            "difference"]]
  for line in lines:
    same, other = (line["recall"][name] for name in ("same", "other"))
    values = line["log_perplexity"], same, other, other - same
    table.append([str(line["step"]), *(f"{value:.3f}" for value in values)])
  return tabular.markdown(table)


def tuning(lines: Iterable[dict[str, Any]]) -> str:
  """Returns a table of a fine-tuning, from the lines of its log."""
  return tabular.markdown([["step", "log-perplexity"], *(
      [str(line["step"]), f"{line['log_perplexity']:.3f}"] for line in lines)])


def layers(lines: Iterable[dict[str, Any]]) -> str:
  """Returns a table of the layers: means over their heads."""
  frame = pd.DataFrame(line for line in lines if line["kind"] == "head")
  words = list(dict.fromkeys(frame["to"]))
  table = [["layer", "entropy", "of the mean", "divergence",
            *(f"dearest head, {word}" for word in words)]]
  for layer, rows in frame.groupby("layer", sort=False):
    table.append([str(layer)] + [
        f"{rows[column].mean():.2f}"
        for column in ("entropy", "constant_entropy", "divergence")] + [
            f"{rows[rows['to'] == word]['cost'].max():+.2%}" for word in words])
  return tabular.markdown(table)


def measured(lines: Iterable[dict[str, Any]]
             ) -> tuple[list[heads.Head], list[heads.Point]]:
  """The heads and the points of the curve, from what `heads.rows` made of them."""
  found: dict[tuple[str, int], heads.Head] = {}
  points = []
  for line in lines:
    cost = held_out.Cost(*(line[name] for name in held_out.Cost._fields))
    if line["kind"] == "curve":
      points.append(heads.Point(*(line[name] for name in heads.Point._fields[:-1]),
                                cost))
      continue
    key = line["layer"], line["head"]
    if key not in found:
      found[key] = heads.Head(*(line[name] for name in heads.Head._fields[:-2]), {}, {})
    found[key].costs[line["to"]] = cost
    if "weight" in line:
      found[key].weights[line["to"]] = line["weight"]
  return list(found.values()), points


def curve(points: Sequence[heads.Point]) -> str:
  """Returns the table of the curve that `calibrate` prints."""
  return heads.curve_table(points).partition("\n\n")[0]


def recovery(lines: Iterable[dict[str, Any]]) -> str:
  """Returns a table of log-perplexities before and after training, over the seeds."""
  frame = pd.DataFrame(lines)
  steps = sorted(frame["steps"].unique())
  table = [["start", "before", *(f"{n:,} steps" for n in steps)]]
  for start, name in _STARTS.items():
    rows = frame[frame["start"] == start]
    # A number of steps draws the same start again.
    columns = {"before": rows[rows["steps"] == steps[0]].set_index("seed")["before"],
               **{n: rows[rows["steps"] == n].set_index("seed")["after"]
                  for n in steps}}
    found = over_seeds.estimates(pd.DataFrame(columns))
    table.append([name] + [f"{row['mean']:.3f} ± {row['sem']:.3f}"
                           for _, row in found.iterrows()])
  return tabular.markdown(table)


def _lines(path):
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(argv: list[str] | None = None) -> None:
  """Prints the tables."""
  parser = arguments.parser("studies.calibration.report", __doc__)
  parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
  parser.add_argument("--png", type=pathlib.Path, metavar="FILE",
                      help="draw what `calibrate --curve` draws")
  with arguments.command(parser, argv) as args:
    print(pretraining(_lines(args.folder / "v.jsonl")) + "\n")
    lines = _lines(args.folder / "curve.jsonl")
    measures, points = measured(lines)
    print(f"{layers(lines)}\n\n{curve(points)}\n")
    print(tuning(_lines(args.folder / "v_en_de.jsonl")) + "\n")
    tuned = _lines(args.folder / "curve_en_de.jsonl")
    print(f"{curve(measured(tuned)[1])}\n")
    print(recovery(_lines(args.folder / "recovery.jsonl")) + "\n")
    print(recovery(_lines(args.folder / "recovery_en_de.jsonl")))
    if args.png:
      drawing.draw(measures, points, list(measures[0].costs)).savefig(args.png)


if __name__ == "__main__":
  main()
