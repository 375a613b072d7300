"""Tokens and rows for tests of layers."""

import numpy as np
from support import harness

PADDED = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
PACKED = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 1, 2, 2, 2, 2, 2]])


def tokens(batch=2, length=7, seed=1):
  generator = np.random.RandomState(seed)
  return generator.randn(batch, length, harness.D_MODEL).astype(np.float32)
