"""Greedy decoding and sampling, with the results of Mesh TensorFlow's loop."""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import decoding_state
from synthesizer_mtf.fast import top_tokens
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import steps
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
  states = decoder.first_part()
  if not options.has_partial_sequences:
    states = [mtf.zeros_like(state) for state in states]
  ids = _Sampling(decoder, options).run(states)
  if options.has_partial_sequences and options.remove_partial_sequences:
    ids = mtf.dynamic_shift(
        ids, -decoder.initial_position, decoder.length, wrap=False)
  return ids


class _Sampling:
  """The loops of one call."""

  def __init__(self, decoder, options):
    self.decoder = decoder
    self.options = options
    ids = decoder.ids
    # Without a prefix all rows are at the same position.
    self.start = (decoder.initial_position if options.has_partial_sequences
                  else mtf.zeros(ids.mesh, [], tf.int32))

  def run(self, states):
    """Generates the ids, starting from the states of the first part."""
    options, length = self.options, self.decoder.length
    ids = self.decoder.ids
    token = mtf.gather(ids, self.start - 1, length)
    if options.bos_id:
      token += options.bos_id * mtf.to_int32(mtf.equal(self.start, 0))
    done = mtf.constant(ids.mesh, False, self.decoder.batch_dims, tf.bool)
    _, ids, *_ = steps.in_blocks(
        self._block, length, [self.start, ids, token, done], states)
    return ids

  def _block(self, block, carried, states):
    def go_on(position, ids, token, done, *states):
      del ids, token, states
      done = mtf.logical_or(done, self._is_past_end(position))
      here = mtf.logical_or(done, mtf.less(position, block.size))
      return mtf.logical_and(mtf.logical_not(mtf.reduce_all(done)),
                             mtf.reduce_all(here))

    def body(position, ids, token, done, *states):
      logits, states = self.decoder.step(position, token, states, block)
      token = self._choose(logits)
      ids += token * mtf.one_hot(position, self.decoder.length, dtype=tf.int32)
      if self.options.stop_at_token is not None:
        done = mtf.logical_or(
            done, mtf.equal(token, self.options.stop_at_token))
      return [position + 1, ids, token, done, *states]

    return loops.while_loop(
        go_on, body, [*carried, *map(decoding_state.own, states)])

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
      logits += mtf.one_hot(
          mtf.constant(logits.mesh, options.stop_at_token, dtype=tf.int32), vocab,
          on_value=-1e9, off_value=0.0, dtype=logits.dtype)
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
