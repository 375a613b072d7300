"""`make demo`: trains, fine-tunes, evaluates and queries V, R and R+V.

`python -m synthesizer_mtf.demo` works in a directory, `demo_output` by default. It runs
and prints `synthesizer_mesh_transformer` commands, as a user would type them. If it is
started again, it resumes where it stopped.
"""
