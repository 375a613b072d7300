"""How matplotlib draws for tools: into files, without a display, in one style."""

import contextlib
import sys

import matplotlib
from matplotlib import style

WIDTH = 8.3  # Inches of a picture, whose letters are then legible in a README.


def choose() -> None:
  """Chooses one that needs no display; in IPython the user's own stays."""
  if "IPython" not in sys.modules:
    matplotlib.use("Agg")


def styled() -> contextlib.AbstractContextManager[None]:
  """A context whose pictures have the style of `pictures.mplstyle`, beside this."""
  return style.context("synthesizer_mtf.tools.base.pictures")
