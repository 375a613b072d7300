"""Shows tables of other papers: commands, and figures beside our counts."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import Protocol

from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools.reproduction import lra
from synthesizer_mtf.tools.reproduction import narang
from synthesizer_mtf.tools.reproduction import plan
import tqdm


class Table(Protocol):
  """The functions and variables that the module of a table has."""
  title: str
  rows: tuple[Any, ...]

  def commands(self, chosen: Iterable[Any], bucket: str,
               settings: plan.Settings) -> Iterator[tuple[str, list[str]]]:
    """Yields (description, command)."""

  def steps(self, chosen: Iterable[Any]) -> int:
    """Returns how often `lines` calls its `progress`."""

  def lines(self, chosen: Iterable[Any],
            progress: Callable[[], None]) -> list[dict[str, Any]]:
    """Returns a dict for each row."""

  def note(self, lines: list[dict[str, Any]]) -> str:
    """Returns a paragraph with notes on the figures."""


TABLES: dict[str, Table] = {"lra": lra, "narang": narang}


def count(name: str, rows: list[Any]) -> list[dict[str, Any]]:
  """Returns the lines of a table, and shows a bar meanwhile.

  Args:
    name: a key of `TABLES`.
    rows: some of its rows.
  """
  with tqdm.tqdm(total=TABLES[name].steps(rows), desc="count", unit="model",
                 disable=None) as bar:
    return TABLES[name].lines(rows, bar.update)


def markdown(name: str, lines: list[dict[str, Any]]) -> str:
  """Returns the lines of a table as Markdown.

  Args:
    name: a key of `TABLES`.
    lines: what `count` returns.
  """
  cells = [list(lines[0]), *([_cell(value) for value in line.values()]
                             for line in lines)]
  return f"{tabular.markdown(cells)}\n\n{TABLES[name].note(lines)}"


def _cell(value):
  if value is None:
    return "-"
  return f"{value:,}" if isinstance(value, int) else str(value)
