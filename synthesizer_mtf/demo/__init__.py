"""`make demo`: V, R and R+V are trained, fine-tuned, evaluated and asked.

`python -m synthesizer_mtf.demo` works in a directory, `demo_output` by default.
Everything goes through `synthesizer_mesh_transformer`, in the way a user would
type it; the commands are printed. Started again, it goes on where it stopped.

  names.py     En-De pairs: the names in babel's CLDR tables
  data.py      their files, a vocabulary, and the gin file which names them
  stages.py    what is run, and in which order
  report.py    the table and the picture
"""
