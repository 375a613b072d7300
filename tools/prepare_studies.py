"""Makes what the studies of `reproduce --study` train on, by studies/prepare.py."""

from synthesizer_mtf.tools.base import studies_folder
from synthesizer_mtf.trainer.watching import messages


def main(argv: list[str] | None = None) -> None:
  """Hands the flags over to the folder studies/."""
  with messages.ending("prepare_studies"):
    prepare = studies_folder.module("prepare")
  prepare.main(argv)


if __name__ == "__main__":
  main()
