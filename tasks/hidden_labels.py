"""Test splits of GLUE and SuperGLUE, whose labels only their servers know.

Rows of these splits have the label -1, or no answers. A metric would fail on them, or
give 0 percent. So evaluation writes only the predictions, and `submission.py` turns
them into the files that the servers take.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

from absl import logging

_Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def no_score(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
  """Returns no scores. (Mesh TensorFlow does not decode a task without a metric.)"""
  del targets, predictions
  return {}


def unless_hidden(metric: _Metric) -> _Metric:
  """Returns a metric that gives the same scores, or none if all labels are hidden.

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
