"""Several answers to each input, with their log-likelihoods.

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
from synthesizer_mtf.attention.inputs import splits
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
    """Declares the number of answers."""
    self.number = number
    self.tensors: dict[str, tf.Tensor] = {}

  def record(self, found: Answers) -> mtf.Tensor:
    """Notes the scores and lengths of the answers, and returns their ids."""
    def receive(scores, lengths, is_tpu):
      del is_tpu
      self.tensors.update(scores=scores, lengths=lengths)

    intermediates.CaptureOperation(
        [mtf.anonymize(found.scores), mtf.anonymize(found.lengths)], receive)
    return found.ids


@contextlib.contextmanager
def recording(number: int) -> Iterator[Recorder]:
  """Makes decoders record so many answers to each input, within a `with` block."""
  recorder = Recorder(number)
  before = _RECORDER.set(recorder)
  try:
    yield recorder
  finally:
    _RECORDER.reset(before)


def recorder() -> Recorder | None:
  """The recorder of the current block, or None."""
  return _RECORDER.get()


def check_beams(number: int, beams: int) -> None:
  """Raises a ValueError if more answers are asked for than beams are kept."""
  if number > beams:
    raise checks.Error(
        f"`{PARAMETER}` is {number}, but beam search keeps {beams} answers; raise the "
        "beam size to at least that many, or ask for fewer.")


def check_samples(number: int, temperature: float) -> None:
  """Raises a ValueError if greedy decoding is asked for several answers."""
  if number > 1 and not temperature:
    raise checks.Error(
        f"`{PARAMETER}` is {number}, but greedy decoding finds one answer; bind "
        f"`Bitransformer.decode.beam_size` to at least {number}, or a temperature.")


def check_classes(number: int, classes: int) -> None:
  """Raises a ValueError if more answers are asked for than there are classes."""
  if number > classes:
    raise checks.Error(
        f"`{PARAMETER}` is {number}, but the targets have {classes} classes; ask for "
        f"at most {classes}.")


def with_samples(ids: mtf.Tensor, number: int) -> mtf.Tensor:
  """Repeats ids <int32>[batch, length] for each sample: [batch, beam, length]."""
  *batch, length = ids.shape.dims
  return mtf.broadcast(ids, [*batch, mtf.Dimension("beam", number), length])


def log_probability(logits: mtf.Tensor, token: mtf.Tensor,
                    is_whole: bool) -> mtf.Tensor:
  """The logarithm of a token's probability.

  Args:
    logits: <float>[..., vocab]
    token: <int32>[...]
    is_whole: whether each processor holds the whole vocabulary.

  Returns:
    <float32>[...]
  """
  vocab = logits.shape.dims[-1]
  logits = mtf.to_float(logits)
  if not is_whole:
    return mtf.gather(logits, token, vocab) - mtf.reduce_logsumexp(logits, vocab)

  def of_slice(logits, token):  # [..., vocab], [...] -> [...]
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=token, logits=logits)

  return splits.slicewise(
      of_slice, [logits, token], output_shape=token.shape, output_dtype=tf.float32,
      splittable_dims=token.shape.dims, grad_function=0)


def best_first(found: Answers) -> Answers:
  """Sorts samples <int32>[batch, beam, length] by their log-likelihoods."""
  beam = found.scores.shape.dims[-1]

  def of_slice(x, scores):  # [batch, beam, ...], [batch, beam] -> like x
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    return tf.gather(x, order, batch_dims=1)

  return Answers(*(splits.slicewise(
      of_slice, [x, found.scores], output_shape=x.shape, output_dtype=x.dtype,
      splittable_dims=[d for d in x.shape.dims if d != beam], grad_function=0)
                   for x in found))


def alone(found: Answers) -> Answers:
  """Adds the dimension of the answers to one answer of each input."""
  one = mtf.Dimension("beam", 1)
  rank = found.scores.shape.ndims
  return Answers(*(mtf.reshape(x, [*x.shape.dims[:rank], one, *x.shape.dims[rank:]])
                   for x in found))
