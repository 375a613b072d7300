"""The backend of matplotlib: tools draw into files, and need no display."""

import sys

import matplotlib


def choose() -> None:
  """Chooses one that needs no display; in IPython the user's own stays."""
  if "IPython" not in sys.modules:
    matplotlib.use("Agg")
