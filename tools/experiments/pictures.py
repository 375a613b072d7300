"""Opens and writes all pictures of tables and studies."""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import matplotlib


@contextlib.contextmanager
def written(path: pathlib.Path, count: int, across: int, size: tuple[float, float],
            below: float = 0, **kwargs: Any) -> Iterator[tuple[Any, Any]]:
  """Opens panels to draw in, and writes them at the end.

  Args:
    path: the path of a PNG.
    count: the number of panels.
    across: the number of panels beside each other, if there are so many.
    size: the size of a panel, in inches.
    below: the share of the picture to leave free at the bottom.
    **kwargs: further arguments of `pyplot.subplots`.

  Yields:
    the figure, and an array [count] of its axes, line by line.
  """
  matplotlib.use("Agg")
  from matplotlib import pyplot
  across = min(count, across)
  down = -(-count // across)
  figure, axes = pyplot.subplots(
      down, across, figsize=(size[0] * across, size[1] * down), squeeze=False, **kwargs)
  for axis in axes.flat[count:]:
    axis.set_axis_off()
  yield figure, axes.flat[:count]
  figure.tight_layout(rect=(0, below, 1, 1))
  figure.savefig(path)
  pyplot.close(figure)
