"""One step of beam search, for the examples of one processor.

It computes the results of Mesh TensorFlow's `beam_search.beam_search` from the best
tokens of each beam instead of the whole vocabulary.
"""

from typing import NamedTuple

from mesh_tensorflow import beam_search
from synthesizer_mtf.fast.decoding import top_tokens
import tensorflow.compat.v1 as tf


class Beams(NamedTuple):
  """The state of a search.

  Attributes:
    sequences: <int32>[batch, beam, length], the live sequences.
    log_probs: <float32>[batch, beam], of the live sequences.
    finished: <int32>[batch, beam, length], the finished sequences.
    scores: <float32>[batch, beam], of the finished sequences.
    flags: <bool>[batch, beam], whether each finished sequence exists.
    parents: <int32>[batch, beam], the previous beam that each beam continues.
    settled: <bool>[batch], whether no live sequence can beat the finished ones.
  """
  sequences: tf.Tensor
  log_probs: tf.Tensor
  finished: tf.Tensor
  scores: tf.Tensor
  flags: tf.Tensor
  parents: tf.Tensor
  settled: tf.Tensor


class Options(NamedTuple):
  """How to search; arguments of `beam_search.beam_search`.

  Attributes:
    stop_early: whether to stop once the best beam is certain, before the last step.
    candidates: the number of best tokens to take for each beam, from each part of the
      vocabulary.
    parts: the number of parts of the vocabulary.
    answers: the number of sequences that the search must finish, if it can.
  """
  alpha: float
  eos_id: int
  stop_early: bool
  candidates: int
  parts: int
  answers: int = 1


def grow(options: Options, beams: Beams, logits: tf.Tensor, position: tf.Tensor,
         longest: tf.Tensor, horizon: tf.Tensor | None = None) -> Beams:
  """Adds a token to each beam.

  Args:
    logits: <float32>[batch, beam, vocab]
    position: <int32>[], the position of the new tokens.
    longest: <int32>[], the length of the longest sequence.
    horizon: <int32>[batch], as in `searching_alone`; None for Mesh TensorFlow's search.

  Returns:
    the `Beams` with one more token.
  """
  size = beams.log_probs.shape[1]
  penalty, reciprocal = _penalty(options, position + 1)
  scores, beam, tokens = _candidates(options, beams.log_probs, logits, reciprocal)
  length = beams.sequences.shape[-1]
  sequences = tf.gather(beams.sequences, beam, batch_dims=1)
  sequences += tokens[..., None] * tf.one_hot(position, length, dtype=tf.int32)
  ended = tf.equal(tokens, options.eos_id)
  # What is settled changes no more, however long other examples go on.
  ends = ended if horizon is None else ended & ~beams.settled[:, None]

  alive = _best(scores + tf.cast(ended, tf.float32) * -beam_search.INF, size)
  log_probs = tf.gather(scores * penalty, alive, batch_dims=1)

  score_if_ended = scores + tf.cast(
      tf.logical_not(ends), tf.float32) * -beam_search.INF
  scores = tf.concat([beams.scores, score_if_ended], 1)
  best = _best(scores, size)

  def pick(old, new):
    return tf.gather(tf.concat([old, new], 1), best, batch_dims=1)

  finished = pick(beams.finished, sequences)
  flags = pick(beams.flags, ends)
  scores = tf.gather(scores, best, batch_dims=1)
  settled = (
      _is_settled(options, log_probs, scores, flags, longest) if horizon is None else
      beams.settled | _are_answers_settled(
          options, log_probs, scores,
          tf.minimum(tf.maximum(horizon, position + 1), longest)))
  return Beams(
      tf.gather(sequences, alive, batch_dims=1), log_probs, finished, scores, flags,
      tf.gather(beam, alive, batch_dims=1), settled)


def best(options: Options, beams: Beams,
         longest: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """The best sequences: those that have finished, and then those that go on.

  Args:
    options: an `Options`, whose `answers` are at most the beams.
    longest: <int32>[], the length of the longest sequence.

  Returns:
    ids <int32>[batch, answers, length], the sums of their log-probabilities
    <float32>[batch, answers], and their lengths <int32>[batch, answers].
  """
  exists = tf.concat([beams.flags, tf.ones_like(beams.flags)], 1)
  rank = tf.where(exists, tf.concat([
      beams.scores, beams.log_probs * _penalty(options, longest)[1] - beam_search.INF],
                                    1), tf.fill(tf.shape(exists), -float("inf")))
  order = _best(rank, options.answers)
  ids = tf.gather(tf.concat([beams.finished, beams.sequences], 1), order, batch_dims=1)
  lengths = _lengths(options, ids, longest)
  ended = tf.gather(beams.scores, tf.minimum(
      order, beams.scores.shape[1] - 1), batch_dims=1) * _penalty(options, lengths)[0]
  going = tf.gather(tf.concat([beams.log_probs] * 2, 1), order, batch_dims=1)
  return ids, tf.where(order < beams.scores.shape[1], ended, going), lengths


def _lengths(options, ids, longest):
  """The numbers of tokens <int32>[...] of ids <int32>[..., length]."""
  ends = tf.cast(tf.equal(ids, options.eos_id), tf.int32)
  before = tf.equal(tf.cumsum(ends, -1, exclusive=True), 0)
  return tf.minimum(tf.reduce_sum(tf.cast(before, tf.int32), -1), longest)


def _penalty(options, length):
  """The length penalty of arXiv:1609.08144, without coverage, and its reciprocal.

  Like Mesh TensorFlow, `grow` multiplies with them, so scores agree to the last digit.
  """
  penalty = tf.pow((5. + tf.cast(length, tf.float32)) * (1. / 6.), options.alpha)
  return penalty, tf.math.reciprocal(penalty)


def _best(scores, size):
  return tf.math.top_k(scores, size)[1]


def _candidates(options, log_probs, logits, reciprocal):
  """The best continuations of all beams, twice as many as beams.

  Returns:
    their scores <float32>[batch, 2 beam], their beams <int32>[batch, 2 beam], and
    their tokens <int32>[batch, 2 beam].
  """
  batch, size, vocab = logits.shape.as_list()
  if (options.parts, options.candidates) == (1, 2 * size) and (
      top_tokens.has_pieces(vocab, 2 * size)):
    return _candidates_of_pieces(log_probs, logits, reciprocal)
  rows = tf.reshape(logits, [batch * size, vocab])
  before = tf.reshape(log_probs, [batch * size, 1])
  best, tokens = _best_tokens(options, rows)
  total = _log_sum_exp(rows, best, tokens)
  # The score of a beam that does not exist yet is so low that many tokens tie.
  scores, tokens = tf.cond(
      tf.reduce_any(before < -beam_search.INF / 2),
      lambda: _best_tokens(options, (rows - total + before) * reciprocal),
      lambda: ((best - total + before) * reciprocal, tokens))
  count = tokens.shape[-1]
  scores, index = tf.math.top_k(tf.reshape(scores, [batch, -1]), 2 * size)
  tokens = tf.gather(tf.reshape(tokens, [batch, -1]), index, batch_dims=1)
  return scores, index // count, tokens


def _candidates_of_pieces(log_probs, logits, reciprocal):
  """`_candidates` among all tokens, where the beams of an example compete at once.

  Scores never decrease with logits, also where many tokens tie. So the pieces of
  `top_tokens` whose maxima have the best scores hold the best tokens.
  """
  batch, size, vocab = logits.shape.as_list()
  rows = tf.reshape(logits, [batch * size, vocab])
  pieces, maxima = top_tokens.in_pieces(rows)
  count = maxima.shape[-1]
  total = tf.reshape(top_tokens.log_sum_exp(
      rows, *top_tokens.top_k_of_pieces(pieces, maxima, 1)), [batch, size, 1])
  before = log_probs[..., None]

  def scores(values, piece):
    of_beam = (tf.gather(x, piece // count, batch_dims=1) for x in (total, before))
    return score(values, *of_beam)

  def score(values, total, before):
    return (values - total + before) * reciprocal

  best = score(tf.reshape(maxima, [batch, size, count]), total, before)
  best_scores, index = top_tokens.top_k_of_pieces(
      tf.reshape(pieces, [batch, size * count, -1]), tf.reshape(best, [batch, -1]),
      2 * size, scores)
  return best_scores, index // vocab, index % vocab


def _best_tokens(options, rows):
  """The best `candidates` of each part of the vocabulary, for <float>[rows, vocab]."""
  count, vocab = rows.shape.as_list()
  part = vocab // options.parts
  best, tokens = top_tokens.top_k(
      tf.reshape(rows, [-1, part]), options.candidates)
  tokens = tf.reshape(tokens, [count, options.parts, -1]) + (
      tf.range(options.parts) * part)[:, None]
  return tf.reshape(best, [count, -1]), tf.reshape(tokens, [count, -1])


def _log_sum_exp(rows, best, tokens):
  """<float32>[rows, 1], the logarithm of each row's sum of exponentials."""
  top = tf.argmax(best, -1, output_type=tf.int32)[:, None]
  return top_tokens.log_sum_exp(
      rows, tf.gather(best, top, batch_dims=1), tf.gather(tokens, top, batch_dims=1))


def _is_settled(options, log_probs, scores, flags, longest):
  """Whether the worst finished sequence is better than all that can follow."""
  if not options.stop_early:
    return tf.zeros(log_probs.shape[:1], tf.bool)
  possible = log_probs[:, 0] * _penalty(options, longest)[1]
  worst = tf.reduce_min(scores * tf.cast(flags, tf.float32), 1)
  ended = tf.reduce_sum(tf.cast(flags, tf.int32), 1)
  worst += tf.cast(ended < options.answers, tf.float32) * -beam_search.INF
  return tf.greater(worst, possible)


def _are_answers_settled(options, log_probs, scores, length):
  """Whether no live sequence of at most `length` <int32>[batch] becomes an answer."""
  if not options.stop_early:
    return tf.zeros(log_probs.shape[:1], tf.bool)
  possible = log_probs[:, 0] * _penalty(options, length)[1]
  return scores[:, options.answers - 1] > possible
