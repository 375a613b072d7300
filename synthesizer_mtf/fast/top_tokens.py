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
  pieces = size // _PIECE
  if size % _PIECE or pieces <= 2 * k:
    return tf.math.top_k(x, k)
  x = tf.reshape(x, [rows, pieces, _PIECE])
  _, piece = tf.math.top_k(tf.reduce_max(x, -1), k)
  # Sorted by index, which decides between equal values.
  piece = tf.sort(piece, -1)
  best, index = tf.math.top_k(
      tf.reshape(tf.gather(x, piece, batch_dims=1), [rows, k * _PIECE]), k)
  first = tf.gather(piece, index // _PIECE, batch_dims=1)
  return best, first * _PIECE + index % _PIECE


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
