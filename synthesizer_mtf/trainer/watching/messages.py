"""One last line for an exception that ends a command: what is wrong, and what to do.

Our own checks raise a `checks.Error`, whose message says all that the user needs. For
any other exception the line also names a file with the traceback.
"""

from collections.abc import Iterator
import contextlib
import errno
import os
import re
import signal
import sys
import tempfile
import threading
import traceback

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import patches
import tensorflow.compat.v1 as tf

# The beginnings of lines that gin appends to the message of an exception.
_PLACES = ("  In call to configurable", "  In file", "  In bindings string")
_DAMAGED = (
    "a file of the data set or of a cache is damaged, as by an interrupted copy: "
    "prepare the data set, or make the cache, again.")
# The operating system's reasons why a file cannot be written.
UNWRITTEN = tuple(map(os.strerror, (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)))
_IN_GRAPH = "Graph execution error:"
_WHOLE = "  In call to configurable 'run'"  # All calls are inside `run`.


@contextlib.contextmanager
def ending(name: str, stopped: str = "Stopped.") -> Iterator[None]:
  """Ends a command with one last line instead of an exception.

  The exit status is 1, or 128 plus the signal's number if a signal ended the command.

  Args:
    name: the command, which begins the line.
    stopped: the line after a signal without a message of its own.
  """
  try:
    with (checks.calling({flag: flag for flag in ("--gin_file", "--gin_param")}),
          explained_files()):
      yield
  except KeyboardInterrupt as stop:
    with contextlib.suppress(OSError):  # The terminal may be closed.
      print(str(stop) or stopped, file=sys.stderr)
    sys.exit(128 + getattr(stop, "number", signal.SIGINT))
  except Exception as error:
    sys.exit(last_line(name, error))


@contextlib.contextmanager
def explained_files() -> Iterator[None]:
  """Raises one sentence for a file that cannot be written, or is in an absent cloud.

  TensorFlow's thread that writes events raises the same error once more; its traceback
  is not printed.
  """
  try:
    with patches.wrapped("thread errors", threading, _without_files):
      yield
  except checks.Error:
    raise
  except Exception as error:  # Writers of events raise several kinds.
    if said := _unwritten(error) or _unreached(error):
      raise checks.Error(said) from error
    raise


@contextlib.contextmanager
def without_calls() -> Iterator[None]:
  """Raises our errors of a `with` block without the calls that gin adds to them."""
  try:
    yield
  except checks.Error as error:
    sentence, places = _split(error)
    if not places:
      raise
    raise checks.Error(sentence) from error


def _without_files(excepthook):
  def hook(args):
    if args.exc_value is None or not _unwritten(args.exc_value):
      excepthook(args)

  return hook


def _unwritten(error):
  """A sentence about a file that cannot be written; None for another error."""
  path, why = getattr(error, "filename", None), getattr(error, "strerror", None)
  if why not in UNWRITTEN:  # TensorFlow writes "PATH; REASON", perhaps after a place.
    told = re.search(rf"(?:^|: )((?:(?!: )[^\n;])*); ({'|'.join(UNWRITTEN)})",
                      getattr(error, "message", None) or str(error), re.MULTILINE)
    if not told:
      return None
    path, why = told.groups()
  return (f"{path or 'a file'} could not be written: {why}; make room there, or name "
          "another place.")


def _unreached(error):
  """A sentence about a file in a cloud without a network; None for another error."""
  said = getattr(error, "message", None) or ""
  told = re.search(
      r"HTTP request: (.+?)\s+when \w.*?(\w+://[^\s;]+)", said, re.DOTALL)
  if not told:
    return None
  why = told[1].rpartition("error details: ")[2].splitlines()[0]
  return (f"{told[2]} cannot be reached ({why}); check the network and the "
          "permissions, or copy it to this machine and name the copy.")


def last_line(name: str, error: Exception) -> str:
  """Returns the last line of a command, and prints the lines above it.

  The lines above it are the traceback, with `--verbosity=1`, and gin's location.
  """
  trace = "".join(traceback.format_exception(error))
  if logging.get_verbosity() >= logging.DEBUG:
    sys.stderr.write(trace)
  sentence, places = _split(error)
  sys.stderr.writelines(f"{place}\n" for place in places)
  end = "" if isinstance(error, checks.Error) else _keep(name, trace)
  if isinstance(error, tf.errors.DataLossError):
    sentence = f"{sentence.removesuffix('.')}; {_DAMAGED}"
  return f"{name}: {sentence}{_bindings_in(sentence)}{end}"


def _keep(name, trace):
  """Writes a traceback to a file, and returns a sentence that names the file."""
  try:
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{name}_", suffix=".txt", delete=False, encoding="utf-8",
        errors="backslashreplace") as f:
      f.write(trace)
  except OSError:
    sys.stderr.write(trace)
    return " (its traceback is above)"
  return f" (its traceback is in {f.name})"


def _split(error):
  """Separates an exception's message from gin's location.

  gin appends the configurable, its scope and the line of the gin file, on separate
  lines. For a macro without a value it appends the whole configuration, which is
  dropped. Messages of other packages are cut to the first paragraph, as TensorFlow
  lists operations below it. Messages with TensorFlow's own traceback are cut to the
  last paragraph.

  Returns:
    (the message on one line, a list of gin's lines).
  """
  text, _, _ = str(error).partition(" in config string:")
  lines = text.splitlines()
  first = next((i for i, line in enumerate(lines) if line.startswith(_PLACES)),
               len(lines))
  said = re.split(r"\n\s*\n", "\n".join(lines[:first]).strip())
  if isinstance(error, tf.errors.OpError) and said[0] == _IN_GRAPH:
    said = [_root_cause("\n".join(lines[1:first]))]
  elif not isinstance(error, checks.Error):
    said = said[-1:] if said[0] == "in user code:" else said[:1]
  sentence = " ".join(map(str.strip, "\n".join(said).splitlines()))
  if " " not in sentence:  # Such as "'key'" of a KeyError, or an empty message.
    sentence = f"{type(error).__name__}: {sentence}".removesuffix(": ")
  return sentence, [re.sub(r" \(<.*>\)$", "", line) for line in lines[first:]
                    if not line.startswith(_WHOLE)]


def reason(error: tf.errors.OpError) -> str:
  """Returns the first cause of an error of TensorFlow, on one line."""
  first, _, rest = str(error.message).partition("\n")
  said = _root_cause(rest) if first.strip() == _IN_GRAPH else first
  return " ".join(said.split())


def _root_cause(text):
  """Returns the first cause of an error of TensorFlow's graph.

  The text is what follows the first line of TensorFlow's message: the place where the
  program made the operation, the cause, and the operation in double brackets. The cause
  has a number if there are several.
  """
  cause = re.split(r"^Node: .*\n", text, maxsplit=1, flags=re.MULTILINE)[-1]
  cause = re.split(r"^\s*\(0\) \w+: ", cause, maxsplit=1, flags=re.MULTILINE)[-1]
  return re.split(r"\s*\[\[", cause.strip(), maxsplit=1)[0] or _IN_GRAPH


def _bindings_in(sentence: str) -> str:
  """Returns the gin bindings of strings that a message quotes, in parentheses.

  Messages about a file, a task or a vocabulary do not always say which parameter named
  it.
  """
  lines = []
  # By default gin breaks long lines and values.
  for line in gin.config_str(max_line_length=10_000).splitlines():
    parameter, _, value = line.partition(" = ")
    text = value.strip("'\"")
    cited = value in sentence or ("." in text or "/" in text) and text in sentence
    if text != value and cited and parameter not in sentence:
      lines.append(line)
  return f" ({'; '.join(lines)})" if lines else ""
