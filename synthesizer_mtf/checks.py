"""Checks of parameters, with messages that name the parameter in gin."""

from collections.abc import Iterable
import difflib
import os
from typing import Any


class Error(ValueError):
  """A check failed: the message is all that the user needs, with the remedy."""


def is_whole(value: Any, least: int = 1) -> bool:
  """Whether `value` is a whole number of at least `least`; True is none."""
  return (isinstance(value, int) and not isinstance(value, bool) and
          value >= least)


def check_whole(name: str, value: Any, least: int = 1,
                remedy: str | None = None) -> None:
  """Raises a ValueError unless `value` is a whole number of at least `least`.

  Args:
    name: that of the parameter in gin.
    value: what it is bound to.
    least: an integer.
    remedy: what to do, if it is more than to change the parameter.
  """
  if not is_whole(value, least):
    raise Error(
        f"`{name}` is {value!r} but must be a whole number of at least {least}; "
        f"{remedy or f'change `{name}`'}.")


def check_boolean(name: str, value: Any, or_none: bool = False) -> None:
  """Raises a ValueError unless `value` is True or False, or None if allowed."""
  if isinstance(value, bool) or (or_none and value is None):
    return
  choices = "None, True or False" if or_none else "True or False"
  raise Error(
      f"`{name}` is {value!r} but must be {choices}; change it.")


def check_not_negative(name: str, value: Any) -> None:
  """Raises a ValueError unless `value` is a number of at least 0."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not number or not value >= 0:
    raise Error(
        f"`{name}` is {value!r} but must be a number of at least 0; change "
        f"`{name}`.")


def did_you_mean(wrong: str, names: Iterable[str], near_only: bool = False) -> str:
  """The names that a wrong one may stand for, as a sentence of its own, or "".

  Args:
    wrong: a name that is not known.
    names: the right ones.
    near_only: whether to say nothing where none is similar; else all are listed,
      if they are not too many.
  """
  names = sorted(set(names))
  near = difflib.get_close_matches(str(wrong), names, n=3)
  if near:
    return f" Did you mean {' or '.join(near)}?"
  return "" if near_only or len(names) >= 30 else f" There are {', '.join(names)}."


def check_regular_file(what: str, path: str) -> None:
  """Raises a ValueError if a path of this machine is a pipe, a socket or a device.

  Args:
    what: names the path in the message.
    path: of what shall be read, often more than once.
  """
  if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
    raise Error(f"{what} names {path!r}, which is no regular file, and files are read "
                "more than once; write what it gives to a file, and name that.")


def check_length(name: str, max_length: int, length: int) -> None:
  """Raises a ValueError, naming the gin parameter, if length > max_length."""
  if length > max_length:
    raise Error(
        f"`{name}` is {max_length} but the sequence has length {length}; raise "
        f"`{name}` to {length} or more, or shorten the task's sequences with "
        "`utils.run.sequence_length`.")
