"""Replaces `editdistance` in Python: seqio calls its `eval`, t5 its `distance`."""

from nltk import edit_distance as distance

eval = distance  # noqa: A001  The name in `editdistance`.


def distance_le_than(a, b, threshold):
  """Whether the distance is at most the threshold."""
  return distance(a, b) <= threshold


eval_criterion = distance_le_than

__all__ = ["distance", "distance_le_than", "eval", "eval_criterion"]
