"""The parts of `plan_pod`.

  pods.py             TPU topologies, and the public rates of their chips
  lowering.py         the step's graph for one core
  layouts.py          why a layout does not fit, and which mesh shapes fit
  counting.py         what one core computes, sends and keeps
  roofline.py         the least time that a step takes
  report.py           the tables
  plot.py             the picture
  programs.py         the step as a program for the TPU's compiler
  compiling.py        runs tpu_compiler.py in an environment with this compiler
  modules.py          reads what the compiler makes
  compiler_report.py  the compiler's tables
"""
