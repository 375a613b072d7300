"""Computes the patterns of arXiv:2002.10260 from their definitions."""

import numpy as np
from support import reference

NAMES = ["current", "previous", "next", "left_context", "right_context", "end",
         "start", "uniform"]
LEFT = ["current", "previous", "left_context", "start", "uniform"]


def row(name, i, n):
  """The weights of query i in an example of n tokens, in the pattern `name`."""
  cubes = np.arange(1, n + 1) ** 3.0
  weights = np.zeros(n)
  if name in ("current", "previous", "next"):
    j = i + {"current": 0, "previous": -1, "next": 1}[name]
    weights[min(max(j, 0), n - 1)] = 1
  elif name == "left_context":
    end = max(i - 1, 1)
    weights[:end] = cubes[:end]
  elif name == "right_context":
    weights = row("left_context", n - 1 - i, n)[::-1]
  elif name == "end":
    weights = cubes
  elif name == "start":
    weights = cubes[::-1]
  else:
    weights[:] = 1
  return weights / weights.sum()


def expected_weights(names, ids, decoder):
  """The weights [batch, heads, length, memory_length]; zero across examples."""
  position = reference.positions(ids)
  batch, length = ids.shape
  weights = np.zeros([batch, len(names), length, length])
  for b, i in np.argwhere(ids > 0):
    start = i - position[b, i]
    n = position[b, i] + 1 if decoder else (ids[b] == ids[b, i]).sum()
    for h, name in enumerate(names):
      weights[b, h, i, start:start + n] = row(name, position[b, i], n)
  return weights
