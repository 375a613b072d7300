"""`python -m synthesizer_mtf`: the launcher, if its command is not installed."""

from synthesizer_mtf import launcher

if __name__ == "__main__":
  launcher.console_entry_point()
