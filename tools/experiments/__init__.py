"""Trains models with some seeds, stage by stage, and reports their scores.

`reproduce` runs the paper's rows with it, `compare_models` the user's own models,
`studies/` those of the research record, and `make demo` its stages. Each run is a list
of commands that a user could type, and goes on where it was stopped.

  pipeline.py  commands as stages, each of which knows whether it is done
  process.py   one command: its log and its progress bar
  queue.py     runs of several stages each, some at the same time
  progress.py  one line for a whole queue
  shares.py    a machine's cores and GPUs, shared
  contents.py  what a run depends on
  execution.py executes runs, and prints commands
  first_check.py  builds the model of each command before the first run
  plan.py      the commands of a row of the paper, at two scales
  speeds.py    speed and size, measured as in `benchmark`
  study_types.py   the types of a study: rows, tasks, evaluations, scores
  study_runs.py    the commands of a row, and their results
  reports.py   the paper's figures beside ours
  study_report.py  the means, the orders and the differences of the rows
  lines.py     reads what a report wrote, with checks
  compare.py   compares two such files, seed by seed
  hparams.py   settings and scores for TensorBoard
  plot.py, curves.py, pictures.py  the pictures
"""
