"""Tokens and rows for tests of layers, and common parametrizations of tests."""

import numpy as np
import pytest
from support import cases
from support import harness
from synthesizer_mtf.synthesizers import base
from synthesizer_mtf.synthesizers import names

PADDED = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
PACKED = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 1, 2, 2, 2, 2, 2]])

# Kinds of rows, and the arguments of a layer's call for each kind.
ROWS = {
    "padded": (PADDED, {}), "packed": (PACKED, {"packed": True}),
    "padded on TPUs": (PADDED, {"tpu": True}),
    "packed on TPUs": (PACKED, {"packed": True, "tpu": True})}

every_notation = pytest.mark.parametrize("notation", cases.NOTATIONS)
WITH_TABLES = [name for name, cls in names.SYNTHESIZING_FUNCTIONS.items()
               if issubclass(cls, base.LengthTables)]
every_variant_with_tables = pytest.mark.parametrize("notation", WITH_TABLES)
both_stacks = pytest.mark.parametrize(
    "decoder", [False, True], ids=["encoder", "decoder"])


def rows_in_turn(notations):
  """Parametrizes a test: for each notation two rows, which differ in both respects."""
  pairs = [("padded", "packed on TPUs"), ("packed", "padded on TPUs")]
  return _cases("notation, ids, rows", {
      f"{notation}-{row}": (notation, *ROWS[row])
      for i, notation in enumerate(notations) for row in pairs[i % 2]})


def stacks_and_rows(notations):
  """Parametrizes a test: for each notation half of all stacks and rows.

  For each notation, each stack meets padded and packed rows, and CPUs and TPUs, and
  each kind of row meets CPUs and TPUs. The next notation has the other half.
  """
  return _cases("notation, decoder, ids, rows", {
      f"{notation}-{'decoder' if decoder else 'encoder'}-{row}":
          (notation, decoder, *ROWS[row])
      for i, notation in enumerate(notations) for decoder in (False, True)
      for row in ROWS if (i + decoder + ("packed" in row) + ("TPU" in row)) % 2 == 0})


def _cases(names, values):
  return pytest.mark.parametrize(names, values.values(), ids=values)


def tokens(batch=2, length=7, seed=1):
  generator = np.random.RandomState(seed)
  return generator.randn(batch, length, harness.D_MODEL).astype(np.float32)
