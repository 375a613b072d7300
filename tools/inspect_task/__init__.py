"""The parts of `inspect_task`.

  reading.py  reads a task: examples, lengths, cuts, rates, packed rows
  plot.py     draws the lengths
"""
