"""Matrices that are made along diagonals, without an index: the logits of T and LD.

`matrix` repeats one entry per diagonal, and its gradient adds up diagonals. `band` puts
the entries of each row around the main diagonal.
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

    def part(like, cut):
      size = like.shape.dims[-1].size
      return splits.slicewise(
          lambda t: tf.pad(cut(t), [[0, 0]] * len(lead) + [
              [0, size - cut(t).shape.as_list()[-1]]]),
          [total], output_shape=like.shape, splittable_dims=lead, grad_function=0)

    return [part(operation.inputs[0], lambda t: t[..., n - 1::-1]),
            part(operation.inputs[1], lambda t: t[..., n:2 * n - 1])]

  # No layout splits dimensions with these names, which have to be whole.
  whole = [mtf.Dimension("diagonal_rows", n), mtf.Dimension("diagonal_columns", n)]
  matrix = splits.slicewise(
      repeat, [before, after], output_shape=lead + whole, splittable_dims=lead,
      grad_function=gradient)
  return mtf.reshape(matrix, lead + [rows, columns])


def band(values: mtf.Tensor, first: int, columns: mtf.Dimension) -> mtf.Tensor:
  """A matrix whose rows have their entries around the main diagonal, and zeros.

  Args:
    values: <float>[..., rows, near], for the columns row + `first` and following ones.
    first: an integer from 1 - near to 0.
    columns: a dimension with the size of `rows`.

  Returns:
    <float>[..., rows, columns]. Only `...` can be split.
  """
  *lead, rows, near = values.shape.dims
  n, width = rows.size, rows.size + near.size

  def move(values):
    # Each row is one entry shorter than before, so that it begins one entry later.
    shape = values.shape.as_list()[:-2]
    wide = _flat(tf.pad(values, [[0, 0]] * (len(shape) + 1) + [[0, n]]), 2)
    wide = tf.reshape(wide, [-1, n * width])[:, :n * (width - 1)]
    wide = tf.reshape(wide, shape + [n, width - 1])
    return wide[..., -first:n - first]

  return splits.slicewise(move, [values], output_shape=lead + [rows, columns],
                          splittable_dims=lead)


def _flat(tensor, last):
  """Flattens all dimensions but the last few, of which `last` is the number."""
  return tf.reshape(tensor, [-1] + tensor.shape.as_list()[-last:])
