"""The mean attention of a layer, from sums over batches.

All arrays are by the positions of query and key in their segment. So padding, shorter
texts, the order of a decoder and packed rows do not matter: a pair of positions counts
where a text has both, and the query may see the key.
"""

from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np
from synthesizer_mtf.tools.calibrate import moments


class Means:
  """Sums over batches of one layer, in float64, however many batches there are.

  Attributes:
    weights: <float64>[heads, length, memory_length], sums of weights.
    pairs: <float64>[length, memory_length], how many queries saw a key there.
    entropies: <float64>[heads, length], sums of entropies, in nats.
  """

  def __init__(self, heads: int, length: int) -> None:
    self.weights = np.zeros([heads, length, length])
    self.pairs = np.zeros([length, length])
    self.entropies = np.zeros([heads, length])

  def add(self, sums: moments.Sums) -> None:
    """Adds the sums of a batch."""
    self.weights += sums.weights
    self.pairs += sums.pairs
    self.entropies += sums.entropy

  @property
  def queries(self) -> np.ndarray:
    """<float64>[length, memory_length]: how many queries at a position saw n + 1 keys.

    A query sees the keys from the first position to some last one, which is the end of
    its segment, or the query itself in a decoder.
    """
    beyond = np.pad(self.pairs[:, 1:], [(0, 0), (0, 1)])
    return np.maximum(self.pairs - beyond, 0)

  def entropy(self) -> np.ndarray:
    """<float64>[heads]: the mean entropy of a query's weights, in nats."""
    return self.entropies.sum(-1) / max(self.queries.sum(), 1)

  def constant_entropy(self, logits: np.ndarray) -> np.ndarray:
    """The mean entropy of a constant attention, over the keys that each query sees.

    Args:
      logits: as in `divergence`.

    Returns:
      <float64>[heads], in nats.
    """
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    sums = np.cumsum(weights, -1)
    safe = np.maximum(sums, 1e-300)
    # The entropy of w_0 / s, ..., w_n / s is log s - sum_j w_j log w_j / s.
    entropies = np.log(safe) - np.cumsum(
        weights * np.log(np.maximum(weights, 1e-300)), -1) / safe
    queries = self.queries
    return (queries * entropies).sum((-1, -2)) / max(queries.sum(), 1)

  def divergence(self, logits: np.ndarray) -> np.ndarray:
    """The mean KL divergence of the queries' weights from a constant attention.

    Args:
      logits: <float64>[heads, length, memory_length], whose softmax over the keys that
        a query sees is the constant attention.

    Returns:
      <float64>[heads], in nats.
    """
    # Not the log of a sum: a later key, which is not seen, may have all the weight.
    normalizer = np.logaddexp.accumulate(logits, axis=-1)
    queries = self.queries
    normalizer = np.where(queries > 0, normalizer, 0)
    cross = (queries * normalizer).sum((-1, -2)) - (
        self.weights * np.where(self.weights > 0, logits, 0)).sum((-1, -2))
    return (cross - self.entropies.sum(-1)) / max(queries.sum(), 1)


def gather(batches: Iterable[Mapping[str, moments.Sums]],
           layers: Mapping[str, moments.Layer]) -> dict[str, Means]:
  """Adds up the sums of batches.

  Args:
    batches: what `reading.Graph.sums` returns, for each batch.
    layers: `reading.Graph.layers`.

  Returns:
    a dict from the names of layers to `Means`.
  """
  averages: dict[str, Means] = {}
  for batch in batches:
    for name, sums in batch.items():
      if name not in averages:
        averages[name] = Means(layers[name].heads, layers[name].length)
      averages[name].add(sums)
  return averages
