"""Shows tables of other papers: commands, and figures beside our counts.

The module of a table has the variables `title`, `rows` and `NOTE`, and the functions
`commands` and `lines`.
"""

from collections.abc import Sequence
from typing import Any

from studies import lra
from studies import narang
from synthesizer_mtf.tools.base import tabular

TABLES = {"lra": lra, "narang": narang}


def markdown(name: str, lines: Sequence[dict[str, Any]]) -> str:
  """Returns the lines of a table, a key of `TABLES`, as Markdown."""
  cells = [list(lines[0]), *(list(map(_cell, line.values())) for line in lines)]
  return f"{tabular.markdown(cells)}\n\n{TABLES[name].NOTE}"


def _cell(value):
  if value is None:
    return "-"
  return f"{value:,}" if isinstance(value, int) else str(value)
