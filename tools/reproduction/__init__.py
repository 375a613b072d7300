"""The parts of `reproduce`.

  tables.py   the paper's tables: rows, columns and figures
  plan.py     the commands of a row, at two scales
  speeds.py   speed and size, measured as in `benchmark`
  reports.py  the paper's figures beside ours
  plot.py     the picture
  hparams.py  settings and scores for TensorBoard
  lines.py    reads what a report wrote, with checks
  compare.py  compares two such files, seed by seed
  execution.py    executes runs, and prints commands; studies/ also uses it
  first_check.py  builds the model of each command before the first run
  pictures.py     opens and writes the pictures
"""
