"""What the commands print for `--help`; run this module to write it into the package.

  PYTHONPATH=tests python -m support.stored_help
"""

from support import golden
from support import scripts
from synthesizer_mtf import stored_help

_WIDTH = "88"


def texts():
  """Returns what each command prints, by the name of its file."""
  return {
      " ".join([stored_help.name_of(module), *words]) + ".txt":
          scripts.printed_help(module, words, _WIDTH)
      for module in golden.COMMANDS
      for words in ([], *golden.SUBCOMMANDS.get(module, ()))}


if __name__ == "__main__":
  stored_help.FOLDER.mkdir(exist_ok=True)
  for name, text in texts().items():
    (stored_help.FOLDER / name).write_text(text, encoding="utf-8")
