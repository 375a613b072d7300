"""Imports TensorFlow without its start-up notices.

Some of them are printed whatever `TF_CPP_MIN_LOG_LEVEL` says: by libraries that
find their own kind registered twice, and by a logging library before it has read
its settings. So while TensorFlow is imported, its lines on standard error pass
through a process of its own: where the import ends the program, as on a processor
that lacks an instruction, its last words are still printed.
"""

from collections.abc import Iterator
import contextlib
import os
import subprocess
import sys

from synthesizer_mtf import patches

_NOTICES = (
    r"^[IW]0000 |^WARNING: All log messages before absl::InitializeLog"
    r"|Unable to register cu[A-Z]+ factory|omputation.placer.*already registered")

# In Python, since not every machine has a `grep`.
_FILTER = """
import re, sys
for line in sys.stdin.buffer:
  if not re.search(sys.argv[1].encode(), line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


def import_tensorflow() -> None:
  """Imports it; notices are printed if the user asks for them, with level 0 or 1."""
  wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1")
  if "tensorflow" in sys.modules or wanted:
    return
  with filtered(_NOTICES):
    import tensorflow  # noqa: F401


@contextlib.contextmanager
def filtered(pattern: str) -> Iterator[None]:
  """Keeps lines of a pattern off standard error.

  Args:
    pattern: a string, a regular expression.

  Yields:
    nothing; in the `with` block the lines of C++ are filtered as well. Where
    there is no other process or no standard error, nothing is.
  """
  try:
    kept = os.dup(2)
    others = subprocess.Popen([sys.executable, "-I", "-S", "-c", _FILTER, pattern],
                              stdin=subprocess.PIPE, stdout=kept)
  except OSError:
    yield
    return
  try:
    patches.call("standard error", os, others.stdin.fileno(), 2)
    yield
  finally:
    sys.stderr.flush()
    patches.call("standard error", os, kept, 2)
    os.close(kept)
    others.communicate()
