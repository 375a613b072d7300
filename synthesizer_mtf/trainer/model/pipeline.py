"""The trainer's model function: Mesh TensorFlow's, with named steps around it.

An Estimator calls its model function for each graph. A step is a context manager of a
`Call`: what is before its `yield` runs before the model is built, and what is after it
may change the specification.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any


class Call:
  """A call of the model function.

  Attributes:
    features: tensors, by the names of features.
    mode: one of `tf.estimator.ModeKeys`.
    spec: the specification, once the model is built.
  """

  def __init__(self, features: Mapping[str, Any], mode: str) -> None:
    """Takes two arguments of the model function."""
    self.features, self.mode = features, mode
    self.spec: Any = None

  def change(self, **fields: Any) -> None:
    """Replaces fields of the specification."""
    self.spec = self.spec._replace(**fields)


Step = Callable[[Call], contextlib.AbstractContextManager[None]]


def around(model_fn: Callable[..., Any], steps: Sequence[Step]) -> Callable[..., Any]:
  """A model function that builds what `model_fn` builds, within the steps."""
  def stepped(features, labels, mode, params=None, config=None):
    call = Call(features, mode)
    with contextlib.ExitStack() as stack:
      for step in steps:
        stack.enter_context(step(call))
      call.spec = model_fn(features, labels, mode, params, config)
    return call.spec

  return stepped
