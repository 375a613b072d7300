"""What a person sees of the log, in the command and while a method of `MtfModel` runs.

Both show plain lines: our own, and those of other packages that a user waits for. The
command's log is absl's. In Python the handlers of "absl" and "tensorflow" belong to the
user, so they are put back when the method ends.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
import logging.config
import os
import re
import sys

from absl import flags
from absl import logging as absl_logging
from absl.logging import converter
from synthesizer_mtf import checks
import tensorflow.compat.v2 as tf

_PACKAGE = os.path.dirname(os.path.abspath(checks.__file__))
_OWN_TASKS = os.path.join(os.path.dirname(_PACKAGE), "tasks")
# Log lines of other packages that a user waits for: scores, files and the end.
_RESULT = re.compile(r"eval/((?P<task>[^/]+)/)?\S+ at step|Saving dict for global step")
_TOLD = re.compile(
    rf"{_RESULT.pattern}|(Saving|Writing|Evaluat|Restoring parameters|Averaging)"
    r"|Loss for final step|Exporting|Decod|scores? written")
# Warnings that no user can act on.
_NOISE = re.compile(
    r"is deprecated and will be removed|eval_on_tpu ignored|"
    r"Using default tf glorot_uniform_initializer|It seems that global step|"
    r"Reraising captured error|"
    r"(?s:Object was never used.*assert_less_equal)|"  # Mesh's export drops it.
    r"non-resource variables are not supported")

# What the running evaluation reads, in words, by task; "" stands for all tasks.
_EVALUATED: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "_EVALUATED")


@contextlib.contextmanager
def evaluating(data: Mapping[str, str]) -> Iterator[None]:
  """Adds to each line with results, within a `with` block, the data that they are of.

  These are what `data_checks.read_by` returns.
  """
  token = _EVALUATED.set(data)
  try:
    yield
  finally:
    _EVALUATED.reset(token)


def is_for_a_person() -> bool:
  """Whether the log is for a person: at a verbosity below DEBUG."""
  return absl_logging.get_verbosity() < absl_logging.DEBUG


def in_notebook() -> bool:
  """Whether this program runs in a notebook, of Jupyter, Colab or an editor."""
  shells = sys.modules.get("ipykernel.zmqshell")
  if shells is None:
    return False
  from IPython import get_ipython
  return isinstance(get_ipython(), shells.ZMQInteractiveShell)


def for_a_person() -> None:
  """Makes the command's log one for a person, until the process ends.

  `--verbosity=1` logs all lines unchanged.
  """
  # absl has its own logger, and would print each line a second time.
  _configure("tensorflow", propagate=False)
  # absl's logger ignores filters, but its handler applies them.
  for handler in (absl_logging.get_absl_handler().python_handler,
                  *logging.getLogger("tensorflow").handlers):
    handler.addFilter(_is_of_use)
    handler.setFormatter(_Plain(handler.formatter))
  absl_logging.get_absl_handler().setFormatter(
      _Plain(absl_logging.get_absl_handler().formatter))


@contextlib.contextmanager
def shown() -> Iterator[None]:
  """Shows the log to a person within a `with` block, in Python or a notebook.

  A verbosity that the user has given to absl's log counts: "debug" shows all lines,
  "warning" only warnings. Other handlers than those of the console get the lines, too.
  """
  loggers = absl_logging.get_absl_logger(), tf.get_logger()
  if any(_Shown in map(type, logger.handlers) for logger in loggers) or _is_commands():
    yield
    return
  with contextlib.ExitStack() as stack:
    for logger in loggers:
      stack.enter_context(_with_handler(logger, _Shown(_level())))
    yield


def _is_commands():
  """Whether the command has made absl's handler one for a person."""
  return _is_of_use in absl_logging.get_absl_handler().python_handler.filters


def _level():
  """The level of Python's logging that the user has chosen, or INFO."""
  if flags.FLAGS["verbosity"].using_default_value:
    return logging.INFO
  return converter.absl_to_standard(
      min(absl_logging.get_verbosity(), absl_logging.DEBUG))


class _Shown(logging.StreamHandler):
  """Prints plain lines; in a notebook not to standard error, which is shown in red."""

  def __init__(self, level):
    super().__init__(sys.stdout if in_notebook() else sys.stderr)
    self.setLevel(level)
    self.addFilter(_is_of_use)
    self.setFormatter(_Plain(logging.Formatter(
        "%(asctime)s %(levelname)s %(filename)s:%(lineno)d] %(message)s")))


@contextlib.contextmanager
def _with_handler(logger, handler):
  """Gives a logger our handler, and no other that prints; restores it afterwards."""
  before = logger.handlers[:], logger.propagate, logger.level
  inherited = logging.root.handlers if before[1] else []
  others = [other for other in {*before[0], *inherited} if not _prints(other)]
  level = handler.level
  if logger.name != "absl":  # Another level than none is the user's.
    level = logger.level or max(level, logging.INFO)
  _set(logger, [handler, *others], False, level)
  try:
    yield
  finally:
    _set(logger, *before)


def _set(logger, handlers, propagate, level):
  """Gives a logger handlers in the place of its own, and the rest of its settings."""
  for handler in logger.handlers[:]:
    logger.removeHandler(handler)
  for handler in handlers:
    logger.addHandler(handler)
  _configure(logger.name, propagate=propagate, level=level)


def _configure(logger, **settings):
  """Sets the level of a logger, and whether the root's handlers get its lines, too."""
  logging.config.dictConfig({
      "version": 1, "incremental": True, "loggers": {logger: settings}})


def _prints(handler):
  if handler is absl_logging.get_absl_handler():
    handler = handler.python_handler
  return isinstance(handler, logging.StreamHandler) and handler.stream in (
      sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _is_of_use(record: logging.LogRecord) -> bool:
  """Whether a line is of use to a user; with `--verbosity=1` every line is."""
  if not is_for_a_person():
    return True
  if record.filename == "resource_reader.py":  # gin fails anyway if a file is missing.
    return False
  if record.levelno >= logging.WARNING:
    return not _NOISE.search(record.getMessage())
  return record.pathname.startswith((_PACKAGE, _OWN_TASKS)) or bool(
      _TOLD.match(record.getMessage()))


class _Plain(logging.Formatter):
  """The message alone; in front of a warning or error, its level."""

  def __init__(self, whole):
    """Takes the formatter for `--verbosity=1`."""
    super().__init__()
    self._whole = whole

  def format(self, record):
    if self._whole and not is_for_a_person():
      return self._whole.format(record)
    level = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
    message = record.getMessage()
    if result := _RESULT.match(message):
      data = _EVALUATED.get({})
      if words := data.get(result["task"] or "", data.get("")):
        message += f" ({words})"
    return level + message
