"""Vocabularies that decode otherwise in a graph."""

from collections.abc import Callable
from typing import Any


def with_decode_tf(vocabulary: Any, decode_tf: Callable[[Any], Any]) -> Any:
  """Returns vocabularies with another `decode_tf`, and the rest of their own.

  Args:
    vocabulary: a vocabulary, or a tuple of those of the inputs and the targets.
    decode_tf: a function of a vocabulary that returns its `decode_tf`, each time that
      it is asked for, or raises an AttributeError if there is to be none.
  """
  if isinstance(vocabulary, tuple):
    return tuple(_Vocabulary(part, decode_tf) for part in vocabulary)
  return _Vocabulary(vocabulary, decode_tf)


class _Vocabulary:

  def __init__(self, vocabulary, decode_tf):
    self._vocabulary, self._decode_tf = vocabulary, decode_tf

  def __getattr__(self, name):
    if name == "decode_tf":
      return self._decode_tf(self._vocabulary)
    return getattr(self._vocabulary, name)
