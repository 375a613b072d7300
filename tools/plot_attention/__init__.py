"""The parts of `plot_attention`.

  reader.py      runs a checkpoint on text and gets the weights of its layers
  statistics.py  numbers that say what the weights do
  figures.py     the pictures
  course.py      alpha at each checkpoint
  seeds.py       tables over several training runs
  page.py        the interactive page, whose frame is page.html
"""
