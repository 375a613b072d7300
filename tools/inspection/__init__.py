"""The parts of `inspect_task`.

  reading.py  what a task feeds a model: examples, lengths, cuts, rates, packed rows
  plot.py     the lengths as a picture
"""
