"""Means over seeds, and tests of differences, beside SciPy's and Holm's."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthesizer_mtf.tools.base import over_seeds


def test_estimates_equal_students():
  tested = over_seeds.estimates(pd.DataFrame({
      "A": [3.0, 5.0, 4.0, 6.0], "one": [7.0, np.nan, np.nan, np.nan]}))
  a = tested.loc["A"]
  error = np.std([3.0, 5.0, 4.0, 6.0], ddof=1) / 2
  assert (a["mean"], a["count"]) == (4.5, 4) and a["sem"] == pytest.approx(error)
  # 3.182 is the value of t for 3 degrees of freedom in a printed table.
  assert a[["low", "high"]].tolist() == pytest.approx(
      [4.5 - 3.182 * error, 4.5 + 3.182 * error], abs=1e-3)
  assert tested.loc["one", ["sem", "low", "high"]].isna().all()
  assert over_seeds.text(a, 2) == f"4.50 ± {error:.2f}"
  assert over_seeds.text(tested.loc["one"], 2) == "7.00"


def test_p_is_of_paired_tests_corrected_by_holm():
  rng = np.random.default_rng(0)
  shared = 9 * rng.normal(size=4)  # Much larger than the differences.
  a = {name: shared + shift + rng.normal(size=4) for name, shift in
       {"far": 20, "near": 2, "same": 0}.items()}
  tested = over_seeds.tested(pd.DataFrame(a).sub(shared, axis=0))
  alone = {name: stats.ttest_rel(values, shared).pvalue for name, values in a.items()}
  first, second, third = sorted(alone, key=alone.get)
  corrected = [3 * alone[first], 2 * alone[second], alone[third]]
  assert tested["p"][[first, second, third]].tolist() == pytest.approx(
      np.minimum(1, np.maximum.accumulate(corrected)))
  assert tested["p"]["far"] < over_seeds.LEVEL < tested["p"]["same"]


def test_what_has_no_test_has_no_p_but_counts_for_the_correction_if_it_has_seeds():
  tested = over_seeds.tested(pd.DataFrame({
      "A": [2.0, 2.1, 1.9], "same": [0.0, 0.0, 0.0], "one": [5.0, np.nan, np.nan]}))
  assert tested["p"]["A"] == pytest.approx(
      2 * stats.ttest_1samp([2.0, 2.1, 1.9], 0).pvalue)
  assert tested["p"][["same", "one"]].isna().all()
  assert "differences, 2; p is, by Holm" in over_seeds.note(tested)
  assert over_seeds.cells(tested.loc["one"], "+.1f") == ["+5.0", "-", "-", ""]
  assert over_seeds.cells(tested.loc["same"], "+.1f") == ["+0.0", "-", "-", ""]
  assert over_seeds.cells(tested.loc["A"], "+.1f") == [
      "+2.0", "+1.8 to +2.2", "0.002", "*"]


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_difference_that_is_equal_in_all_seeds_has_no_p(seeds):
  """Scores of few examples are often equal, but for the rounding of float32."""
  first = pd.DataFrame({"A": np.array([61.1, 52.3, 44.7][:seeds])})
  second = (first + 100 / 34).astype(np.float32).astype(float)
  for scores in (first + 100 / 34, second, first.copy()):
    tested = over_seeds.tested(scores - first, first.max())
    assert tested[["low", "high", "p"]].isna().all(axis=None)
    assert over_seeds.cells(tested.loc["A"], "+.1f")[1:] == ["-", "-", ""]
    assert "equal in all seeds has neither" in over_seeds.note(tested)
  other = over_seeds.tested(pd.DataFrame({"A": [2.0, 2.1]}), pd.Series({"A": 60.0}))
  assert other["p"]["A"] == pytest.approx(stats.ttest_1samp([2.0, 2.1], 0).pvalue)
  assert "equal in all seeds" not in over_seeds.note(other)


@pytest.mark.slow
def test_chance_alone_is_significant_in_one_table_of_twenty():
  rng = np.random.default_rng(2)
  marked = [(over_seeds.tested(pd.DataFrame(rng.normal(size=(3, 10))))["p"] <
             over_seeds.LEVEL).any() for _ in range(200)]
  assert 0.02 < np.mean(marked) < 0.08
