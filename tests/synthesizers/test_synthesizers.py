"""What synthesizing functions and mixtures declare, and how their variables start.

test_random_configurations.py compares what they compute with NumPy.
"""

import numpy as np
import pytest
from support import cases
from support import harness
from support.examples import tokens
import synthesizer_mtf
from synthesizer_mtf.attention import functions

HEADS, D_KV, RANK, STDDEV = 4, 25, 8, 0.7


def test_a_sequence_longer_than_max_length_raises_and_names_the_remedy():
  for notation, cls in functions.SYNTHESIZING_FUNCTIONS.items():
    name, has_table = cls.__name__, issubclass(cls, synthesizer_mtf.LengthTables)
    for packed in (False, True) if has_table else ():
      with pytest.raises(ValueError) as error:
        harness.forward(cases.make_layer(notation), tokens(length=13), False,
                        np.ones((2, 13), int), packed=packed)
      assert str(error.value).startswith(
          f"`{name}.max_length` is 12 but the sequence has length 13; raise "
          f"`{name}.max_length` to 13 or more")


def test_every_name_of_the_notation_has_a_row():
  assert set(cases.VARIANTS) == set(functions.SYNTHESIZING_FUNCTIONS)


def shapes(notation, **kwargs):
  """The shapes of a layer's variables by name, as lists."""
  graph = harness.LayerGraph(cases.make_layer(notation, **kwargs), False, 2, 7)
  with graph.tf_graph.as_default():
    graph.call(graph.context(), graph.constant(
        tokens(), graph.batch_dim, graph.length_dim, graph.d_model))
  return {v.name.removeprefix("layer/"): v.shape.to_integer_list
          for v in graph.graph.all_variables}


every_variant = pytest.mark.parametrize("notation", cases.VARIANTS)


@every_variant
def test_the_class_declares_its_variables_and_what_their_axes_are(notation):
  """A model needs this to start from a checkpoint with other lengths or heads."""
  cls = functions.SYNTHESIZING_FUNCTIONS[notation]
  small, heads = shapes(notation), shapes(notation, num_heads=4)
  longer = shapes(notation, max_length=18)
  for name in "vo":
    del small[name]
  assert set(small) <= set(cls.variables)
  for name, shape in small.items():
    axes = cls.variables[name]
    assert {i - len(shape) for i, n in enumerate(shape)
            if longer[name][i] != n} == set(axes.positions)
    if axes.heads is not None:
      assert (shape[axes.heads], heads[name][axes.heads]) == (3, 4)


@every_variant
def test_the_class_declares_whether_it_tells_the_order_of_tokens(notation):
  """If it does not, reordering the tokens only reorders the outputs."""
  x = tokens(batch=1)
  order = [3, 0, 5, 1, 6, 2, 4]
  x = np.concatenate([x, x[:, order]])
  y, _ = harness.forward(cases.make_layer(notation), x, False)
  alike = np.abs(y[1] - y[0, order]).max() < 1e-5
  assert alike != functions.SYNTHESIZING_FUNCTIONS[notation].encodes_order


def variables(notation, **kwargs):
  """The initial values of a layer's variables, by name."""
  layer = synthesizer_mtf.attention_layer(
      notation, num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0,
      max_length=64, **kwargs)
  _, graph = harness.forward(layer, tokens(), False, scale=None)
  return graph.variables


def test_variables_start_with_their_standard_deviations():
  """The factors of FR start so that their products have the deviation `stddev`."""
  values = variables("V+R+FR+T+D+FD+LD", rank=RANK, stddev=STDDEV, use_bias=True)
  channels, factor = harness.D_MODEL ** -0.5, STDDEV ** 0.5 * RANK ** -0.25
  expected = {
      "q": (harness.D_MODEL * D_KV) ** -0.5, "k": channels, "v": channels,
      "o": (HEADS * D_KV) ** -0.5, "R": STDDEV, "R1": factor, "R2": factor,
      "T": STDDEV, "T_after": STDDEV, "W1": channels, "W2": D_KV ** -0.5,
      "WA": D_KV ** -0.5, "WB": D_KV ** -0.5, "WL": D_KV ** -0.5, "b1": 0, "b2": 0,
      "alpha": 0}
  assert {name.split("/")[-1] for name in values} == set(expected)
  for name, value in values.items():  # D, FD and LD have a W1 each.
    assert value.std() == pytest.approx(
        expected[name.split("/")[-1]], rel=0.12), name
  assert (values["alpha"] == 1).all()


def test_only_parts_that_share_a_name_have_scopes_and_a_shared_query_has_none():
  values = variables("D+R+V+Fix", share_query=True)
  assert set(values) == {"W2", "part_1/R", "part_3/R", "q", "k", "v", "o", "alpha"}
