"""Checks of parameters, with messages that name the parameter in gin."""

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


def check_length(name: str, max_length: int, length: int) -> None:
  """Raises a ValueError, naming the gin parameter, if length > max_length."""
  if length > max_length:
    raise Error(
        f"`{name}` is {max_length} but the sequence has length {length}; raise "
        f"`{name}` to {length} or more, or shorten the task's sequences with "
        "`utils.run.sequence_length`.")
