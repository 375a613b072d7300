"""The best tokens of each row of logits, without a normalized copy of the logits.

The vocabulary is cut into pieces. The n best tokens are in the n pieces with the
greatest maxima. So one pass over the logits finds these pieces, and only they are
sorted. Equal values are ordered by index, as in `tf.math.top_k`.
"""

from collections.abc import Callable

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

# Mesh TensorFlow rounds vocabularies up to multiples of 128, so they have whole pieces.
_PIECE = 128


def top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the same as `tf.math.top_k`, faster for small k and a large vocabulary.

  Args:
    x: <float>[rows, vocab]

  Returns:
    <float>[rows, k], the greatest values, and <int32>[rows, k], their indices.
  """
  rows, size = x.shape.as_list()
  if not has_pieces(size, k):
    return tf.math.top_k(x, k)
  pieces, maxima = in_pieces(x)
  return top_k_of_pieces(pieces, maxima, k)


def top_k_of_pieces(
    pieces: tf.Tensor, best: tf.Tensor, k: int,
    scores: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
  """`top_k` of what `in_pieces` has cut, by scores that never decrease with the values.

  Args:
    pieces: <float>[rows, pieces, piece_length]
    best: <float>[rows, pieces], the greatest score of each piece.
    scores: makes the scores of values <float>[rows, k, piece_length] from them and the
      indices of their pieces <int32>[rows, k]; None if the values are the scores.

  Returns:
    <float>[rows, k], the greatest scores, and <int32>[rows, k], the indices of their
    values.
  """
  length = pieces.shape[-1]
  _, piece = tf.math.top_k(best, k)
  if k > 1:  # Sorted by index, which decides between equal values.
    piece = tf.sort(piece, -1)
  values = tf.gather(pieces, piece, batch_dims=1)
  if scores:
    values = scores(values, piece)
  best, index = tf.math.top_k(tf.reshape(values, [-1, k * length]), k)
  first = tf.gather(piece, index // length, batch_dims=1)
  return best, first * length + index % length


def has_pieces(vocab: int, k: int) -> bool:
  """Whether a vocabulary has whole pieces, and many more than k."""
  return vocab % _PIECE == 0 and vocab > 2 * k * _PIECE


def in_pieces(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Cuts <float>[rows, vocab].

  Returns:
    the pieces <float>[rows, pieces, piece_length], and the greatest value of each
    <float>[rows, pieces].
  """
  pieces = tf.reshape(x, [x.shape[0], -1, _PIECE])
  return pieces, tf.reduce_max(pieces, -1)


def argmax(x: mtf.Tensor, vocab: mtf.Dimension) -> mtf.Tensor:
  """Returns the same as `mtf.argmax`, faster for a large vocabulary.

  Args:
    x: <float>[..., vocab]
    vocab: the last dimension of x, which each processor holds as a whole.

  Returns:
    <int32>[...]
  """
  def compute(x):  # [..., vocab] -> [...]
    _, index = top_k(tf.reshape(x, [-1, vocab.size]), 1)
    return tf.reshape(index, x.shape[:-1])

  rest = x.shape - vocab
  return splits.slicewise(compute, [x], output_shape=rest, output_dtype=tf.int32,
                          splittable_dims=rest.dims, grad_function=0)


def log_sum_exp(x: tf.Tensor, greatest: tf.Tensor,
                where: tf.Tensor) -> tf.Tensor:
  """The logarithm of each row's sum of exponentials, from TensorFlow's softmax.

  Args:
    x: <float32>[rows, vocab]
    greatest: <float32>[rows, 1], the greatest value of each row.
    where: <int32>[rows, 1], its index.

  Returns:
    <float32>[rows, 1]
  """
  return greatest - tf.math.log(
      tf.gather(tf.nn.softmax(x), where, batch_dims=1))
