"""Computes numbers for what the paper says about attention weights in words.

Section 5 of arXiv:2005.00743 asks how the weights are distributed, and whether a layer
has learned a local window.
"""

import numpy as np

# The ends of the histogram's bins. The paper speaks of the range 0.1 to 0.2.
BINS = np.linspace(0, 1, 101)


class Statistics:
  """Gathers the weights of one layer over examples.

  All results have one number, or one list, for each head. Masked keys do not count. The
  distribution of weights also leaves out queries with a single key, such as a decoder's
  first query: the weight of this key is always 1.
  """

  def __init__(self) -> None:
    self._profile = np.zeros((1, 1))
    # Arrays [heads] or [heads, bins], once there is an example.
    self._entropy: np.ndarray | float = 0.
    self._counts: np.ndarray | float = 0.
    self._sum: np.ndarray | float = 0.
    self._squares: np.ndarray | float = 0.
    self._max: np.ndarray | float = 0.
    self._rows = self._pairs = 0

  def add(self, weights: np.ndarray, mask: np.ndarray) -> None:
    """Adds one example.

    Args:
      weights: <float>[heads, length, length]; rows sum to 1.
      mask: <bool>[length, length]
    """
    weights = np.asarray(weights, np.float64) * mask
    self._rows += len(mask)
    free = mask & (mask.sum(-1, keepdims=True) > 1)
    free = free if free.any() else mask
    self._pairs += free.sum()
    self._profile = _add_centered(self._profile, _by_offset(weights))
    self._entropy += -(weights * np.log(np.maximum(weights, 1e-30))).sum((1, 2))
    weights = np.minimum(weights[:, free], 1)
    self._sum += weights.sum(-1)
    self._squares += (weights ** 2).sum(-1)
    self._max = np.maximum(self._max, weights.max(-1))
    self._counts += np.stack([np.histogram(head, BINS)[0] for head in weights])

  @property
  def histogram(self) -> np.ndarray:
    """[heads, bins]: the share of all weights in each bin of `BINS`."""
    return np.asarray(self._counts / self._pairs)

  @property
  def profile(self) -> np.ndarray:
    """[heads, 2 * length - 1]: the weight of the key at each offset.

    Offsets run from 1 - length to length - 1. A key before its query has a negative
    offset. The weights are means over queries; queries at the ends have fewer keys.
    """
    return self._profile / self._rows

  @property
  def offsets(self) -> np.ndarray:
    size = self._profile.shape[-1] // 2
    return np.arange(-size, size + 1)

  def window_mass(self, window: int) -> np.ndarray:
    """[heads]: the weight that lies within +-window of the query."""
    return self.profile[:, np.abs(self.offsets) <= window].sum(-1)

  def summary(self, windows: list[int]) -> dict[str, np.ndarray]:
    """Returns all numbers.

    Returns:
      a dict from names to arrays [heads], [heads, windows] or [heads, bins].
    """
    mean = self._sum / self._pairs
    cuts = np.round(BINS, 6)
    share = self.histogram
    return {
        "entropy": self._entropy / self._rows,
        "distance": self.profile @ np.abs(self.offsets),
        "window_mass": np.stack(
            [self.window_mass(w) for w in windows], axis=-1),
        "half_mass_window": self._half_mass_window(),
        "mean": mean,
        "stddev": np.sqrt(np.maximum(self._squares / self._pairs - mean**2, 0)),
        "max": self._max * np.ones_like(mean),
        "share_below_0.1": share[:, cuts[:-1] < 0.1].sum(-1),
        "share_0.1_to_0.2": share[
            :, (cuts[:-1] >= 0.1) & (cuts[:-1] < 0.2)].sum(-1),
        "share_above_0.2": share[:, cuts[:-1] >= 0.2].sum(-1),
        "histogram": share,
    }

  def _half_mass_window(self):
    """[heads]: the smallest window around the query that holds half the weight."""
    size = len(self.offsets) // 2
    masses = np.stack([self.window_mass(w) for w in range(size + 1)])
    return (masses >= 0.5 * masses[-1] - 1e-9).argmax(0)


def uniform(mask: np.ndarray) -> np.ndarray:
  """<float>[1, length, length]: the same weight for all keys that the mask allows."""
  return (mask / np.maximum(mask.sum(-1, keepdims=True), 1))[None]


def _by_offset(weights):
  """[heads, 2 * length - 1]: sums along the diagonals."""
  length = weights.shape[-1]
  return np.stack([np.trace(weights, offset, axis1=1, axis2=2)
                   for offset in range(1 - length, length)], axis=-1)


def _add_centered(a, b):
  """Returns a + b, with the shorter list aligned to the middle of the longer list."""
  if a.shape[-1] > b.shape[-1]:
    a, b = b, a
  pad = (b.shape[-1] - a.shape[-1]) // 2
  return np.pad(a, [(0, 0), (pad, pad)]) + b
