"""Trains models with some seeds, stage by stage, and reports their scores.

`reproduce` runs the paper's rows with it, `compare_models` the user's own models,
`studies/` those of the research record, and `make demo` its own. Each run is a list of
commands that a user could type, and goes on where it was stopped.

  study_types.py  a study: rows, tasks, evaluations, scores
  settings.py  the user's choices, and the commands that have them
  paper.py     the paper's tables as commands, at two scales, and as studies
  runs.py      a run of a study: its commands and its results
  report.py    executes runs; their means, orders and differences
  lines.py     reads what a report wrote, with checks
  compare.py   compares two such files, seed by seed
  pictures.py  the pictures of reports
  hparams.py   settings and scores for TensorBoard
  pipeline.py  commands as stages, each of which knows whether it is done
  process.py   one command: its log and its progress bar
  queue.py     runs of several stages each, some at the same time
  progress.py  one line for a whole queue
  shares.py    a machine's cores and GPUs, shared
  claims.py    a folder is for one process, and for runs of one origin
  first_check.py  builds the model of each command before the first run
"""
