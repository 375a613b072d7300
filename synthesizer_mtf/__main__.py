"""Runs the command as `python -m synthesizer_mtf`, if it is not installed."""

import synthesizer_mesh_transformer

if __name__ == "__main__":
  synthesizer_mesh_transformer.main()
