"""The parts of `plan_pod`.

  pods.py       TPU topologies, and what is published of their chips
  lowering.py   the step as the program that JAX runs
  layouts.py    why a layout does not fit, and which mesh shapes fit
  compiling.py  compiles the program, in a process of its own
  modules.py    reads what the compiler makes
  planning.py   the plan of one model on one topology
  report.py     the tables
  plot.py       the picture
"""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
