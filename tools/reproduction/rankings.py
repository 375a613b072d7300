"""Means of seeds, the order of rows with their ties, and how two orders agree."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import statistics
from typing import NamedTuple

from scipy import stats

# Of the intervals by which two rows are told apart.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
  """What some seeds say of one row.

  Attributes:
    mean: over the seeds.
    error: the standard error of the mean; None for one seed.
    seeds: how many there are.
  """
  mean: float
  error: float | None
  seeds: int

  @property
  def interval(self) -> tuple[float, float]:
    """Of Student's t at `CONFIDENCE`; without an end where there is one seed."""
    if self.error is None:
      return -math.inf, math.inf
    half = stats.t.ppf((1 + CONFIDENCE) / 2, self.seeds - 1) * self.error
    return self.mean - half, self.mean + half

  def text(self, digits: int) -> str:
    """The mean, and behind "±" its error, where there is one."""
    error = "" if self.error is None else f" ± {self.error:.{digits}f}"
    return f"{self.mean:.{digits}f}{error}"


def estimate(values: Sequence[float]) -> Estimate:
  """The mean of a row's figures, one of each seed, and its standard error."""
  error = (statistics.stdev(values) / math.sqrt(len(values))
           if len(values) > 1 else None)
  return Estimate(statistics.mean(values), error, len(values))


def order(estimates: Mapping[str, Estimate], lower_is_better: bool) -> str:
  """Rows from best to worst, as "A > B = C".

  Neighbours are tied, "=", where their intervals overlap.

  Args:
    estimates: by the names of rows.
    lower_is_better: of the score.
  """
  names = best_first(estimates, lower_is_better)
  text = names[:1]
  for better, worse in zip(names, names[1:]):
    sign = "=" if _overlap(estimates[better], estimates[worse]) else ">"
    text += [sign, worse]
  return " ".join(text)


def told_apart(estimates: Mapping[str, Estimate],
               lower_is_better: bool) -> dict[str, list[str]]:
  """Which rows are worse than each one, where intervals do not overlap.

  Args:
    estimates: by the names of rows.
    lower_is_better: of the score.

  Returns:
    a dict from the rows that are better than some, to these, best first.
  """
  names = best_first(estimates, lower_is_better)
  worse = {name: [other for other in names[place + 1:]
                  if not _overlap(estimates[name], estimates[other])]
           for place, name in enumerate(names)}
  return {name: others for name, others in worse.items() if others}


def best_first(estimates: Mapping[str, Estimate],
               lower_is_better: bool) -> list[str]:
  """The names of rows, sorted by their means."""
  return sorted(estimates, key=lambda name: estimates[name].mean,
                reverse=not lower_is_better)


def thirds(estimates: Mapping[str, Estimate]) -> tuple[float, float] | None:
  """Whether rows differ by more than their seeds do.

  Args:
    estimates: by the names of rows.

  Returns:
    (how far the means of the best and of the worst third of the rows are apart;
    twice the standard error of the row that has the greatest), or None for
    fewer than 3 rows or a row of one seed.
  """
  means = sorted(e.mean for e in estimates.values())
  errors = [e.error for e in estimates.values()]
  size = len(means) // 3
  if not size or None in errors:
    return None
  return (statistics.mean(means[-size:]) - statistics.mean(means[:size]),
          2 * max(errors))


def _overlap(one, other):
  (low, high), (other_low, other_high) = one.interval, other.interval
  return low <= other_high and other_low <= high


def rank_correlation(ours: Mapping[str, float],
                     papers: Mapping[str, float]) -> float | None:
  """Spearman's coefficient over the rows that both have.

  Returns:
    a number, or None for less than 3 rows, or where all are alike and so in no order.
  """
  pairs = [(ours[name], papers[name]) for name in ours if name in papers]
  if len(pairs) < 3 or 1 in (len(set(figures)) for figures in zip(*pairs)):
    return None
  return float(stats.spearmanr(pairs).statistic)
