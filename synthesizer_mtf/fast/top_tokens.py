"""The best tokens of each row of logits, without a normalized copy of the logits.

The vocabulary is cut into pieces. The n best tokens are in the n pieces with the
greatest maxima. So one pass over the logits finds these pieces, and only they are
sorted. Equal values are ordered by index, as in `tf.math.top_k`.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

# Mesh TensorFlow rounds vocabularies up to multiples of 128, so they have whole pieces.
_PIECE = 128


def top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the same as `tf.math.top_k`, faster for small k and a large vocabulary.

  Args:
    x: <float>[rows, vocab]
    k: an integer.

  Returns:
    <float>[rows, k], the greatest values, and <int32>[rows, k], their indices.
  """
  rows, size = x.shape.as_list()
  if not has_pieces(size, k):
    return tf.math.top_k(x, k)
  x, maxima = in_pieces(x)
  _, piece = tf.math.top_k(maxima, k)
  # Sorted by index, which decides between equal values.
  piece = tf.sort(piece, -1)
  best, index = tf.math.top_k(
      tf.reshape(tf.gather(x, piece, batch_dims=1), [rows, k * _PIECE]), k)
  first = tf.gather(piece, index // _PIECE, batch_dims=1)
  return best, first * _PIECE + index % _PIECE


def has_pieces(vocab: int, k: int) -> bool:
  """Whether a vocabulary has whole pieces, and many more than k."""
  return vocab % _PIECE == 0 and vocab > 2 * k * _PIECE


def in_pieces(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Cuts <float>[..., vocab].

  Returns:
    the pieces <float>[..., pieces, piece_length], and the greatest value of each
    <float>[..., pieces].
  """
  x = tf.reshape(x, [*x.shape[:-1], x.shape[-1] // _PIECE, _PIECE])
  return x, tf.reduce_max(x, -1)


def greatest(pieces: tf.Tensor, maxima: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The greatest value <float>[..., 1] of what `in_pieces` has cut, and its index."""
  rows = maxima.shape.rank - 1
  piece = tf.argmax(maxima, -1, output_type=tf.int32)[..., None]
  index = tf.argmax(
      tf.gather(pieces, piece, batch_dims=rows), -1, output_type=tf.int32)
  return tf.gather(maxima, piece, batch_dims=rows), piece * _PIECE + index


def argmax(x: mtf.Tensor, vocab: mtf.Dimension) -> mtf.Tensor:
  """Returns the same as `mtf.argmax`, faster for a large vocabulary.

  Args:
    x: <float>[..., vocab]
    vocab: the last dimension of x, which each processor holds as a whole.

  Returns:
    <int32>[...]
  """
  def of_slice(x):  # [..., vocab] -> [...]
    _, index = top_k(tf.reshape(x, [-1, vocab.size]), 1)
    return tf.reshape(index, x.shape[:-1])

  rest = x.shape - vocab
  return splits.slicewise(of_slice, [x], output_shape=rest, output_dtype=tf.int32,
                          splittable_dims=rest.dims, grad_function=0)


def log_sum_exp(x: tf.Tensor, best: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
  """The logarithm of each row's sum of exponentials, from TensorFlow's softmax.

  Args:
    x: <float32>[..., vocab]
    best: <float32>[..., 1], the greatest value of each row.
    where: <int32>[..., 1], its index.

  Returns:
    <float32>[..., 1]
  """
  return best - tf.math.log(
      tf.gather(tf.nn.softmax(x), where, batch_dims=x.shape.rank - 1))
