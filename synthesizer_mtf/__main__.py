"""`python -m synthesizer_mtf`: the command, if it is not installed.

Python imports the package first, so that `--help` waits for that here.
"""

import synthesizer_mesh_transformer

if __name__ == "__main__":
  synthesizer_mesh_transformer.main()
