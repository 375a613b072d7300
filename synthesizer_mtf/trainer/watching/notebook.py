"""Our errors in IPython: the user's lines and the sentence; `%tb` shows the rest."""

import os
import sys
from types import TracebackType
from typing import Any

from synthesizer_mtf import checks

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(checks.__file__)), "")


def apply() -> None:
  """Shows our errors, and interrupts of our code, without the lines of packages.

  Where IPython does not run, or has another handler of errors, nothing changes.
  """
  shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
  if shell is not None and not shell.custom_exceptions:
    shell.set_custom_exc((checks.Error, KeyboardInterrupt), _show)


def _show(shell: Any, kind: type[BaseException], error: BaseException,
          trace: TracebackType, tb_offset: int | None = None) -> None:
  """Shows an exception as IPython does, but only the frames above this package.

  The exception keeps all frames and its causes, which `%tb` and `%debug` read.
  """
  last = trace
  while last.tb_next and not last.tb_next.tb_frame.f_code.co_filename.startswith(
      _PACKAGE):
    last = last.tb_next
  rest, cause, is_alone = last.tb_next, error.__cause__, error.__suppress_context__
  try:
    if rest:
      last.tb_next = error.__cause__ = None  # It also hides the context.
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
  finally:
    last.tb_next, error.__cause__, error.__suppress_context__ = rest, cause, is_alone
