"""What an exported model reads: a language model's inputs have no end of sequence.

Mesh TensorFlow's export ends all inputs with an end of sequence, so that an exported
language model would continue after it. Mode `infer` continues the inputs themselves.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
from typing import Any

import tensorflow.compat.v1 as tf

_EOS = 1  # Mesh TensorFlow's export has this number written into it.
_SERVED = contextvars.ContextVar("_SERVED", default=False)


@contextlib.contextmanager
def served() -> Iterator[None]:
  """Builds models that TensorFlow serves, and that return text, within a block."""
  token = _SERVED.set(True)
  try:
    yield
  finally:
    _SERVED.reset(token)


def is_served() -> bool:
  """Whether the model that is built is one to export."""
  return _SERVED.get()


def continuing(serving_input_fn: Callable[[], Any]) -> Callable[[], Any]:
  """Makes an exported language model continue its inputs.

  The function that makes the `ServingInputReceiver` of an export becomes one without
  the end of sequence that ends a row of "inputs".
  """
  def wrapped():
    receiver = serving_input_fn()
    features = dict(receiver.features)
    if "inputs" in features:
      features["inputs"] = without_end(features["inputs"])
    return receiver._replace(features=features)

  return wrapped


def without_end(ids: tf.Tensor) -> tf.Tensor:
  """<int>[batch, length]: the ids, with 0 for an end of sequence that ends a row."""
  following = tf.concat([ids[:, 1:], tf.zeros_like(ids[:, :1])], 1)
  is_end = tf.equal(ids, _EOS) & tf.equal(following, 0)
  return tf.where_v2(is_end, tf.zeros_like(ids), ids)
