"""The parts of `plan_pod`.

  pods.py      TPU topologies, and the public rates of their chips
  lowering.py  the training step's graph for one core
  layouts.py   why a layout does not fit, and which mesh shapes fit
  counting.py  what one core computes, moves and keeps
  roofline.py  the time that a step takes
  report.py    the tables
  plot.py      the picture
"""
