"""The study of calibrated attention: its rows of tokens, and its page."""

import numpy as np
from studies.calibration import report
from studies.calibration import rows
from support import paths

SENTINELS = {90, 91, 92}
# The texts 5 6 7 8 9 10 and 11 12 13 14, and the end of each sequence, 1.
INPUTS = np.array([[5, 90, 8, 91, 10, 1], [90, 12, 91, 14, 1, 0]])
TARGETS = np.array([[90, 6, 7, 91, 9, 1], [90, 11, 91, 13, 1, 0]])
RESULTS = paths.ROOT / "studies/results"


def test_spans_return_to_where_they_were_taken_out():
  assert rows.restored(INPUTS[0], TARGETS[0], SENTINELS) == [5, 6, 7, 8, 9, 10]
  assert rows.restored(INPUTS[1], TARGETS[1], SENTINELS) == [11, 12, 13, 14]


def test_recall_puts_the_rows_own_text_or_anothers_before_it():
  inputs = np.array([[5, 90, 8, 1], [90, 12, 13, 1], [7, 7, 90, 1], [7, 90, 1, 0]])
  targets = np.array([[90, 6, 7, 1], [90, 11, 1, 0], [90, 9, 1, 0], [90, 1, 0, 0]])
  made = rows.recall({"inputs": inputs, "targets": targets}, 9, SENTINELS)
  assert made["same_inputs"].tolist() == [
      [5, 6, 7, 8, 5, 90, 8, 1, 0], [11, 12, 13, 90, 12, 13, 1, 0, 0],
      [7, 7, 9, 7, 7, 90, 1, 0, 0]]  # Rows with padding are left out.
  assert made["other_inputs"].tolist() == [
      [11, 12, 13, 5, 90, 8, 1, 0, 0], [7, 7, 9, 90, 12, 13, 1, 0, 0],
      [5, 6, 7, 8, 7, 7, 90, 1, 0]]
  for name in ("same", "other"):
    np.testing.assert_array_equal(made[f"{name}_targets"], targets[:3])


def test_the_page_has_the_tables_of_its_results(capsys):
  report.main([str(RESULTS / "calibration")])
  page = (RESULTS / "calibration.md").read_text(encoding="utf-8")
  for table in capsys.readouterr().out.strip().split("\n\n"):
    assert table in page
