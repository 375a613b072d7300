"""The parts of `reproduce`.

  tables.py   the paper's tables: rows, columns and figures
  plan.py     the commands of a row, at two scales
  speeds.py   speed and size, measured as in `benchmark`
  reports.py  the paper's figures beside ours
  plot.py     the picture
  hparams.py  settings and scores for TensorBoard
  lines.py    reads what a report wrote, with checks
  compare.py  two such files, seed by seed
"""
