"""Opens and writes all pictures of tables and studies."""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import matplotlib


@contextlib.contextmanager
def written(path: pathlib.Path, down: int, across: int, size: tuple[float, float],
            dpi: int = 100, **kwargs: Any) -> Iterator[tuple[Any, Any]]:
  """Opens panels to draw in, and writes them at the end.

  Args:
    path: the path of a PNG.
    down: the number of panels below each other.
    across: the number of panels beside each other.
    size: the size of the picture, in inches.
    dpi: the number of dots per inch.
    **kwargs: further arguments of `pyplot.subplots`.

  Yields:
    the figure, and an array [down, across] of its axes.
  """
  matplotlib.use("Agg")
  from matplotlib import pyplot
  figure, axes = pyplot.subplots(
      down, across, figsize=size, dpi=dpi, squeeze=False, **kwargs)
  yield figure, axes
  figure.savefig(path)
  pyplot.close(figure)
