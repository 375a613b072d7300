"""The parts of `benchmark`.

  attentions.py  the rows, as gin bindings on one T5 model, and the paper's speeds
  model.py       the models that the rows run: they train, evaluate or decode
  measuring.py   rows in turns, medians, and ratios in pairs
  memory.py      a process that prints how much memory a row needs
  breakdown.py   the parts of a step, and their share of its time
  products.py    the matrix products alone
  report.py      the table, and CSV
  plot.py        the picture
"""
