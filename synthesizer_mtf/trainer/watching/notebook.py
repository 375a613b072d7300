"""One bar for the progress of a training in a notebook."""

import html
import sys
from typing import Any


def is_one() -> bool:
  """Whether this program runs in a notebook, of Jupyter, Colab or an editor."""
  shells = sys.modules.get("ipykernel.zmqshell")
  if shells is None:
    return False
  from IPython import get_ipython
  return isinstance(get_ipython(), shells.ZMQInteractiveShell)


class Bar:
  """A bar below a cell, with a text; it is drawn once, and then changes."""

  def __init__(self) -> None:
    """Draws nothing yet."""
    self._done, self._of, self._text = 0, 0, ""
    self._handle: Any = None

  def show(self, done: int, of: int | None, text: str) -> None:
    """Draws the bar, or changes it.

    Args:
      done: a number of steps.
      of: the number of all steps; None if it is not known.
      text: what stands beside the bar.
    """
    self._done, self._of, self._text = done, of or 0, text
    if self._handle is None:
      from IPython import display
      self._handle = display.display(self, display_id=True)
    else:
      self._handle.update(self)

  def __repr__(self) -> str:
    """What a notebook without HTML shows."""
    return self._text

  def _repr_html_(self):
    bar = (f'<progress value="{self._done}" max="{self._of}" style="width: 16em">'
           "</progress> " if self._of else "")
    return f"{bar}{html.escape(self._text)}"
