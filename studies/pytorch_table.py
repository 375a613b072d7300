"""Makes tables in Markdown of the rows of `pytorch_speed.py`.

  python studies/pytorch_table.py results.json
"""

import argparse
import json
import pathlib
from typing import Any

_UNITS = {"train": "training steps a second", "decode": "new tokens a second"}


def main(argv: list[str] | None = None) -> None:
  """Prints the tables of the files that the command names."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("files", nargs="+", metavar="FILE", help="of pytorch_speed.py")
  for path in parser.parse_args(argv).files:
    print(text(json.loads(pathlib.Path(path).read_text(encoding="utf-8"))))


def text(rows: list[dict[str, Any]]) -> str:
  """Returns the tables of all rows, in Markdown."""
  machine = next(row for row in rows if row["part"] == "machine")
  lines = [f"{machine['card']}, PyTorch {machine['torch']}, Transformers "
           f"{machine['transformers']}.", ""]
  equal = [row for row in rows if row["part"] == "equal" and "largest" in row]
  if equal:
    lines += _table(
        ["attention", "inputs", "largest logit", "float32", "autocast", "bfloat16"],
        [[row["name"], row["length"], f"{row['largest']:.1f}",
          *(f"{row[key]:.1e}" for key in ("float32", "autocast", "bfloat16"))]
         for row in equal])
  for part, unit in _UNITS.items():
    lines += _speeds(
        [row for row in rows if row["part"] == part and "per_second" in row], unit)
  steps = [row for row in rows if row["part"] == "mesh step" and "losses" in row]
  if steps:
    lines += _table(
        ["attention", "device", "loss after 1, 2 and 3 steps", "seconds a step"],
        [[row["attention"], row["device"],
          ", ".join(f"{loss:.4f}" for loss in row["losses"][:3]),
          f"{sorted(row['seconds'])[len(row['seconds']) // 2]:.4f}"] for row in steps])
  return "\n".join(lines)


def _speeds(rows, unit):
  """A line for each attention, a column for each dtype and length."""
  if not rows:
    return []
  columns = list(dict.fromkeys(map(_column, rows)))
  found = {(row["name"], _column(row)): row for row in rows}
  reference = {column: found.get(("T5 eager", column)) for column in columns}

  def cell(name, column):
    row, base = found.get((name, column)), reference[column]
    if row is None:
      return ""
    low, median, high = row["per_second"]
    ratio = f" ({median / base['per_second'][1]:.2f})" if base else ""
    return f"{median:.4g}{ratio} [{low:.4g}, {high:.4g}]"

  names = list(dict.fromkeys(row["name"] for row in rows))
  return [f"{unit[0].upper()}{unit[1:]}: median (times T5 eager) [quartiles].", "",
          *_table(["attention", *columns],
                  [[name, *(cell(name, column) for column in columns)]
                   for name in names])]


def _column(row):
  compiled = ", compiled" if row.get("compiled") else ""
  return f"{row['dtype']}, {row['length']} inputs, batch {row['batch']}{compiled}"


def _table(head, rows):
  cells = [head, ["---"] * len(head), *rows]
  return [*(f"| {' | '.join(map(str, row))} |" for row in cells), ""]


if __name__ == "__main__":
  main()
