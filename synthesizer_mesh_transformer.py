"""The installed command: `synthesizer_mtf.launcher`, after a faster start.

It stands beside the package, because a module inside runs after the package's imports.
"""

import gc
import sys


def main() -> None:
  """Starts the launcher, which switches garbage collection on again."""
  gc.disable()  # Imports create no garbage; this saves most of a second.
  try:
    from synthesizer_mtf import launcher
  except KeyboardInterrupt:
    sys.exit(130)
  launcher.console_entry_point()


if __name__ == "__main__":
  main()
