"""Variables start with the scale that T5 and the parameters give them."""

import numpy as np
import pytest
from support import harness
from support.examples import tokens
import synthesizer_mtf

HEADS, D_KV, RANK, STDDEV = 4, 25, 8, 0.7


def test_variables_start_with_their_standard_deviations():
  """All of them differ, and logits of R, FR and T start with `stddev`."""
  layer = synthesizer_mtf.attention_layer(
      "V+R+FR+T+D+FD", num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0,
      max_length=64, rank=RANK, stddev=STDDEV, use_bias=True)
  _, graph = harness.forward(layer, tokens(), False, scale=None)
  channels, factor = harness.D_MODEL ** -0.5, STDDEV ** 0.5 * RANK ** -0.25
  expected = {
      "q": (harness.D_MODEL * D_KV) ** -0.5, "k": channels, "v": channels,
      "o": (HEADS * D_KV) ** -0.5, "R": STDDEV, "R1": factor, "R2": factor,
      "T": STDDEV, "T_after": STDDEV, "W1": channels, "W2": D_KV ** -0.5,
      "WA": D_KV ** -0.5, "WB": D_KV ** -0.5, "b1": 0, "b2": 0, "alpha": 0}
  assert {name.split("/")[-1] for name in graph.variables} == set(expected)
  for name, value in graph.variables.items():  # D and FD have a W1 each
    assert value.std() == pytest.approx(
        expected[name.split("/")[-1]], rel=0.12), name
  logits = np.einsum("hik,hjk->hij", graph.variables["R1"], graph.variables["R2"])
  assert logits.std() == pytest.approx(STDDEV, rel=0.12)
