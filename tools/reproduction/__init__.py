"""The parts of `reproduce`.

  tables.py   the paper's tables: rows, columns and figures
  plan.py     the commands of a row, at two scales
  speeds.py   speed and size, measured as in `benchmark`
  reports.py  the paper's figures beside ours
  plot.py     the picture
  hparams.py  settings and scores for TensorBoard
  lines.py    reads what a report wrote, with checks
  compare.py  compares two such files, seed by seed

and the parts of its studies:

  studies.py       the studies: rows, tasks, scores
  study_runs.py    the commands of a row, and their results
  study_report.py  the means, the orders and the differences of the rows
  curves.py        the picture of one study
  forest.py        the picture of all studies
"""
