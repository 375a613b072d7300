"""`make demo`: trains, fine-tunes, evaluates and queries V, R and R+V.

`python -m synthesizer_mtf.demo` works in a directory, `demo_output` by default. It runs
and prints `synthesizer_mesh_transformer` commands, as a user would type them. If it is
started again, it resumes where it stopped.

  name_pairs.py  En-De pairs: the names in babel's CLDR tables
  data.py        the demo's files, a vocabulary, and the gin file that names them
  stages.py      the commands and their order
  report.py      the table and the picture
"""
