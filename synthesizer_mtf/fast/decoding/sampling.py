"""Greedy decoding and sampling, with the results of Mesh TensorFlow's loop."""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import steps
from synthesizer_mtf.fast.decoding import top_tokens
from synthesizer_mtf.t5 import answers
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


def sample(decoder: steps.Steps, options: Options) -> mtf.Tensor:
  """Continues sequences by one token at a time.

  Args:
    decoder: the `Steps` of the model.
    options: an `Options`.

  Returns:
    <int32>[batch, length]. Tokens after `stop_at_token` have no meaning.
  """
  ids, _ = _sample(decoder, options, scored=False)
  return ids


def sample_with_scores(decoder: steps.Steps, options: Options) -> answers.Answers:
  """Continues sequences as `sample` does, and returns them with their scores.

  Args:
    decoder: the `Steps` of the model.
    options: an `Options`.

  Returns:
    ids <int32>[batch, length], scores <float32>[batch] and lengths <int32>[batch].
  """
  ids, scores = _sample(decoder, options, scored=True)
  return answers.Answers(ids, *scores)


def _sample(decoder, options, scored):
  """The ids; the scores and lengths in a list, which is empty unless asked for."""
  states = decoder.first_part()
  if not options.has_partial_sequences:
    states = [mtf.zeros_like(state) for state in states]
  ids, scores = _Sampling(decoder, options, scored).run(states)
  if options.has_partial_sequences and options.remove_partial_sequences:
    ids = mtf.dynamic_shift(
        ids, -decoder.initial_position, decoder.length, wrap=False)
  return ids, scores


class _Sampling:
  """The loops of one call."""

  def __init__(self, decoder, options, scored):
    self.decoder = decoder
    self.scored = scored
    self.options = options
    ids = decoder.ids
    # Without a prefix all rows are at the same position.
    self.start = (decoder.initial_position if options.has_partial_sequences
                  else mtf.zeros(ids.mesh, [], tf.int32))

  def run(self, states):
    """Generates ids, from the states of the first part; their scores and lengths."""
    options, length = self.options, self.decoder.length
    ids = self.decoder.ids
    token = mtf.gather(ids, self.start - 1, length)
    if options.bos_id:
      token += options.bos_id * mtf.to_int32(mtf.equal(self.start, 0))
    done = mtf.constant(ids.mesh, False, self.decoder.batch_dims, tf.bool)
    none = [mtf.zeros(ids.mesh, self.decoder.batch_dims, dtype)
            for dtype in (tf.float32, tf.int32) if self.scored]
    _, ids, _, _, *scores = steps.in_blocks(
        self._block, length, [self.start, ids, token, done, *none], states)
    return ids, scores

  def _block(self, block, carried, states):
    def go_on(position, ids, token, done, *others):
      del ids, token, others
      done = mtf.logical_or(done, self._is_past_end(position))
      here = mtf.logical_or(done, mtf.less(position, block.size))
      return mtf.logical_and(mtf.logical_not(mtf.reduce_all(done)),
                             mtf.reduce_all(here))

    def body(position, ids, token, done, *others):
      scores, states = others[:count], others[count:]
      logits, states = self.decoder.step(position, token, states, block)
      token = self._choose(logits)
      if scores:
        total, lengths = scores
        scores = self._add(total, lengths, logits, token,
                           mtf.logical_or(done, self._is_past_end(position)))
      ids += token * mtf.one_hot(position, self.decoder.length, dtype=tf.int32)
      if self.options.stop_at_token is not None:
        done = mtf.logical_or(
            done, mtf.equal(token, self.options.stop_at_token))
      return [position + 1, ids, token, done, *scores, *states]

    count = len(carried) - 4
    return loops.while_loop(
        go_on, body, [*carried, *map(caches.own, states)])

  def _add(self, total, lengths, logits, token, done):
    """Adds a token to the scores and lengths of the rows that are not done."""
    new = answers.log_probability(logits, token, splits.is_whole(
        self.decoder.model, logits.shape.dims[-1]))
    alive = mtf.to_int32(mtf.logical_not(done))
    return total + new * mtf.to_float(alive), lengths + alive

  def _is_past_end(self, position):
    past = mtf.greater_equal(position, self.decoder.length.size)
    if self.options.max_steps:
      past = mtf.logical_or(past, mtf.greater_equal(
          position - self.start, self.options.max_steps))
    return past

  def _choose(self, logits):
    """Chooses tokens <int32>[batch] from logits <float>[batch, vocab]."""
    options, vocab = self.options, logits.shape.dims[-1]
    if options.never_end:
      logits += loops.once(lambda: mtf.one_hot(
          mtf.constant(logits.mesh, options.stop_at_token, dtype=tf.int32), vocab,
          on_value=-1e9, off_value=0.0, dtype=logits.dtype))
    if options.sampling_keep_top_k != -1:
      if options.sampling_keep_top_k <= 0:
        raise checks.Error(
            "`sampling_keep_top_k` of `Unitransformer.sample_autoregressive` is "
            f"{options.sampling_keep_top_k} but must be -1 or at least 1; change it.")
      largest = mtf.nth_largest_element(
          logits, n=options.sampling_keep_top_k, reduced_dim=vocab)
      logits = mtf.where(mtf.less_equal(logits, largest),
                         mtf.ones_like(logits) * -1e6, logits)
    if not options.temperature and splits.is_whole(self.decoder.model, vocab):
      return top_tokens.argmax(logits, vocab)
    return mtf.sample_with_temperature(logits, vocab, options.temperature)
