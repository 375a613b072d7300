"""The parts of `reproduce`.

  tables.py   the paper's tables: rows, columns and figures
  plan.py     the commands of a row, at two scales
  speeds.py   speed and size, measured as in `benchmark`
  reports.py  the paper's figures beside ours
  plot.py     the picture
  hparams.py  settings and scores for TensorBoard
  lines.py    reads what a report wrote, with checks
  compare.py  compares two such files, seed by seed
  first_check.py  builds the model of each command before the first run
  published.py    tables of other papers, which are in lra.py and narang.py
  pictures.py     opens and writes the pictures

and the parts of its studies:

  studies.py       the studies: rows, tasks, scores; study_types.py has their types
  ability_study.py, ability_lengths.py  the studies of abilities
  study_runs.py    the commands of a row, and their results
  study_report.py  the means, the orders and the differences of the rows
  curves.py        the picture of one study
  forest.py        the picture of all studies
  heat_map.py, size_curves.py  the pictures of the studies of abilities
"""
