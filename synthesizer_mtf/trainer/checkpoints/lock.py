"""A lock, so that one training at a time works in a folder.

Two trainings in one folder would overwrite each other's checkpoints and remove each
other's unfinished files, in two processes as well as in two threads of a notebook.

`flock` locks an open file. `lockf` would lock for the whole process: a second thread
would get the lock, too, and whoever closed the file first would unlock it for all.
"""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import socket

from absl import logging
from synthesizer_mtf import checks

_NAME = ".lock"


def acquire(folder: str, flag: str) -> int | None:
  """Locks a folder; the system unlocks it however this process ends.

  Args:
    folder: an existing folder.
    flag: what the message calls the flag or parameter that names it.

  Returns:
    a file descriptor; closing it unlocks the folder. None, with a warning, if the file
    system has no locks.

  Raises:
    ValueError: the folder is locked, by another process or by this one.
  """
  try:
    descriptor = os.open(os.path.join(folder, _NAME), os.O_CREAT | os.O_RDWR, 0o666)
  except OSError as error:  # Such as gs://BUCKET/DIR.
    return _warn(folder, error)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
    if holder == _here():
      holder = "this process"
    os.close(descriptor)
    if error.errno not in (errno.EACCES, errno.EAGAIN):
      return _warn(folder, error)
    raise checks.Error(
        f"`{flag}` is {str(folder)!r}, where {holder or 'another process'} is at work; "
        "wait for its end, or name another directory.") from None
  os.ftruncate(descriptor, 0)
  os.pwrite(descriptor, f"{_here()}\n".encode(), 0)
  return descriptor


def _here():
  return f"process {os.getpid()} on {socket.gethostname()}"


def _warn(folder, error):
  logging.warning(
      "%s cannot be locked (%s): see to it that no other process trains there.",
      folder, error.strerror)


@contextlib.contextmanager
def held(folder: str, flag: str) -> Iterator[None]:
  """Locks a folder as `acquire` does, but only within a `with` block."""
  descriptor = acquire(folder, flag)
  try:
    yield
  finally:
    if descriptor is not None:
      os.close(descriptor)
