"""Runs the command as `python -m synthesizer_mtf`, if it is not installed.

Python imports the package first, so `--help` takes longer than with the command.
"""

import synthesizer_mesh_transformer

if __name__ == "__main__":
  synthesizer_mesh_transformer.main()
