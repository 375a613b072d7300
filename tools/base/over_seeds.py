"""Statistics over seeds: means, their standard errors and intervals, and tests.

Figures are a table with a column for each model and a row for each seed. Models with
the same seed see the same data, so tests compare paired differences.
"""

import numpy as np
import pandas as pd
from scipy import stats

# The confidence level of the intervals.
CONFIDENCE = 0.95
# Differences with a p below this level are significant.
LEVEL = 0.05
# Event files hold float32: less spread than this share of the figures is rounding.
_ROUNDING = 1e-6


def estimates(figures: pd.DataFrame, sizes: pd.Series | None = None) -> pd.DataFrame:
  """Returns the estimate of each column.

  Args:
    figures: a column for each estimate, a row for each seed; NaN for a missing figure.
    sizes: the greatest of the numbers from which each column was computed; by default
      that of the column.

  Returns:
    a row for each column: "mean"; "sem", the standard error of the mean; "count", the
    number of seeds; and "low" and "high", the ends of Student's interval. With one seed
    the error and the interval are NaN, and so is the interval of figures that are equal
    in all seeds, whose spread is not known.
  """
  means = pd.DataFrame({name: getattr(figures, name)()
                        for name in ("mean", "sem", "count")})
  sizes = figures.abs().max() if sizes is None else sizes
  has_spread = figures.std() > _ROUNDING * sizes
  half = stats.t.ppf((1 + CONFIDENCE) / 2, means["count"] - 1) * means["sem"]
  half = half.where(has_spread)
  return means.assign(low=means["mean"] - half, high=means["mean"] + half)


def tested(differences: pd.DataFrame, sizes: pd.Series | None = None) -> pd.DataFrame:
  """Returns `estimates` with a test of whether each mean is 0.

  Args:
    differences: a column for each comparison, a row for each seed.
    sizes: the greatest figure of each comparison.

  Returns:
    `estimates` with "p", the p of Student's paired test, corrected by Holm for the
    number of columns with more than one seed. Columns without an interval have NaN.
  """
  means = estimates(differences, sizes)
  t = (means["mean"] / means["sem"]).abs()
  p = pd.Series(2 * stats.t.sf(t, means["count"] - 1), means.index)
  p = p.where(means["low"].notna(), 1)[means["count"] > 1].sort_values()
  p = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1)
  return means.assign(p=p.where(means["low"].notna()))


def text(estimate: pd.Series, digits: int) -> str:
  """Returns the mean, and after "±" its standard error, if there is one.

  Args:
    estimate: a row of `estimates`.
    digits: the number of digits after the point.
  """
  error = f" ± {estimate['sem']:.{digits}f}" if estimate["count"] > 1 else ""
  return f"{estimate['mean']:.{digits}f}{error}"


def cells(difference: pd.Series, form: str) -> list[str]:
  """Returns a difference as cells of a table: the mean, the interval, p, and a mark.

  Args:
    difference: a row of `tested`.
    form: the format of the numbers, such as "+.4g".
  """
  mean, low, high = (f"{difference[name]:{form}}" for name in ("mean", "low", "high"))
  if np.isnan(difference["low"]):
    return [mean, "-", "-", ""]
  p = difference["p"]
  return [mean, f"{low} to {high}", "< 0.001" if p < 0.001 else f"{p:.3f}",
          "*" if p < LEVEL else ""]


def note(differences: pd.DataFrame) -> str:
  """Returns the note below a table of differences."""
  several = differences[differences["count"] > 1]
  text = ("The intervals are not corrected for the number of differences, "
          f"{len(several)}; p is, by Holm's method. If p is below {LEVEL}, "
          "* says that the two are significantly different; an interval that excludes "
          "0 does not say so.")
  if several["low"].isna().any():
    text += (" A difference that is equal in all seeds has neither, as nothing tells "
             "its spread: take more seeds, or a finer score.")
  return text
