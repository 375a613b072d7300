"""Folders that are written as a whole, or not at all."""

from collections.abc import Iterator
import contextlib
import errno
import os
import pathlib
import shutil
import uuid

from synthesizer_mtf import checks
import tensorflow.compat.v1 as tf

# The gin file that the tools read to find a folder's model.
OPERATIVE = "operative_config.gin"


@contextlib.contextmanager
def new(path: str) -> Iterator[pathlib.Path]:
  """Makes a temporary folder to write to, which replaces `path` in the end.

  Args:
    path: the path of a local folder that does not exist, or is empty.

  Yields:
    the path of the temporary folder, which is beside `path`. It is removed if the
    `with` block fails.

  Raises:
    ValueError: `path` is a file or a folder that is not empty, or cannot be written.
  """
  check(path)
  path = os.path.abspath(path)
  beside = os.path.join(
      os.path.dirname(path), f".{os.path.basename(path)}.{uuid.uuid4().hex[:8]}")
  try:
    os.makedirs(beside)
    yield pathlib.Path(beside)
    os.rename(beside, path)
  except FileNotFoundError:
    raise
  except (OSError, tf.errors.OpError) as error:
    raise checks.Error(
        f"--output is {path!r}, which cannot be written ({_reason(error)}); make "
        "room or give permission, or name another. Nothing was written.") from error
  finally:
    shutil.rmtree(beside, ignore_errors=True)


def check(path: str) -> None:
  """Raises a ValueError unless a folder is local, and new or empty."""
  if "://" in path:
    raise checks.Error(f"--output is {path!r}, but only local folders can be "
                       "written; name one, and copy it.")
  if os.path.lexists(path) and not os.path.isdir(path):
    raise checks.Error(f"--output is {path!r}, which is not a folder; name a new one.")
  if os.path.isdir(path) and os.listdir(path):
    raise checks.Error(f"--output is {path!r}, which is not empty (it holds "
                       f"{sorted(os.listdir(path))[0]!r}); name a new folder.")


def _reason(error):
  """Returns the system's message for an error; TensorFlow's is much longer."""
  text = getattr(error, "strerror", None) or str(error)
  known = [sentence for sentence in map(os.strerror, errno.errorcode)
           if sentence in text]
  return max(known, key=len) if known else text.splitlines()[0]
