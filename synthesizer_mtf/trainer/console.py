"""Filters the log lines of libraries that the command prints."""

import logging.config
import os
import re

from absl import logging as absl_logging

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_TASKS = os.path.join(os.path.dirname(_PACKAGE), "tasks")
# Log lines of other packages that a user waits for: scores, files and the end.
_TOLD = re.compile(
    r"eval/\S+ at step|(Saving|Writing|Evaluat|Restoring parameters|Averaging)"
    r"|Loss for final step|Exporting|SavedModel written|Decod|scores? written")
# Warnings that no user can act on.
_NOISE = re.compile(
    r"is deprecated and will be removed|eval_on_tpu ignored|"
    r"Using default tf glorot_uniform_initializer|It seems that global step")


def for_a_person() -> None:
  """Logs plain lines, and only useful lines of other packages.

  `--verbosity=1` logs all lines unchanged.
  """
  # absl has its own logger, and would print each line a second time.
  logging.config.dictConfig({
      "version": 1, "incremental": True,
      "loggers": {"tensorflow": {"propagate": False}}})
  # absl's logger ignores filters, but its handler applies them.
  for handler in (absl_logging.get_absl_handler().python_handler,
                  *logging.getLogger("tensorflow").handlers):
    handler.addFilter(_is_of_use)
    handler.setFormatter(_Plain(handler.formatter))
  absl_logging.get_absl_handler().setFormatter(
      _Plain(absl_logging.get_absl_handler().formatter))


def _is_wanted_whole():
  return absl_logging.get_verbosity() >= absl_logging.DEBUG


def _is_of_use(record: logging.LogRecord) -> bool:
  """Whether a line is of use to a user; with `--verbosity=1` every line is."""
  if _is_wanted_whole():
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
    if _is_wanted_whole() and self._whole:
      return self._whole.format(record)
    level = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
    return level + record.getMessage()
