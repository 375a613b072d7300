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


def output(logits, p, x, visible, heads):
  """softmax(logits) G(X), projected: logits [b, h, i, j], visible [b, i, j]."""
  logits = np.where(visible[:, None], logits, -1e30)
  values = np.einsum("bnd,dhk->bhnk", x, per_head(p["v"], heads))
  mean = np.einsum("bhij,bhjk->bhik", softmax(logits), values)
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
