"""Greedy decoding and sampling, with the results of Mesh TensorFlow's loop.

Several answers to an input are samples, with their log-likelihoods.
"""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import steps
from synthesizer_mtf.fast.decoding import top_tokens
from synthesizer_mtf.t5.answer_recorder import Answers
import tensorflow.compat.v1 as tf


class Options(NamedTuple):
  """Arguments of `Unitransformer.sample_autoregressive`, as it describes them."""
  stop_at_token: int | None
  max_steps: int | None
  temperature: float
  has_partial_sequences: bool
  never_end: bool
  remove_partial_sequences: bool
  sampling_keep_top_k: int
  bos_id: int


def with_samples(ids: mtf.Tensor, number: int) -> mtf.Tensor:
  """Repeats ids <int32>[batch, length] for each sample: [batch, beam, length]."""
  *batch, length = ids.shape.dims
  return mtf.broadcast(ids, [*batch, mtf.Dimension("beam", number), length])


def best_first(samples: Answers) -> Answers:
  """Sorts samples <int32>[batch, beam, length] by their log-likelihoods."""
  beam = samples.scores.shape.dims[-1]

  def compute(x, scores):  # [batch, beam, ...], [batch, beam] -> like x
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    return tf.gather(x, order, batch_dims=1)

  return Answers(*(splits.slicewise(
      compute, [x, samples.scores], splittable_dims=(x.shape - beam).dims,
      grad_function=0) for x in samples))


def alone(answer: Answers) -> Answers:
  """Adds the dimension of the answers to one answer of each input."""
  one = mtf.Dimension("beam", 1)
  rank = answer.scores.shape.ndims
  return Answers(*(mtf.reshape(x, [*x.shape.dims[:rank], one, *x.shape.dims[rank:]])
                   for x in answer))


class Sampling:
  """The loops that continue the ids of one call by one token at a time."""

  def __init__(self, decoder: steps.Steps, options: Options):
    self._decoder = decoder
    self._options = options
    # Without a prefix all rows are at the same position.
    self._start = (decoder.initial_position if options.has_partial_sequences
                   else mtf.zeros(decoder.ids.mesh, [], tf.int32))

  def ids(self) -> mtf.Tensor:
    """<int32>[batch, length]. Tokens after `stop_at_token` have no meaning."""
    return self._run([])[0]

  def answers(self) -> Answers:
    """The ids, with their scores <float32>[batch] and lengths <int32>[batch]."""
    return Answers(*self._run([tf.float32, tf.int32]))

  def _run(self, dtypes):
    """The ids, followed by what starts as zeros of these dtypes: scores and lengths."""
    decoder, options, start = self._decoder, self._options, self._start
    states = decoder.first_part()
    if not options.has_partial_sequences:
      states = [mtf.zeros_like(state) for state in states]
    token = mtf.gather(decoder.ids, start - 1, decoder.length)
    if options.bos_id:
      token += options.bos_id * mtf.to_int32(mtf.equal(start, 0))
    done = mtf.constant(start.mesh, False, decoder.batch_dims, tf.bool)
    zeros = [mtf.zeros(start.mesh, decoder.batch_dims, dtype) for dtype in dtypes]
    _, ids, _, _, *scores = steps.in_blocks(
        self._block, decoder.length, [start, decoder.ids, token, done, *zeros], states)
    if options.has_partial_sequences and options.remove_partial_sequences:
      ids = mtf.dynamic_shift(
          ids, -decoder.initial_position, decoder.length, wrap=False)
    return [ids, *scores]

  def _block(self, block, carried, states):
    def go_on(position, ids, token, done, *others):
      del ids, token, others
      done = mtf.logical_or(done, self._is_past_end(position))
      here = mtf.logical_or(done, mtf.less(position, block.size))
      return mtf.logical_and(mtf.logical_not(mtf.reduce_all(done)),
                             mtf.reduce_all(here))

    def body(position, ids, token, done, *others):
      scores = list(others[:count])
      logits, states = self._decoder.step(position, token, others[count:], block)
      token = self._choose(logits)
      if scores:
        scores = self._added(scores, logits, token,
                             mtf.logical_or(done, self._is_past_end(position)))
      ids += token * mtf.one_hot(position, self._decoder.length, dtype=tf.int32)
      if self._options.stop_at_token is not None:
        done = mtf.logical_or(
            done, mtf.equal(token, self._options.stop_at_token))
      return [position + 1, ids, token, done, *scores, *states]

    count = len(carried) - 4
    return loops.while_loop(
        go_on, body, [*carried, *map(caches.own, states)])

  def _added(self, scores, logits, token, done):
    """The scores and lengths, with a token of each row that is not done."""
    total, lengths = scores
    alive = mtf.to_int32(mtf.logical_not(done))
    new = _log_probability(logits, token, self._is_whole(logits))
    return [total + new * mtf.to_float(alive), lengths + alive]

  def _is_whole(self, logits):
    """Whether each processor holds the whole vocabulary."""
    return splits.is_whole(self._decoder.model, logits.shape.dims[-1])

  def _is_past_end(self, position):
    past = mtf.greater_equal(position, self._decoder.length.size)
    if self._options.max_steps:
      past = mtf.logical_or(past, mtf.greater_equal(
          position - self._start, self._options.max_steps))
    return past

  def _choose(self, logits):
    """Chooses tokens <int32>[batch] from logits <float>[batch, vocab]."""
    options, vocab = self._options, logits.shape.dims[-1]
    if options.never_end:
      logits += loops.once(lambda: mtf.one_hot(
          mtf.constant(logits.mesh, options.stop_at_token, dtype=tf.int32), vocab,
          on_value=-1e9, off_value=0.0, dtype=logits.dtype))
    if options.sampling_keep_top_k != -1:
      checks.require(
          options.sampling_keep_top_k > 0,
          "Unitransformer.sample_autoregressive.sampling_keep_top_k",
          options.sampling_keep_top_k, "be -1 or at least 1")
      largest = mtf.nth_largest_element(
          logits, n=options.sampling_keep_top_k, reduced_dim=vocab)
      logits = mtf.where(mtf.less_equal(logits, largest),
                         mtf.ones_like(logits) * -1e6, logits)
    if not options.temperature and self._is_whole(logits):
      return top_tokens.argmax(logits, vocab)
    return mtf.sample_with_temperature(logits, vocab, options.temperature)


def _log_probability(logits, token, is_whole):
  """<float32>[...] of tokens <int32>[...], from logits <float>[..., vocab]."""
  vocab = logits.shape.dims[-1]
  logits = mtf.to_float(logits)
  if not is_whole:
    return mtf.gather(logits, token, vocab) - mtf.reduce_logsumexp(logits, vocab)

  def compute(logits, token):  # [..., vocab], [...] -> [...]
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=token, logits=logits)

  return splits.slicewise(
      compute, [logits, token], output_shape=token.shape, output_dtype=tf.float32,
      splittable_dims=token.shape.dims, grad_function=0)
