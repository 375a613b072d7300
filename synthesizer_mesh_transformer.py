"""The installed command: `synthesizer_mtf.launcher`, after a faster start.

This module stands beside the package: a module inside it would first run the package's
imports.
"""

import gc
import pathlib
import sys

HELP = pathlib.Path(__file__).parent / "synthesizer_mtf/help/mesh_transformer.txt"


def main() -> None:
  """Starts the launcher, which switches garbage collection on again."""
  if {"--help", "--helpshort", "-help", "-h", "--h", "-?"} & set(sys.argv[1:]):
    print(HELP.read_text(encoding="utf-8"), end="")
    return
  gc.disable()  # Imports create no garbage; this saves most of a second.
  try:
    from synthesizer_mtf import launcher
  except KeyboardInterrupt:
    sys.exit(130)
  launcher.console_entry_point()


if __name__ == "__main__":
  main()
