"""Tables over positions, read where XLA compiles, against a plain gather."""

import mesh_tensorflow as mtf
import numpy as np
from support import decoding
from support import models
from synthesizer_mtf.fast import attend_by_position
from synthesizer_mtf.fast import one_hot_tables
from synthesizer_mtf.fast import weighted_mean
import tensorflow.compat.v1 as tf

LENGTH, HEADS, D_KV = 8, 3, 5
BATCH, HEAD, QUERY, KEY, CHANNEL = [mtf.Dimension(*dim) for dim in (
    ("batch", 4), ("heads", HEADS), ("length", LENGTH), ("memory_length", LENGTH),
    ("d_kv", D_KV))]
# The ids of examples in a row. Each of the first rows holds one, where it begins.
ALONE = [[1] * 8, [1] * 5 + [0] * 3, [0] * 8, [7] * 2 + [0] * 6]
OTHERS = [
    [1] * 4 + [2] * 4, [1] + [2] * 7, [1] * 7 + [2], [1, 2, 3, 4, 5, 6, 7, 8],
    [1] * 3 + [2] * 3 + [0] * 2, [0] + [1] * 7, [1, 1, 0, 0, 1, 1, 0, 0],
    [0, 0, 1, 1, 0, 2, 2, 2], [9, 9, 2, 2, 2, 5, 5, 5], [1, 1, 2, 2, 3, 3, 4, 4],
    [1, 1, 1, 2, 0, 0, 0, 3], [0] * 7 + [1]]
# Each of two processors has two of four rows: alone on both, on one, or on none.
BATCHES = [np.array(ALONE)] + [
    np.array([*ALONE[:2], row, OTHERS[n // 2]] if n % 2 else
             [ALONE[1], row, OTHERS[n // 3], ALONE[0]])
    for n, row in enumerate(OTHERS)]


def test_entries_and_gradients_are_those_of_a_gather_whatever_the_rows_hold():
  generator = np.random.RandomState(0)
  table = generator.randn(HEADS, LENGTH, LENGTH)
  grads = [generator.randn(4, HEADS, LENGTH, LENGTH) * same(ids) for ids in BATCHES]

  def picked_and_added(mesh, ids, grad):
    variable = imported(mesh, table, HEAD, QUERY, KEY)
    picked = one_hot_tables.pick(variable, positions(mesh, ids))
    weight = imported(mesh, grad, BATCH, HEAD, QUERY, KEY)
    return [picked, *mtf.gradients([mtf.reduce_sum(picked * weight)], [variable])]

  results = run(picked_and_added, BATCHES, grads)
  for ids, grad, (picked, total) in zip(BATCHES, grads, results, strict=True):
    np.testing.assert_allclose(
        picked * same(ids), entries(table, ids) * same(ids), rtol=1e-6)
    np.testing.assert_allclose(total, added(grad, ids), rtol=1e-5, atol=1e-5)
  # Rows of one example read the table by index, padding included.
  np.testing.assert_allclose(results[0][0], np.tile(table, (4, 1, 1, 1)), rtol=1e-6)


def test_means_and_gradients_are_those_of_a_softmax_whatever_the_rows_hold():
  generator = np.random.RandomState(1)
  table = generator.randn(HEADS, LENGTH, LENGTH)
  values = generator.randn(4, HEADS, LENGTH, D_KV)
  grads = [generator.randn(4, HEADS, LENGTH, D_KV) * (ids > 0)[:, None, :, None]
           for ids in BATCHES]

  def mean_and_gradients(mesh, ids, grad):
    logits = imported(mesh, table, HEAD, QUERY, KEY)
    v = imported(mesh, values, BATCH, HEAD, KEY, CHANNEL)
    mean = attend_by_position.attend(
        weighted_mean.exponential(logits), [logits], v,
        imported(mesh, ids, BATCH, QUERY, dtype=np.int32), positions(mesh, ids))
    weight = imported(mesh, grad, BATCH, HEAD, QUERY, CHANNEL)
    return [mean, *mtf.gradients([mtf.reduce_sum(mean * weight)], [logits, v])]

  results = run(mean_and_gradients, BATCHES, grads)
  for ids, grad, found in zip(BATCHES, grads, results, strict=True):
    weights = np.exp(entries(table, ids)) * same(ids)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    grad_weights = grad @ values.swapaxes(-1, -2)
    grad_logits = weights * (
        grad_weights - (weights * grad_weights).sum(-1, keepdims=True))
    mean, grad_table, grad_values = found
    is_token = (ids > 0)[:, None, :, None]
    for ours, expected in ((mean * is_token, weights @ values * is_token),
                           (grad_table, added(grad_logits, ids)),
                           (grad_values, weights.swapaxes(-1, -2) @ grad)):
      np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def rows_of(ids):
  """How many earlier tokens of a row have the same id: [batch, length]."""
  return np.array([[sum(row[:i] == row[i]) for i in range(LENGTH)] for row in ids])


def entries(table, ids):
  """[batch, heads, length, memory_length], by a gather."""
  rows = rows_of(ids)
  return table[:, rows[:, :, None], rows[:, None]].swapaxes(0, 1)


def added(grad, ids):
  """The gradient of `entries` for the table."""
  rows, total = rows_of(ids), np.zeros((HEADS, LENGTH, LENGTH))
  np.add.at(total, (np.arange(HEADS)[:, None, None], rows[:, None, :, None],
                    rows[:, None, None]), grad)
  return total


def same(ids):
  """1 where query and key are tokens of one example: [batch, 1, length, length]."""
  return ((ids[:, :, None] == ids[:, None]) & (ids[:, None] > 0))[:, None] * 1.0


def run(make, *rows):
  """The numbers of the tensors that `make` returns for each row, on two processors."""
  decoding.parse("V")
  m = models.Model(mesh_shape="batch:2", layout="batch:batch")
  with m.tf_graph.as_default():
    made = [make(m.mesh, *row) for row in zip(*rows)]
    (flat,), _ = m.run(*[tensor for row in made for tensor in row])
  size = len(made[0])
  return [flat[i:i + size] for i in range(0, len(flat), size)]


def imported(mesh, array, *dims, dtype=np.float32):
  return mtf.import_tf_tensor(mesh, tf.constant(array.astype(dtype)), mtf.Shape(dims))


def positions(mesh, ids):
  rows = rows_of(ids)
  one_hot = np.eye(LENGTH)[rows]
  are_indices = ((rows == np.arange(LENGTH)) | (ids == 0)).all(-1)
  return one_hot_tables.Positions(
      imported(mesh, one_hot, BATCH, QUERY, mtf.Dimension("position", LENGTH)),
      imported(mesh, one_hot, BATCH, KEY, mtf.Dimension("memory_position", LENGTH)),
      imported(mesh, are_indices, BATCH, dtype=np.int32))
