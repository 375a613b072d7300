"""The variables of a layer: their names in mixtures, and the scale they start with."""

import pytest
from support import harness
from support.examples import tokens
import synthesizer_mtf

HEADS, D_KV, RANK, STDDEV = 4, 25, 8, 0.7


def variables(notation, **kwargs):
  """The initial values of a layer's variables, by name."""
  layer = synthesizer_mtf.attention_layer(
      notation, num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0,
      max_length=64, **kwargs)
  _, graph = harness.forward(layer, tokens(), False, scale=None)
  return graph.variables


def test_variables_start_with_their_standard_deviations():
  """The factors of FR start so that their products have the deviation `stddev`."""
  found = variables("V+R+FR+T+D+FD+LD", rank=RANK, stddev=STDDEV, use_bias=True)
  channels, factor = harness.D_MODEL ** -0.5, STDDEV ** 0.5 * RANK ** -0.25
  expected = {
      "q": (harness.D_MODEL * D_KV) ** -0.5, "k": channels, "v": channels,
      "o": (HEADS * D_KV) ** -0.5, "R": STDDEV, "R1": factor, "R2": factor,
      "T": STDDEV, "T_after": STDDEV, "W1": channels, "W2": D_KV ** -0.5,
      "WA": D_KV ** -0.5, "WB": D_KV ** -0.5, "WL": D_KV ** -0.5, "b1": 0, "b2": 0,
      "alpha": 0}
  assert {name.split("/")[-1] for name in found} == set(expected)
  for name, value in found.items():  # D, FD and LD have a W1 each.
    assert value.std() == pytest.approx(
        expected[name.split("/")[-1]], rel=0.12), name


def test_only_parts_that_share_a_name_have_scopes_and_a_shared_query_has_none():
  found = variables("D+R+V+Fix", share_query=True)
  assert set(found) == {"W2", "part_1/R", "part_3/R", "q", "k", "v", "o", "alpha"}
