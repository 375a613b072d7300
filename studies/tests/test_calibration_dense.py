"""D and FD from the attention of V, against NumPy."""

import numpy as np
import pytest
from studies.calibration import dense
from studies.calibration import factorized_dense
from studies.calibration import graphs
from studies.calibration import worth
from support import calibrated
from support import mtf_models
import tensorflow.compat.v1 as tf

BATCH, HEADS, LENGTH, D_MODEL, D_KV = 7, 2, 5, 11, 6


def generator(seed=0):
  return np.random.RandomState(seed)


def sizes(causal):
  """How many keys each query sees, 0 for padding: [batch, length]."""
  lengths = generator().randint(1, LENGTH + 1, [BATCH, 1])
  index = np.arange(LENGTH)
  return np.where(index < lengths, index + 1 if causal else lengths, 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_each_column_is_the_least_squares_of_the_queries_that_see_it(causal, shared):
  count = sizes(causal)
  hidden = generator(1).rand(BATCH, LENGTH, HEADS, D_KV) * (count > 0)[..., None, None]
  seen = np.arange(LENGTH) < count[..., None]
  logits = generator(2).randn(BATCH, HEADS, LENGTH, LENGTH) * seen[:, None]
  group = np.eye(LENGTH)[count - 1] * (count > 0)[..., None]
  seeing = group.sum((0, 1))
  found = dense.columns(
      np.einsum("bic,bihk,bihl->chkl", group, hidden, hidden),
      np.einsum("bihk,bhip->hkp", hidden, logits), seeing, size=1, shared=shared)
  heads = [(0, 1)] if shared else [(0,), (1,)]
  ridge = 0.1 * (hidden ** 2).sum() / D_KV / seeing.sum() / len(heads)
  for which, members in enumerate(heads):
    for column in range(LENGTH):
      rows = np.concatenate([hidden[seen[..., column], head] for head in members])
      wanted = np.concatenate([
          logits[:, head, :, column][seen[..., column]] for head in members])
      rows = np.concatenate([rows, ridge ** 0.5 * np.eye(D_KV)])
      expected = np.linalg.lstsq(
          rows, np.concatenate([wanted, np.zeros(D_KV)]), rcond=None)[0]
      table = found if shared else found[which]
      np.testing.assert_allclose(table[:, column], expected, rtol=1e-6, atol=1e-9)


def test_columns_of_a_group_share_its_queries():
  squares = np.stack([np.eye(D_KV) * weight for weight in (8., 6.)])[:, None]
  products = generator().randn(1, D_KV, 4)
  # Of the 8 queries of the first group 2 see one column, of the 6 of the second 3.
  found = dense.columns(squares, products, np.array([2., 6., 3., 3.]), size=2)
  ridge = 0.1
  for column, queries in enumerate((8 + 6, 6 + 6, 6, 3)):
    np.testing.assert_allclose(
        found[..., column], products[..., column] / (queries + ridge))


def test_the_directions_are_those_of_the_regression_of_low_rank():
  x = generator().randn(400, D_MODEL) @ generator(1).randn(D_MODEL, D_MODEL)
  logits = x @ generator(2).randn(HEADS, D_MODEL, LENGTH) + generator(3).randn(
      HEADS, 400, LENGTH)
  found = dense.directions(
      x.T @ x, x.T @ logits, np.array([0, 0, 0, 0, 400.]), D_KV)
  for head in range(HEADS):
    each = found.reshape(D_MODEL, HEADS, D_KV)[:, head]
    np.testing.assert_array_equal(each[:, 3:], -each[:, :3])
    np.testing.assert_allclose(
        each[:, :3].T @ x.T @ x @ each[:, :3] / 400, np.eye(3), atol=1e-2)
    projected = x @ each[:, :3]
    rest = np.linalg.lstsq(projected, logits[head], rcond=None)[1].sum()
    # The optimum: the regression, and the best approximation of what it predicts.
    fitted = x @ np.linalg.lstsq(x, logits[head], rcond=None)[0]
    lost = (np.linalg.svd(fitted, compute_uv=False)[3:] ** 2).sum()
    optimum = ((logits[head] - fitted) ** 2).sum() + lost
    np.testing.assert_allclose(rest, optimum, rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_the_logits_are_centered_over_what_the_query_sees(packed):
  ids = np.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]])
  positions = np.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
  if not packed:
    ids, positions = np.minimum(ids, 1), np.tile(np.arange(LENGTH), [2, 1])
  seen = (ids[:, :, None] == ids[:, None]) * (ids[:, :, None] > 0) * np.tri(LENGTH)
  logits, bias = generator().randn(2, HEADS, LENGTH, LENGTH), generator(1).randn(
      HEADS, LENGTH, LENGTH)
  weights = np.exp(logits + bias) * seen[:, None]
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
  with tf.Graph().as_default(), tf.Session() as session:
    found, count = session.run(dense.centered_logits(dense.moments.Attention(
        *(tf.constant(each, tf.float32) for each in (weights, seen)),
        tf.constant(positions, tf.int32), None, packed), tf.constant(bias, tf.float32)))
  np.testing.assert_array_equal(count, seen.sum(-1))
  for b, i in np.argwhere(ids > 0):
    keys = np.flatnonzero(seen[b, i])
    expected = np.zeros([HEADS, LENGTH])
    expected[:, positions[b, keys]] = logits[b][:, i, keys] - logits[b][
        :, i, keys].mean(-1, keepdims=True)
    np.testing.assert_allclose(found[b, :, i], expected, atol=1e-4)


def test_fd_finds_products_that_tokens_predict():
  """Alternating solutions explain more and more of products that FD can make."""
  sizes, rows = (3, 2), 40
  hidden = np.maximum(generator().randn(rows, LENGTH, HEADS, D_KV), 0) + 0.1
  left, right = (np.einsum("bihk,hkn->bhin", hidden, 1 + generator(n).randn(
      HEADS, D_KV, n)) for n in sizes)
  count = generator().randint(1, LENGTH + 1, [rows, LENGTH])
  seen = np.arange(LENGTH) < count[..., None]
  logits = (left[..., None] * right[..., None, :]).reshape(
      rows, HEADS, LENGTH, 6)[..., :LENGTH] * seen[:, None]
  shares = []
  with tf.Graph().as_default(), tf.Session() as session:
    fed = [tf.placeholder(tf.float32, [rows, HEADS, LENGTH, n]) for n in sizes]
    sums = [factorized_dense.half(*(tf.constant(each, tf.float32) for each in (
        hidden, logits, count)), fed[1 - axis], sizes, axis) for axis in (0, 1)]
    known = np.ones([rows, HEADS, LENGTH, sizes[1]])
    for step in range(16):
      axis = step % 2
      squares, products, variance = session.run(sums[axis], {fed[1 - axis]: known})
      found = factorized_dense.solve(squares, products)
      if not step:  # Against the least squares of one block of columns.
        mask = seen[:, :, 2:4].sum(-1)[..., None] ** 0.5
        wanted = logits[:, 1, :, 2:4].sum(-1)[..., None] / np.maximum(mask, 1e-9)
        expected = np.linalg.lstsq((hidden[:, :, 1] * mask).reshape(-1, D_KV),
                                   wanted.ravel(), rcond=None)[0]
        np.testing.assert_allclose(found[1, :, 1], expected, rtol=0.05, atol=0.05)
      known = np.einsum("bihk,hkn->bhin", hidden, found)
      shares.append((found.transpose(0, 2, 1) * products).sum((1, 2)) / variance)
  assert (np.diff(shares, axis=0) > -1e-3).all()
  assert (shares[-1] > 0.97).all() and (shares[0] < shares[-1]).all()


@pytest.mark.slow
def test_d_is_fitted_to_the_inputs_of_its_layer(tmp_path):
  """One text repeated has as many queries as W2 has rows, so D can learn them."""
  model = calibrated.write(tmp_path, ["a bird\tein Tier"])
  output = str(tmp_path / "d")
  worth.main([f"--model_dir={model}", f"--output={output}", "--batches=2",
              "--batch_size=3", "--to=[V,D]/[FD,V]"])
  new = mtf_models.variables(output)
  place = "encoder/block_001/layer_000/SyntheticAttention/"
  assert new[place + "W2"].shape == (2, 6, calibrated.LENGTHS["inputs"])
  factors = [new[f"decoder/block_000/layer_000/SyntheticAttention/{name}"]
             for name in ("WA", "WB")]
  assert [each.shape for each in factors] == [(2, 6, 1), (2, 6, 11)]
  assert all(each.any() for each in factors)
  data, graph = calibrated.graph_of(output)
  _, v = calibrated.graph_of(model, make=graphs.Graph)
  batch = next(data.batches(1))
  attention = v.run(v.define(lambda found: found["encoder/1"][:4]), batch)
  x, weights = attention[3][0, :7], attention[0][0, :, :7, :7]
  hidden = np.maximum((x @ new[place + "W1"]).reshape(7, 2, 6), 0)
  found = np.einsum("ihk,hkp->hip", hidden, new[place + "W2"])[..., :7]
  wanted = np.log(weights) - v.biases()["encoder/1"][:, :7, :7]
  wanted -= wanted.mean(-1, keepdims=True)
  assert ((found - wanted) ** 2).mean() < 0.5 * (wanted ** 2).mean()
  assert not new[place + "W2"][..., 7:].any()
