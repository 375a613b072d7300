"""Formulas from papers that the NumPy references of all attentions share.

The formulas of the logits are in the rows of `cases.py`.
"""

import numpy as np


def per_head(weights, heads):
  """[d_model, heads * d_kv] -> [d_model, heads, d_kv]."""
  return weights.reshape(weights.shape[0], heads, -1)


def softmax(logits):
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


def relative_bias(table, length, decoder):
  """T5's relative position bias (arXiv:1910.10683, 2.1), from a table [heads, buckets].

  "We use 32 embeddings for all of our models with ranges that increase in size
  logarithmically up to an offset of 128". Half of the buckets hold one offset each.
  In encoders, the first half of the table is for keys up to the query. The second half
  is for keys after the query.
  """
  buckets = table.shape[1] // (1 if decoder else 2)
  single = buckets // 2
  bias = np.zeros([len(table), length, length])
  for i, j in np.ndindex(length, length):
    n = max(i - j, 0) if decoder else abs(i - j)
    bucket = n if n < single else min(buckets - 1, single + int(
        np.log(n / single) / np.log(128 / single) * (buckets - single)))
    bias[:, i, j] = table[:, bucket + (0 if decoder or j <= i else buckets)]
  return bias


def output(logits, p, x, mask, heads, use_softmax=True):
  """softmax(logits) G(X), projected: logits [b, h, i, j], mask [b, i, j]."""
  mask = mask[:, None]
  weights = (softmax(np.where(mask, logits, -1e30)) if use_softmax
             else np.where(mask, logits, 0))
  values = np.einsum("bnd,dhk->bhnk", x, per_head(p["v"], heads))
  mean = np.einsum("bhij,bhjk->bhik", weights, values)
  return np.einsum("bhik,hkd->bid", mean,
                   p["o"].reshape(heads, -1, x.shape[-1]))


def mask(sequence_id, decoder):
  """The mask [batch, length, memory_length]: same segment; in a decoder, not later."""
  same = sequence_id[:, :, None] == sequence_id[:, None, :]
  return np.tril(same) if decoder else same


def positions(sequence_id):
  """Each token's position within its segment: [batch, length]."""
  result = np.zeros_like(sequence_id)
  for row, ids in zip(result, sequence_id):
    for i in range(1, len(ids)):
      row[i] = row[i - 1] + 1 if ids[i] == ids[i - 1] else 0
  return result


def check_same(values, expected, atol=1e-4):
  """Compares values by name, such as a loss and gradients."""
  assert values.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(values[name], value, atol=atol, err_msg=name)


def check_gradients(grads, values, loss):
  """Compares gradients with finite differences.

  Args:
    grads: a dict from names of variables to gradients of the loss.
    values: <float64>, a dict from names to the values of all variables.
    loss: a function of such a dict.
  """
  for name, grad in grads.items():
    direction = np.random.RandomState(3).randn(*grad.shape)
    # A larger step would more often cross the kink of a relu.
    ends = [loss({**values, name: values[name] + step * direction})
            for step in (1e-7, -1e-7)]
    np.testing.assert_allclose(
        (grad * direction).sum(), (ends[0] - ends[1]) / 2e-7,
        rtol=2e-3, atol=1e-3 * max(1, np.abs(grad).max()), err_msg=name)


def stretched(table, axis, size):
  """NumPy's interpolation of a table along an axis; both ends stay."""
  where = np.linspace(0, table.shape[axis] - 1, size)
  return np.apply_along_axis(
      lambda line: np.interp(where, np.arange(len(line)), line), axis, table)
