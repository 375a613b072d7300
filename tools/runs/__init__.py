"""Runs the launcher in stages, and reads its results.

`make demo` and `tools/reproduce` use it. Both are lists of commands that a user could
type, and both resume where they were stopped.

  pipeline.py  commands as stages, each of which knows whether it is done
  process.py   one command: its log and its progress bar
  queue.py     runs of several stages each, some at the same time
  progress.py  one line for a whole queue
  shares.py    a machine's cores and GPUs, shared
  results.py   figures, read from checkpoints, event files and logs
  machine.py   the machine that figures were measured on
  tabular.py   tables and JSON lines of figures
"""
