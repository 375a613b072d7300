"""A weight on both sides: in Mesh TensorFlow and in Hugging Face's files."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Weight(NamedTuple):
  """A weight on both sides.

  Attributes:
    mesh: the name in a checkpoint of Mesh TensorFlow.
    hugging_face: the name in Hugging Face's files.
    shape: the shape of Mesh's variable.
    transposed: whether Hugging Face stores the transpose.
    change: a function of Mesh's value that returns the one to export; None if they are
      equal.
    new_shape: the shape of what `change` returns.
  """
  mesh: str
  hugging_face: str
  shape: tuple[int, ...]
  transposed: bool = True
  change: Callable[[np.ndarray], np.ndarray] | None = None
  new_shape: tuple[int, ...] | None = None

  @property
  def their_shape(self) -> tuple[int, ...]:
    """The shape in Hugging Face's files."""
    if self.new_shape is not None:
      return self.new_shape
    return self.shape[::-1] if self.transposed else self.shape

  def turned(self, value: np.ndarray) -> np.ndarray:
    """Returns the value of one side as the other side stores it."""
    if self.change is not None:
      return self.change(value)
    return value.T if self.transposed else value
