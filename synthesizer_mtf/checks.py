"""Checks of parameters, with messages that name the parameter in gin."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
import difflib
import numbers
import os
import queue
import socket
import threading
import time
from typing import Any
import urllib.request

_STORAGE = "storage.googleapis.com"
_SECONDS = 2  # Far more than a connection takes.


# The names of the command's parameters where another way in has others.
_NAMES: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("_NAMES")


class Error(ValueError):
  """A check failed. The message says all that the user needs, with the remedy."""


@contextlib.contextmanager
def calling(names: Mapping[str, str]) -> Iterator[None]:
  """Makes messages within a `with` block call parameters as another way in does.

  Of blocks within each other the outer one is the way in.

  Args:
    names: a dict from names of gin or of the command's flags to those of the way in.
  """
  token = _NAMES.set({**names, **_NAMES.get({})})
  try:
    yield
  finally:
    _NAMES.reset(token)


def called(parameter: str) -> str:
  """The name of a parameter in the way in that is used.

  Args:
    parameter: its name in gin, or the command's flag.
  """
  return _NAMES.get({}).get(parameter, parameter)


def is_whole(value: Any, least: int = 1) -> bool:
  """Whether `value` is an integer of at least `least`; booleans are not."""
  return (isinstance(value, int) and not isinstance(value, bool) and
          value >= least)


def require(fits: bool, name: str, value: Any, needed: str,
            remedy: str = "change it") -> None:
  """Raises a ValueError about the value of a parameter unless it fits.

  Args:
    fits: whether the value fits.
    name: the gin name of the parameter.
    value: the value of the parameter.
    needed: what it must do or be, such as "be True or False".
    remedy: what to do.
  """
  if not fits:
    raise Error(f"`{name}` is {value!r} but must {needed}; {remedy}.")


def requirement(fits: Callable[[Any], bool], needed: str,
                remedy: str = "change it") -> Callable[[str, Any], None]:
  """Makes a check, a function of (name, value); the arguments are as in `require`."""
  def check(name, value):
    require(fits(value), name, value, needed, remedy)

  return check


def check_whole(name: str, value: Any, least: int = 1,
                remedy: str | None = None) -> None:
  """Raises a ValueError unless `value` is an integer of at least `least`.

  `name` is the parameter in gin; `remedy` says what to do, if it is not to change it.
  """
  require(is_whole(value, least), name, value, f"be {integer(least)}",
          remedy or f"change `{name}`")


def integer(least: int) -> str:
  """The words for an integer of at least `least`."""
  return "a positive integer" if least == 1 else f"an integer of at least {least}"


def check_boolean(name: str, value: Any, or_none: bool = False) -> None:
  """Raises a ValueError unless `value` is True or False, or None if allowed."""
  require(isinstance(value, bool) or (or_none and value is None), name, value,
          "be None, True or False" if or_none else "be True or False")


def is_number(value: Any) -> bool:
  """Whether `value` is a number; booleans are not."""
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


RATE = "a number of at least 0 and below 1"


def is_rate(value: Any) -> bool:
  """Whether `value` is a rate of dropout: `RATE`.

  Mesh TensorFlow keeps elements with probability 1 - rate. So it drops everything with
  a rate of 10, and nothing with a rate of -0.5, and divides by 0 with a rate of 1.
  """
  return is_number(value) and 0 <= value < 1


def check_not_negative(name: str, value: Any) -> None:
  """Raises a ValueError unless `value` is a number of at least 0."""
  require(is_number(value) and value >= 0, name, value, "be a number of at least 0",
          f"change `{name}`")


def did_you_mean(wrong: str, names: Iterable[str], near_only: bool = False) -> str:
  """A sentence with the names that a wrong name may stand for, or "".

  Args:
    wrong: an unknown name.
    names: the valid names.
    near_only: whether to return "" if no name is similar. If False, the sentence then
      lists all names, unless there are too many.
  """
  names = sorted(set(names))
  near = difflib.get_close_matches(str(wrong), names, n=3)
  if near:
    return f" Did you mean {' or '.join(near)}?"
  listed = not near_only and 0 < len(names) < 30
  return f" There are {', '.join(names)}." if listed else ""


def check_regular_file(what: str, path: str) -> None:
  """Raises a ValueError if a local path is a pipe, a socket or a device.

  Args:
    what: the name of the path in the message.
    path: the path of a file to read, often more than once.
  """
  if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
    raise Error(f"{what} names {path!r}, which is not a regular file, but files are "
                "read more than once; save its content in a file, and name that file.")


def unreachable(path: str) -> str:
  """Why a file cannot be read, if it lies in cloud storage and there is no network.

  TensorFlow would try for half a minute.

  Returns:
    the reason; "" for other paths, and if a proxy may know the way.
  """
  return no_network([(_STORAGE, 443)]) if path.startswith("gs://") else ""


def no_network(addresses: Collection[tuple[str, int]]) -> str:
  """Why none of some hosts answers, in seconds, as a name server may take minutes.

  Args:
    addresses: pairs of a host and a port.

  Returns:
    the reason; "" if one host answers, if a proxy may know the way, and for no hosts.
  """
  if not addresses or urllib.request.getproxies():
    return ""
  answers: queue.SimpleQueue[str] = queue.SimpleQueue()

  def connect(address):
    try:
      socket.create_connection(address, _SECONDS).close()
      answers.put("")
    except OSError as error:
      answers.put(f": {error.strerror or error}")

  for address in addresses:
    threading.Thread(target=connect, args=[address], daemon=True).start()
  end, reason = time.monotonic() + 2 * _SECONDS, ": no answer"
  for _ in addresses:
    try:
      reason = answers.get(timeout=max(0, end - time.monotonic()))
    except queue.Empty:
      break
    if not reason:
      return ""
  return f"no network to {', '.join(sorted({host for host, _ in addresses}))}{reason}"


class LengthError(Error):
  """A sequence is longer than a parameter allows.

  Attributes:
    problem: the message without its second remedy, which is of T5's command.
  """

  def __init__(self, problem: str):
    super().__init__(f"{problem}, or shorten the task's sequences with "
                     f"`{called('utils.run.sequence_length')}`.")
    self.problem = problem


def check_length(name: str, max_length: int, length: int) -> None:
  """Raises a LengthError, naming the gin parameter, if length > max_length."""
  if length > max_length:
    raise LengthError(
        f"`{name}` is {max_length} but the sequence has length {length}; raise "
        f"`{name}` to {length} or more")
