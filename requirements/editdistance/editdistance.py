"""`editdistance.distance`, which `t5.evaluation.metrics` calls, in Python."""

from nltk import edit_distance as distance

__all__ = ["distance"]
