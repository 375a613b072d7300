"""Matrices of one entry per diagonal, the logits of T.

`matrix` repeats the entries, and its gradient adds up diagonals, without an index.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def matrix(before: mtf.Tensor, after: mtf.Tensor, rows: mtf.Dimension,
           columns: mtf.Dimension) -> mtf.Tensor:
  """A matrix whose diagonals are constant.

  Each row is the previous row, shifted by one. Therefore the function repeats the
  entries with a gap of one entry, and needs no index tensor.

  Args:
    before: <float32>[..., distance], for columns `distance` before the row.
    after: <float32>[..., distance], for columns `distance` + 1 after the row. Both
      may have more entries than there are columns.
    rows: a dimension of size n.
    columns: a dimension of size n.

  Returns:
    <float32>[..., rows, columns]
  """
  lead, n = before.shape.dims[:-1], rows.size

  def repeat(before, after):
    entries = tf.concat([before[..., n - 1::-1], after[..., :n - 1]], -1)
    shifted = tf.tile(_flat(tf.pad(
        entries, [[0, 0]] * len(lead) + [[0, 1]]), 1), [1, n])
    shifted = tf.reshape(shifted[:, :n * (2 * n - 1)], [-1, n, 2 * n - 1])
    return tf.reshape(
        shifted[..., n - 1:], before.shape.as_list()[:-1] + [n, n])

  def add(grad):
    """The sums over diagonals, for columns before each row and after it."""
    shifted = tf.pad(_flat(grad, 2), [[0, 0], [0, 0], [n - 1, 0]])
    shifted = tf.pad(tf.reshape(shifted, [-1, n * (2 * n - 1)]), [[0, 0], [0, n]])
    total = tf.reduce_sum(tf.reshape(shifted, [-1, n, 2 * n]), axis=1)
    return tf.reshape(total, grad.shape.as_list()[:-2] + [2 * n])

  def gradient(operation, grad):
    total = splits.slicewise(
        add, [grad], output_shape=lead + [mtf.Dimension("distance", 2 * n)],
        splittable_dims=lead, grad_function=0)

    def part(like, of_slice):
      size = like.shape.dims[-1].size
      return splits.slicewise(
          lambda t: tf.pad(of_slice(t), [[0, 0]] * len(lead) + [
              [0, size - of_slice(t).shape.as_list()[-1]]]),
          [total], output_shape=like.shape, splittable_dims=lead, grad_function=0)

    return [part(operation.inputs[0], lambda t: t[..., n - 1::-1]),
            part(operation.inputs[1], lambda t: t[..., n:2 * n - 1])]

  # No layout splits dimensions with these names, which have to be whole.
  whole = [mtf.Dimension("diagonal_rows", n), mtf.Dimension("diagonal_columns", n)]
  matrix = splits.slicewise(
      repeat, [before, after], output_shape=lead + whole, splittable_dims=lead,
      grad_function=gradient)
  return mtf.reshape(matrix, lead + [rows, columns])


def _flat(tensor, last):
  """Flattens all dimensions but the last few, of which `last` is the number."""
  return tf.reshape(tensor, [-1] + tensor.shape.as_list()[-last:])
