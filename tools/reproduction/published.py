"""Shows tables of other papers: commands, and figures beside our counts.

The module of a table has the variables `title`, `rows` and `NOTE`, and the functions
`commands` and `lines`.
"""

from collections.abc import Sequence
from typing import Any

from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools.reproduction import lra
from synthesizer_mtf.tools.reproduction import narang
import tqdm

TABLES = {"lra": lra, "narang": narang}


def count(name: str, rows: Sequence[Any]) -> list[dict[str, Any]]:
  """Returns the lines of a table, and shows a bar meanwhile.

  Args:
    name: a key of `TABLES`.
    rows: some of its rows.
  """
  return list(tqdm.tqdm(TABLES[name].lines(rows), "count", len(rows), unit="model",
                        disable=None))


def markdown(name: str, lines: Sequence[dict[str, Any]]) -> str:
  """Returns the lines of a table as Markdown.

  Args:
    name: a key of `TABLES`.
    lines: what `count` returns.
  """
  cells = [list(lines[0]), *(list(map(_cell, line.values())) for line in lines)]
  return f"{tabular.markdown(cells)}\n\n{TABLES[name].NOTE}"


def _cell(value):
  if value is None:
    return "-"
  return f"{value:,}" if isinstance(value, int) else str(value)
