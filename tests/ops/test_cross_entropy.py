"""The loss of ids, and the gradients of a table that is read and multiplied with."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from synthesizer_mtf.fast import cross_entropy
from synthesizer_mtf.fast import lookup
import tensorflow.compat.v1 as tf

BATCH, LENGTH, D_MODEL, VOCABULARY = (
    mtf.Dimension(*d) for d in
    [("batch", 2), ("length", 3), ("d_model", 5), ("vocab", 11)])
# The first and the last id, one id twice, and two numbers outside the vocabulary.
IDS = np.array([[0, 10, 4], [4, 11, -3]])
OTHER_IDS = np.array([[3, 4, 4], [9, 1, 7]])
HIDDEN = np.random.RandomState(0).randn(2, 3, 5).astype(np.float32)
TABLE = np.random.RandomState(1).randn(11, 5).astype(np.float32)
GRAD = np.random.RandomState(2).randn(2, 3).astype(np.float32)


class Graph:
  """Mesh tensors from arrays, and back."""

  def __init__(self):
    self.graph = mtf.Graph()
    self.mesh = mtf.Mesh(self.graph, "mesh")

  def tensor(self, array, dims):
    array = np.asarray(array, np.int32 if np.asarray(array).dtype.kind == "i"
                       else np.float32)
    return mtf.import_tf_tensor(
        self.mesh, tf.placeholder_with_default(array, array.shape), mtf.Shape(dims))

  def run(self, tensors, device="cpu:0"):
    """The values, from a session that optimizes the graph, as users' sessions do."""
    lowering = mtf.Lowering(self.graph, {
        self.mesh: mtf.placement_mesh_impl.PlacementMeshImpl("", "", [device])})
    with tf.Session() as session:
      return session.run([lowering.export_to_tf_tensor(t) for t in tensors])


@pytest.fixture
def graph():
  with tf.Graph().as_default():
    yield Graph()


def reference(hidden, table, ids, on, off, z_loss):
  """The loss, and the gradients of hidden and table, in float64."""
  hidden, table = hidden.astype(np.float64), table.astype(np.float64)
  logits = np.einsum("bld,vd->blv", hidden, table)
  greatest = logits.max(-1, keepdims=True)
  log_z = greatest + np.log(np.exp(logits - greatest).sum(-1, keepdims=True))
  targets = np.where(np.arange(11) == ids[..., None], on, off)
  loss = (targets * (log_z - logits)).sum(-1) + z_loss * log_z[..., 0] ** 2
  slope = targets.sum(-1, keepdims=True) + 2 * z_loss * log_z
  grad = GRAD[..., None] * (slope * np.exp(logits - log_z) - targets)
  return [loss, np.einsum("blv,vd->bld", grad, table),
          np.einsum("blv,bld->vd", grad, hidden)]


def losses(graph, hidden, table, all_ids, *args):
  """The losses of several ids under the same logits, and the gradients of their sum."""
  hidden = graph.tensor(hidden, [BATCH, LENGTH, D_MODEL])
  table = graph.tensor(table, [VOCABULARY, D_MODEL])
  logits = mtf.einsum([hidden, table], reduced_dims=[D_MODEL])
  values = [cross_entropy.cross_entropy(
      logits, graph.tensor(ids, [BATCH, LENGTH]), VOCABULARY, *args)
           for ids in all_ids]
  grads = mtf.gradients(
      values, [hidden, table], [graph.tensor(GRAD, [BATCH, LENGTH])] * len(values))
  return graph.run(values + grads)


def test_an_id_of_almost_no_probability_has_its_exact_loss(graph):
  """The softmax of these ids is 0 in float32."""
  values = losses(graph, HIDDEN * 100, TABLE, [IDS], 1.0, 0.0, 1e-4)
  expected = reference(HIDDEN * 100, TABLE, IDS, 1.0, 0.0, 1e-4)
  assert expected[0].max() > 200
  for value, wanted in zip(values, expected):
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)


def test_two_losses_of_the_same_logits_do_not_disturb_each_other(graph):
  first, second, *grads = losses(graph, HIDDEN, TABLE, [IDS, OTHER_IDS])
  expected = [reference(HIDDEN, TABLE, ids, 1.0, 0.0, 0.0)
              for ids in (IDS, OTHER_IDS)]
  for value, wanted in zip(
      [first, second, *grads],
      [expected[0][0], expected[1][0], *map(sum, zip(*[e[1:] for e in expected]))]):
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu:0", ""])
def test_rows_that_are_read_add_to_the_gradient_of_a_product(graph, device):
  """On a device without a name, which may be a GPU, whole tables are added."""
  table = graph.tensor(TABLE, [VOCABULARY, D_MODEL])
  read = [lookup.lookup(table, graph.tensor(ids, [BATCH, LENGTH]), VOCABULARY)
          for ids in (IDS, OTHER_IDS)]
  hidden = mtf.tanh(read[0] * 2 + read[1])
  logits = mtf.einsum([hidden, table], reduced_dims=[D_MODEL])
  loss = mtf.reduce_sum(mtf.square(logits))
  grad, = mtf.gradients([loss], [table])
  assert isinstance(grad.operation, lookup.AddRowsOperation)
  value, = graph.run([grad], device)

  def rows(ids):
    is_row = (ids >= 0) & (ids < 11)
    return np.where(is_row[..., None], TABLE[np.where(is_row, ids, 0)], 0), is_row

  (first, is_first), (second, is_second) = rows(IDS), rows(OTHER_IDS)
  h = np.tanh(2 * first + second)
  grad_logits = 2 * np.einsum("bld,vd->blv", h, TABLE)
  expected = np.einsum("blv,bld->vd", grad_logits, h)
  grad_read = np.einsum("blv,vd->bld", grad_logits, TABLE) * (1 - h ** 2)
  np.add.at(expected, IDS[is_first], 2 * grad_read[is_first])
  np.add.at(expected, OTHER_IDS[is_second], grad_read[is_second])
  np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_rows_that_are_read_add_to_numbers_and_other_tensors(graph):
  table = graph.tensor(TABLE, [VOCABULARY, D_MODEL])
  read = lookup.lookup(table, graph.tensor(OTHER_IDS, [BATCH, LENGTH]), VOCABULARY)
  grad, = mtf.gradients([mtf.reduce_sum(read)], [table])
  plain, more, other = graph.run([grad, 1.0 + grad, table + grad])
  counts = np.bincount(OTHER_IDS.flatten(), minlength=11)[:, None] * np.ones([1, 5])
  np.testing.assert_array_equal(plain, counts)
  np.testing.assert_array_equal(more, counts + 1)
  np.testing.assert_allclose(other, counts + TABLE, rtol=1e-6)
