"""How a command starts and ends, and the types and checks of its arguments."""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os

import gin
from matplotlib.backend_bases import FigureCanvasBase
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
from synthesizer_mtf.tools.base import backend
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf

# What a command says that continues where Ctrl-C ended it.
CONTINUES = "\nStopped. The same command continues from the last checkpoint."


@contextlib.contextmanager
def command(parser: argparse.ArgumentParser, argv: Sequence[str] | None,
            graphs: bool = False, stopped: str = "Stopped."
            ) -> Iterator[argparse.Namespace]:
  """Parses the flags of a command, and ends it with one sentence if it fails.

  It imports the modules of --module_import, lets TensorFlow log errors alone, and lets
  matplotlib draw without a display, in one style. A notebook finds gin, the log and
  TensorFlow 2 as they were.

  Args:
    parser: the command's flags.
    argv: the words after the command's name; None for those of this process.
    graphs: whether the command builds graphs, so that TensorFlow 2 is turned off.
    stopped: what it says after Ctrl-C.
  """
  args = parser.parse_args(argv)
  backend.choose()
  name = parser.prog.removeprefix("python -m ")
  with (_restored(graphs), gin.unlock_config(), gin_files.restored(with_calls=True),
        backend.styled(), messages.ending(name, stopped)):
    gin_names.import_modules(getattr(args, "module_import", ()))
    yield args


@contextlib.contextmanager
def _restored(graphs):
  """Lets TensorFlow log errors alone, and turns TensorFlow 2 off, in a `with` block."""
  verbosity, was_eager = tf.logging.get_verbosity(), tf.executing_eagerly()
  tf.logging.set_verbosity(tf.logging.ERROR)
  if graphs:
    tf.disable_v2_behavior()
  try:
    yield
  finally:
    tf.logging.set_verbosity(verbosity)
    if graphs and was_eager:
      tf.reset_default_graph()  # Otherwise TensorFlow 2 stays off.
      tf.enable_v2_behavior()


def positive(text: str) -> int:
  """Returns the integer in a string; it must be positive."""
  number = _whole(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f"{text} is not at least 1")
  return number


def not_negative(text: str) -> int:
  """Returns the integer in a string; it must not be negative."""
  number = _whole(text)
  if number < 0:
    raise argparse.ArgumentTypeError(f"{text} is below 0")
  return number


def _whole(text):
  try:
    return int(text)
  except ValueError:
    raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
  """Returns the parser of a command, whose help is the docstring of its module."""
  return argparse.ArgumentParser(
      prog=name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_gin(parser: argparse.ArgumentParser, file: str | None = None,
            param: str | None = None) -> None:
  """Adds --gin_file and --gin_param, with these help texts, and --module_import."""
  parser.add_argument("--gin_file", action="append", default=[], metavar="FILE",
                      help=file)
  parser.add_argument("--gin_param", action="append", default=[], metavar="BINDING",
                      help=param)
  add_modules(parser)


def add_modules(parser: argparse.ArgumentParser) -> None:
  """Adds --module_import, as the trainer has it."""
  parser.add_argument("--module_import", action="append", default=[], metavar="MODULE",
                      help="a module that registers tasks or attentions; repeat it")


def check_folders(*paths: str | None) -> None:
  """Raises a ValueError if a file cannot be written, before hours of work.

  Args:
    *paths: the paths of the files to write; None for a file that nobody asked for.
  """
  for path in filter(None, paths):
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
      raise checks.Error(
          f"cannot write {path!r}: there is no folder {folder!r}; make it first.")


def check_picture(path: str | None) -> None:
  """Raises a ValueError if matplotlib cannot write a picture of this name.

  Args:
    path: the path of the picture; None if nobody asked for one.
  """
  kinds = FigureCanvasBase.get_supported_filetypes()
  if path and os.path.splitext(path)[1][1:].lower() not in kinds:
    raise checks.Error(f"cannot write {path!r}: its ending is not that of a picture; "
                       f"let it end in .png, or in one of {', '.join(sorted(kinds))}.")
