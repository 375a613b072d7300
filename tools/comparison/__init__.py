"""Trains some models on some tasks with some seeds, and compares their scores.

`compare_models` compares the user's own models with it, and `studies/` those of the
research record. Both are a `study_types.Study`.

  study_types.py   the types of a study: rows, tasks, evaluations, scores
  study_runs.py    the commands of a row, and their results
  study_report.py  the means, the orders and the differences of the rows
  curves.py        the picture of a study
"""
