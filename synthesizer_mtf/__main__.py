"""`python -m synthesizer_mtf`: the launcher, where no command is installed."""

from synthesizer_mtf import launcher

if __name__ == "__main__":
  launcher.console_entry_point()
