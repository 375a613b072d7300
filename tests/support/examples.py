"""Tokens and rows for tests of layers, and common parametrizations of tests."""

import numpy as np
import pytest
from support import harness
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention.functions import base

PADDED = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
PACKED = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 1, 2, 2, 2, 2, 2]])

WITH_TABLES = [name for name, cls in functions.SYNTHESIZING_FUNCTIONS.items()
               if issubclass(cls, base.LengthTables)]
both_stacks = pytest.mark.parametrize(
    "decoder", [False, True], ids=["encoder", "decoder"])


def tokens(batch=2, length=7, seed=1):
  generator = np.random.RandomState(seed)
  return generator.randn(batch, length, harness.D_MODEL).astype(np.float32)
