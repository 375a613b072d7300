"""The switches of this room: the one of everything, and whose models they are for.

Attention of this package is always computed by this room. Of the rest of a model, our
own command and `MtfModel` compute every part fast, whatever its attention is. T5's own
command, and code that builds a model of its own, get Mesh TensorFlow's numbers for a
model with a stock attention, unless gin binds `synthesizer_fast.enabled = True`.
"""

from collections.abc import Iterator
import contextlib
import contextvars

import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import stack

_SELECTOR = "synthesizer_mtf.synthesizer_fast"
_started: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "started", default=False)


@gin.configurable("synthesizer_fast", module="synthesizer_mtf")
def is_enabled(enabled: bool = True) -> bool:
  """Whether fast code may take the place of Mesh TensorFlow's.

  Args:
    enabled: False leaves attention to the plain formula of `attention/attend.py`, and
      everything else to Mesh TensorFlow, whatever the other switches are. True also
      computes models with a stock attention fast that T5's own command builds.

  Raises:
    ValueError: enabled is not a boolean.
  """
  checks.check_boolean("synthesizer_fast.enabled", enabled)
  return enabled


@contextlib.contextmanager
def started() -> Iterator[None]:
  """Computes all models that are built within a `with` block fast."""
  before = _started.set(True)
  try:
    yield
  finally:
    _started.reset(before)


def covers_models() -> bool:
  """Whether this room computes more of a model than its attention."""
  return is_enabled() and (_started.get() or bool(stack.choices()) or
                           ("", _SELECTOR) in gin_internals.bindings())


def is_on(name: str, value: bool) -> bool:
  """Whether a part of models is fast: by its own switch, and by those of all parts.

  Args:
    name: the gin name of the part's switch.
    value: its value.

  Raises:
    ValueError: value is not a boolean.
  """
  checks.check_boolean(name, value)
  return value and covers_models()
