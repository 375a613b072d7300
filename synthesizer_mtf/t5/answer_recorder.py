"""Notes several answers to each input, with their log-likelihoods.

Within `recording`, our decoders and classifiers return <int32>[batch, answers, length],
the best first, in place of [batch, length], and record the log-likelihoods and numbers
of tokens.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention import intermediates
import tensorflow.compat.v1 as tf

PARAMETER = "synthesizer_answers.number"
_RECORDER: contextvars.ContextVar["Recorder | None"] = contextvars.ContextVar(
    "answers", default=None)


class Answers(NamedTuple):
  """The answers of a decoder, best first.

  Attributes:
    ids: <int32>[batch, answers, length].
    scores: <float32>[batch, answers], the sum of the log-probabilities of the tokens,
      with the end of sequence.
    lengths: <int32>[batch, answers], the number of these tokens.
  """
  ids: mtf.Tensor
  scores: mtf.Tensor
  lengths: mtf.Tensor


class Recorder:
  """What `recording` yields.

  Attributes:
    number: the number of answers to an input.
    tensors: by name, "scores" <float32>[batch, answers] and "lengths" <int32>[batch,
      answers], once they are lowered.
  """

  def __init__(self, number: int):
    self.number = number
    self.tensors: dict[str, tf.Tensor] = {}

  def check(self, most: int, but: str) -> None:
    """Raises a ValueError, which ends with `but`, if `most` answers are too few."""
    if self.number > most:
      raise checks.Error(f"`{PARAMETER}` is {self.number}, but {but}")

  def record(self, answers: Answers) -> mtf.Tensor:
    """Notes the scores and lengths of the answers, and returns their ids."""
    def receive(scores, lengths, is_tpu):
      del is_tpu
      self.tensors.update(scores=scores, lengths=lengths)

    intermediates.CaptureOperation(
        [mtf.anonymize(answers.scores), mtf.anonymize(answers.lengths)], receive)
    return answers.ids


@contextlib.contextmanager
def recording(number: int) -> Iterator[Recorder]:
  """Makes decoders record so many answers to each input, within a `with` block."""
  recorder = Recorder(number)
  before = _RECORDER.set(recorder)
  try:
    yield recorder
  finally:
    _RECORDER.reset(before)


def current() -> Recorder | None:
  """The recorder of the current block, or None."""
  return _RECORDER.get()
