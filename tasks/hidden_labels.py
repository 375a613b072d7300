"""Test splits of GLUE and SuperGLUE, whose labels only their servers know.

Their rows have the label -1, or no answers. A score of these would be an error, or 0
percent: evaluation writes the predictions alone, and `submission.py` makes of them the
files that the servers take.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

from absl import logging

_Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def no_score(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """A metric without scores: with none at all, Mesh TensorFlow decodes nothing."""
  del targets, predictions
  return {}


def unless_hidden(metric: _Metric) -> _Metric:
  """A metric without scores where all labels are hidden, and as it was otherwise.

  Args:
    metric: a function from (targets, predictions) to a dict.
  """
  @functools.wraps(metric)
  def wrapped(targets, predictions):
    if targets and all(map(_is_hidden, targets)):
      logging.info("The labels of this split are hidden: it has no scores. For the "
                   "server, python -m synthesizer_mtf.tasks.submission makes files "
                   "of the predictions.")
      return {}
    return metric(targets, predictions)

  return wrapped


def _is_hidden(target):
  value = target["value"] if isinstance(target, dict) else target
  return value == [] or (isinstance(value, (int, float)) and value == -1) or (
      hasattr(value, "dtype") and value.shape == () and value == -1)
