"""From the mean attention of a layer to the variables of R, Fix, T and FR.

Softmax forgets a constant of a row, so a constant attention m is any logits
log m + c. T5's relative position bias stays in the layer, which adds it. So a table
gets log m less the bias, and the softmax of their sum is still m.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.calibrate import means

# The log of the weight of a pair that no text has, and of smaller weights.
FLOOR = np.log(1e-9)

# What can take the place of V.
NAMES = ("R", "Fix", "T", "FR")

# Softmax of these is exactly 1 and 0 in float32, whose smallest number is e^-103.
_ALPHA = 64.0
_ROUNDS = 300  # Far more than texts need.
_ENOUGH = 1e-7  # The share of the weight that may differ in the end.


class Replacement(NamedTuple):
  """What takes the place of a layer's attention.

  Attributes:
    variables: a dict from names in the layer, such as "R", to arrays.
    logits: <float64>[heads, length, memory_length], the constant attention with T5's
      bias; None if it depends on the tokens.
    notes: sentences for the log.
  """
  variables: dict[str, np.ndarray]
  logits: np.ndarray | None
  notes: list[str]


def pair_logits(mean: means.Means) -> np.ndarray:
  """The logits of each pair of positions that are nearest to all attentions.

  They have the least mean KL divergence (`Means.divergence`). If the queries at each
  position see equally many keys, as in a decoder, they are the logs of the mean
  weights. Otherwise a mean over short and long texts would favor the first keys, which
  have more weight in short texts.

  Args:
    mean: that of a layer.

  Returns:
    <float64>[heads, length, memory_length]; `FLOOR` for pairs never seen.
  """
  share = _nearest(mean, mean.weights, lambda share: share, lambda values: values, -1)
  # As in the mean of the longest texts, the weights of a row sum to 1.
  total = share.sum(-1, keepdims=True)
  return _log(share / np.where(total > 0, total, 1))


def by_distance(mean: means.Means) -> np.ndarray:
  """The logits for each distance of key and query that are nearest to all attentions.

  They, too, have the least mean KL divergence, so the mean weight at each distance is
  that of V. The logs of the mean weights at a distance would not do: a decoder's first
  queries see few keys, each with a large weight.

  Args:
    mean: that of a layer.

  Returns:
    <float64>[heads, 2 * length - 1], for the distances 1 - length, ..., length - 1;
    negative ones for keys before the query. `FLOOR` for distances never seen.
  """
  distance = _distances(len(mean.pairs))
  flat, size = distance.ravel(), 2 * len(mean.pairs) - 1

  def add(values):  # [heads, length, length] -> [heads, distances]
    return np.stack([np.bincount(flat, head.ravel(), size) for head in values])

  share = _nearest(
      mean, add(mean.weights), lambda share: share[:, distance], add, -1)
  return _log(share / np.maximum(share.max(-1, keepdims=True), 1e-300))


def _distances(length):
  """<int>[length, memory_length]: the index of each pair's distance."""
  return np.arange(length)[None] - np.arange(length)[:, None] + length - 1


def _log(share):
  return np.log(np.maximum(share, np.exp(FLOOR)))


def _nearest(mean, observed, spread, add, axis):
  """The constant attention whose weights add up to those of V.

  It is found in rounds. Each multiplies a share by V's weight there, and divides it by
  the weight of the constant attention (the minorization of the likelihood of a choice
  among varying sets, which never lets it fall).

  Args:
    mean: that of a layer.
    observed: <float64>[heads, ...], the sums of V's weights that are to be met.
    spread: a function from [heads, ...] to [heads, length, memory_length].
    add: its transposition.
    axis: the axis over which shares can be scaled.

  Returns:
    <float64>[heads, ...], shares of at least 0.
  """
  queries = mean.queries
  share = (observed > 0).astype(np.float64)
  for _ in range(_ROUNDS):
    # A query that sees the keys 0, ..., n shares its weight among them.
    sums = np.cumsum(spread(share), -1)
    shares = np.divide(queries, sums, out=np.zeros_like(sums), where=(queries > 0) & (
        sums > 0))
    expected = share * add(np.cumsum(shares[..., ::-1], -1)[..., ::-1])
    if np.abs(observed - expected).sum() < _ENOUGH * observed.sum():
      break
    share = np.divide(share * observed, expected, out=np.zeros_like(share),
                      where=expected > 0)
    share /= np.maximum(share.max(axis, keepdims=True), 1e-300)
  return share


def low_rank(table: np.ndarray, weights: np.ndarray, rank: int,
             rounds: int = 25, enough: float = 1e-3,
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Factors whose product is nearest to a table, up to a constant of each row.

  They minimize sum_ij weights_ij (table_ij - row_i - sum_r left_ir right_jr)^2. Softmax
  forgets the constants row_i, so they are free, and are not returned. With equal
  weights the minimum is the SVD of the table without its rows' means; the search
  begins with its right side, and solves for one side at a time.

  Args:
    table: <float64>[length, memory_length]
    weights: <float64>[length, memory_length], at least 0.
    rounds: how often to solve for both sides at most.
    enough: the search ends when a round lowers the error by a smaller share.

  Returns:
    left <float64>[length, rank], right <float64>[memory_length, rank], and the error
    of each row, <float64>[length]: its part of the minimum.
  """
  total = weights.sum(-1, keepdims=True)
  mean = (table * weights).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
  centered = np.where(weights > 0, table - mean, 0)
  # For some singular vectors of one side, this is faster than an SVD.
  squares, vectors = np.linalg.eigh(centered.T @ centered)
  size = min(rank, len(squares))
  left, right = np.zeros([len(table), rank]), np.zeros([table.shape[1], rank])
  right[:, :size] = (vectors * np.maximum(squares, 0) ** 0.25)[:, ::-1][:, :size]
  constant = np.ones([len(right), 1])
  best = np.inf, left, right, np.zeros(len(table))
  for _ in range(rounds):
    both = _solve(table, weights, np.concatenate([right, constant], 1))
    left, row = both[:, :-1], both[:, -1:]
    error = (weights * (table - row - left @ right.T) ** 2).sum(-1)
    if error.sum() >= best[0] * (1 - enough):
      break
    best = error.sum(), left, right, error
    right = _solve((table - row).T, weights.T, left)
  return best[1], best[2], best[3]


def _solve(table, weights, known):
  """The factor [length, rank] nearest to table ~ factor @ known.T, row by row."""
  rank = known.shape[1]
  squares = (known[:, :, None] * known[:, None, :]).reshape(len(known), -1)
  normal = (weights @ squares).reshape(len(table), rank, rank)
  right = (weights * table) @ known
  # Rows without a weight, and directions that no column has, get 0.
  ridge = 1e-10 * (np.trace(normal, axis1=1, axis2=2)[:, None, None] / rank + 1e-12)
  return np.linalg.solve(normal + ridge * np.eye(rank), right[..., None])[..., 0]


def replacement(notation: str, mean: means.Means, bias: np.ndarray | None,
                shapes: Mapping[str, Sequence[int]]) -> Replacement:
  """The variables of one layer.

  Args:
    notation: one of `NAMES`.
    mean: that of V in the layer.
    bias: <float>[heads, length, memory_length], T5's relative position bias; or None.
    shapes: the shapes of the variables, by their names in the layer.

  Raises:
    ValueError: the tables repeat.
  """
  without = 0 if bias is None else np.asarray(bias, np.float64)
  if notation == "T":
    return _toeplitz(mean, without, shapes)
  logits = pair_logits(mean)
  if notation == "FR":
    return _factorized(mean, logits, without, shapes)
  heads, size, _ = shapes["R"]
  table = np.full([heads, size, size], FLOOR)
  length = _fitting(len(mean.pairs), size, notation)
  table[:, :length, :length] = logits - without
  return Replacement({"R": table}, logits, [])


def _fitting(length, size, notation):
  if size < length:
    raise checks.Error(
        f"{notation}'s tables have {size} positions and repeat (`tile_length`), but "
        f"the task's sequences have {length}; leave `tile_length` out.")
  return length


def _toeplitz(mean, bias, shapes):
  total = by_distance(mean)
  length = _fitting(len(mean.pairs), shapes["T"][1], "T")
  table = total
  if np.ndim(bias):
    # The bias of a distance, from the first and the last query.
    table = total - np.concatenate([bias[:, -1], bias[:, 0, 1:]], -1)
  variables = {}
  for name, part in (("T", table[:, length - 1::-1]), ("T_after", table[:, length:])):
    if name in shapes:
      variables[name] = np.full(shapes[name], FLOOR)
      variables[name][:, :part.shape[1]] = part
  return Replacement(variables, total[:, _distances(length)], [])


def _factorized(mean, logits, bias, shapes):
  """FR, as the best of two approximations of R.

  A logit counts as often as its pair was seen, or in proportion to V's weight there,
  too, which is what the divergence comes to if the error is small. Neither is always
  the nearer to V.
  """
  heads, size, rank = shapes["R1"]
  _fitting(len(mean.pairs), size, "FR")
  left, right = np.zeros([heads, size, rank]), np.zeros(shapes["R2"])
  made = np.zeros_like(logits)
  least = np.full(heads, np.inf)
  for weights in (np.broadcast_to(mean.pairs, logits.shape), mean.weights):
    factors = [low_rank(table, weights_, rank)[:2]
               for table, weights_ in zip(logits - bias, weights)]
    rows, columns = map(np.stack, zip(*factors))
    product = np.where(mean.pairs > 0, rows @ columns.transpose(0, 2, 1) + bias, FLOOR)
    divergence = mean.divergence(product)
    better = divergence < least
    # Positions that no text has are as the last one that a text has.
    known = np.minimum(np.arange(size), max(int((mean.pairs > 0).any(0).sum()), 1) - 1)
    left[better], right[better] = rows[better][:, known], columns[better][:, known]
    made[better], least[better] = product[better], divergence[better]
  errors = _error(logits - made, mean.pairs)
  more = least - mean.divergence(logits)
  return Replacement({"R1": left, "R2": right}, made, [
      f"rank {rank} leaves an error of {errors.mean():.3g} in R's logits (root of the "
      f"mean square; at most {errors.max():.3g} in a head), and a divergence that is "
      f"larger by {more.mean():.3g} (at most {more.max():.3g})"])


def _error(rest, pairs):
  """<float64>[heads]: the root of the mean square of what is left, up to rows."""
  count = np.maximum(pairs.sum(-1, keepdims=True), 1)
  rest = rest - (rest * pairs).sum(-1, keepdims=True) / count
  return np.sqrt((pairs * rest ** 2).sum((-1, -2)) / max(pairs.sum(), 1))


def alpha(chosen: Sequence[int], parts: int = 2) -> np.ndarray:
  """The variable `alpha` of a mixture in which each head is wholly one of the parts.

  Args:
    chosen: for each head, the number of its part; in TARGET+V, 0 is TARGET.
    parts: the number of parts.

  Returns:
    <float32>[heads, parts], whose softmax is exactly 1 and 0.
  """
  chosen_parts = np.eye(parts)[list(chosen)] > 0
  return np.where(chosen_parts, _ALPHA, -_ALPHA).astype(np.float32)
