"""Answers `--help` of the commands from files, before TensorFlow is imported.

TensorFlow takes seconds, and a command's parser needs the modules that do the work.
So the folder `help/` keeps what the parsers print. `tests/support/stored_help.py`
writes it. Only mesh_transformer.txt, the help of the trainer, is written by hand.
"""

from collections.abc import Sequence
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "help"
_CHECKOUT = FOLDER.parents[1] / "tools"
_PACKAGE = "synthesizer_mtf."
_TOOLS = "tools."
_MAIN = ".__main__"
_SCRIPTS = "synthesizer_"
_TRAINER, _TRAINER_NAME = "synthesizer_mtf", "mesh_transformer"


def answer() -> None:
  """Prints the help and exits, if this process is a command that was asked for it."""
  path = asked(sys.orig_argv)
  if path and path.is_file():
    print(path.read_text(encoding="utf-8"), end="")
    sys.exit(0)


def asked(command: Sequence[str]) -> pathlib.Path | None:
  """Returns the file with the help that a command line asks for; it may not exist.

  Args:
    command: the words of the process: Python, its options, what it runs, and flags.
  """
  place = next((i for i, word in enumerate(command) if i and (
      command[i - 1] == "-m" or not word.startswith("-"))), len(command))
  run, words = "".join(command[place:place + 1]), command[place + 1:]
  if not {"-h", "--help"} & set(words):
    return None
  if command[place - 1] == "-m" and run.startswith(_PACKAGE):
    name = name_of(run)
  elif command[place - 1:place + 1] == ["-m", _TRAINER]:
    name = _TRAINER_NAME
  elif command[place - 1] != "-m" and pathlib.Path(run).name.startswith(_SCRIPTS):
    name = pathlib.Path(run).name.removeprefix(_SCRIPTS)
  elif pathlib.Path(run).resolve().parent == _CHECKOUT:
    name = pathlib.Path(run).stem
  else:
    return None
  part = FOLDER / f"{name} {words[0]}.txt"
  return part if part.is_file() else FOLDER / f"{name}.txt"


def name_of(module: str) -> str:
  """Returns what the file of a command is called, by the module that it runs."""
  return module.removeprefix(_PACKAGE).removeprefix(_TOOLS).removesuffix(_MAIN)
