"""NumPy references, written from the formulas of arXiv:2005.00743."""

import numpy as np


def per_head(weights, heads):
  """[d_model, heads * d_kv] -> [d_model, heads, d_kv]."""
  return weights.reshape(weights.shape[0], heads, -1)


def dot_product(p, x, position, heads):
  q = np.einsum("bnd,dhk->bhnk", x, per_head(p["q"], heads))
  k = np.einsum("bnd,dhk->bhnk", x, per_head(p["k"], heads))
  return np.einsum("bhik,bhjk->bhij", q, k)


def random(p, x, position, heads):
  return np.stack([p["R"][:, rows[:, None], rows] for rows in position])


def factorized_random(p, x, position, heads):
  r = np.einsum("hik,hjk->hij", p["R1"], p["R2"])
  return np.stack([r[:, rows[:, None], rows] for rows in position])


def _hidden(p, x, heads):
  return np.maximum(0, np.einsum("bnd,dhk->bhnk", x, per_head(p["W1"], heads)))


def dense(p, x, position, heads):
  f = np.einsum("bhnk,hkm->bhnm", _hidden(p, x, heads), p["W2"])
  return np.stack([f[b][..., columns] for b, columns in enumerate(position)])


def dense_with_options(p, x, position, heads):
  """relu(X W1 + b1) W2 + b2, where W1 may be V's q, W2 have no heads, b be 0."""
  weights = per_head(p["W1"] if "W1" in p else p["q"], heads)
  b1 = p.get("b1", np.zeros(weights.shape[1:]))
  hidden = np.einsum("bnd,dhk->bhnk", x, weights) + b1[:, None]
  w2 = np.broadcast_to(p["W2"], weights.shape[1:] + p["W2"].shape[-1:])
  f = np.einsum("bhnk,hkm->bhnm", np.maximum(0, hidden), w2)
  f += p.get("b2", np.zeros([heads, f.shape[-1]]))[:, None]
  return np.stack([f[b][..., columns] for b, columns in enumerate(position)])


def factorized_dense(p, x, position, heads):
  hidden = _hidden(p, x, heads)
  a = np.einsum("bhnk,hka->bhna", hidden, p["WA"])
  b = np.einsum("bhnk,hkc->bhnc", hidden, p["WB"])
  c = np.repeat(a, b.shape[-1], -1) * np.tile(b, a.shape[-1])
  return np.stack([c[i][..., columns] for i, columns in enumerate(position)])


def left_patterns(p, x, position, heads):
  """Three heads of arXiv:2002.10260, left context, previous and current token.

  Their weights depend on nothing to the right. Zeros are 1e-13 in the logarithm.
  """
  del p, x
  assert heads in (1, 3)
  n = position.shape[1]
  weights = np.zeros([len(position), 3, n, n])
  for b, i, j in np.ndindex(len(position), n, n):
    query, key = position[b, i], position[b, j]
    weights[b, 0, i, j] = (key + 1)**3 * (key <= max(query - 2, 0)) / sum(
        (k + 1)**3 for k in range(max(query - 2, 0) + 1))
    weights[b, 1, i, j] = key == max(query - 1, 0)
    weights[b, 2, i, j] = key == query
  return np.log(np.maximum(weights, 1e-13))[:, :heads]


LOGITS = {"V": dot_product, "R": random, "Fix": random, "FR": factorized_random,
          "D": dense, "FD": factorized_dense, "Pattern": left_patterns}


def softmax(logits):
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


def mixed_logits(notation, p, x, position, heads):
  """sum_i alpha_i S_i(X), with alpha a softmax over the parts, per head."""
  parts = [LOGITS[name](p, x, position, heads) for name in notation.split("+")]
  if len(parts) == 1:
    return parts[0]
  alpha = softmax(p["alpha"].astype(np.float64))
  return sum(alpha[:, i, None, None] * part for i, part in enumerate(parts))


def relative_bias(table, length, decoder):
  """T5's bias (arXiv:1910.10683, section 2.1), by table [heads, buckets].

  "We use 32 embeddings for all of our models with ranges that increase in size
  logarithmically up to an offset of 128". Half of the buckets hold one offset
  each; encoders have as many for keys after the query, after those before it.
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


def output(logits, p, x, visible, heads, use_softmax=True):
  """softmax(logits) G(X), projected: logits [b, h, i, j], visible [b, i, j]."""
  visible = visible[:, None]
  weights = (softmax(np.where(visible, logits, -1e30)) if use_softmax
             else np.where(visible, logits, 0))
  values = np.einsum("bnd,dhk->bhnk", x, per_head(p["v"], heads))
  mean = np.einsum("bhij,bhjk->bhik", weights, values)
  return np.einsum("bhik,hkd->bid", mean,
                   p["o"].reshape(heads, -1, x.shape[-1]))


def visible(sequence_id, decoder):
  """Same segment and, in a decoder, not later: [batch, length, memory_length]."""
  same = sequence_id[:, :, None] == sequence_id[:, None, :]
  return np.tril(same) if decoder else same


def positions(sequence_id):
  """Each token's position within its segment: [batch, length]."""
  result = np.zeros_like(sequence_id)
  for row, ids in zip(result, sequence_id):
    for i in range(1, len(ids)):
      row[i] = row[i - 1] + 1 if ids[i] == ids[i - 1] else 0
  return result


def attention(notation, p, x, sequence_id, decoder, heads):
  """A whole layer: [batch, length, d_model]."""
  p = {name: value.astype(np.float64) for name, value in p.items()}
  logits = mixed_logits(notation, p, x.astype(np.float64),
                        positions(sequence_id), heads)
  return output(logits, p, x, visible(sequence_id, decoder), heads)
