"""Tables of other papers: their commands, and their figures beside our counts."""

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
  """What a module of a table has."""
  title: str
  rows: tuple[Any, ...]

  def commands(self, chosen: Iterable[Any], bucket: str,
               settings: plan.Settings) -> Iterator[tuple[str, list[str]]]:
    """Yields (what it is, a command)."""

  def steps(self, chosen: Iterable[Any]) -> int:
    """How often `lines` calls its `progress`."""

  def lines(self, chosen: Iterable[Any],
            progress: Callable[[], None]) -> list[dict[str, Any]]:
    """Returns a dict for each row."""

  def note(self, lines: list[dict[str, Any]]) -> str:
    """What is to be known of the figures, a paragraph."""


TABLES: dict[str, Table] = {"lra": lra, "narang": narang}


def count(name: str, rows: list[Any]) -> list[dict[str, Any]]:
  """The lines of a table, while a bar shows how far it is.

  Args:
    name: a key of `TABLES`.
    rows: some of its rows.
  """
  with tqdm.tqdm(total=TABLES[name].steps(rows), desc="count", unit="model",
                 disable=None) as bar:
    return TABLES[name].lines(rows, bar.update)


def markdown(name: str, lines: list[dict[str, Any]]) -> str:
  """A table of such lines.

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
