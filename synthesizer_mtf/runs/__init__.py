"""Runs the launcher in stages, and reads what it leaves.

`make demo` and `tools/reproduce` stand on it: both are lists of commands that a
user could type, and both go on where they were stopped.

  commands.py  commands as stages, each of which knows whether it is done
  process.py   one command: its log and its progress bar
  queue.py     runs of several stages each, some at the same time
  progress.py  one line for a whole queue
  shares.py    a machine's cores and GPUs, shared
  results.py   figures, read from checkpoints, event files and logs
  machine.py   where figures were measured
  tabular.py   tables and JSON lines of figures
"""
