"""Every synthesizing function and mixture against NumPy, from the paper."""

import ast
import pathlib

import numpy as np
import pytest
from support import cases
from support import harness
from support import reference
from support.examples import every_notation
from support.examples import PADDED
from support.examples import stacks_and_rows
from support.examples import tokens
from support.examples import WITH_TABLES
import synthesizer_mtf
from synthesizer_mtf.synthesizers import names


@stacks_and_rows(cases.NOTATIONS)
def test_output_and_gradients_equal_the_papers_formula(notation, decoder, ids, rows):
  """Compares gradients with finite differences of the formula.

  The formula sees no padding, no other example and in decoders no later token.
  """
  x = tokens()
  weights = np.arange(x.size).reshape(x.shape) / x.size * (ids > 0)[..., None]
  y, graph, grads = harness.forward(
      cases.make_layer(notation), x, decoder, ids, **rows,
      gradients=True, loss_weights=weights)
  values = graph.variables

  def formula(**change):
    return cases.attention(
        notation, {**values, **change}, x, ids, decoder, cases.HEADS)

  np.testing.assert_allclose(y[ids > 0], formula()[ids > 0], atol=2e-5)
  fixed = {"R"} if "Fix" in notation else set()
  assert set(grads) == set(values) - fixed
  for name, grad in grads.items():
    assert np.abs(grad).max() > 0, name
    step = 1e-5 * np.random.RandomState(3).randn(*grad.shape)
    difference = [(formula(**{name: values[name] + change}) * weights).sum()
                  for change in (step, -step)]
    np.testing.assert_allclose(
        (grad * step).sum() / 1e-5, (difference[0] - difference[1]) / 2e-5,
        rtol=2e-3, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("notation, decoder", [
    ("R", True), ("T", False), ("T", True), ("FR+D+V", False), ("Fix+FD+V", True),
    ("Pattern", True)])
def test_a_packed_row_equals_its_examples_one_per_row(notation, decoder):
  lengths = [3, 2, 5]
  x = tokens(batch=1, length=sum(lengths))
  ids = np.repeat([1, 2, 3], lengths)[None]
  packed, _ = harness.forward(
      cases.make_layer(notation), x, decoder, ids, packed=True)
  start = 0
  for n in lengths:
    alone, _ = harness.forward(
        cases.make_layer(notation), x[:, start:start + n], decoder)
    np.testing.assert_allclose(packed[:, start:start + n], alone, atol=1e-5)
    start += n


def shapes(notation, **kwargs):
  """The shapes of a layer's variables by name, as lists."""
  graph = harness.LayerGraph(cases.make_layer(notation, **kwargs), False, 2, 7)
  with graph.tf_graph.as_default():
    graph.call(graph.context(), graph.constant(
        tokens(), graph.batch_dim, graph.length_dim, graph.d_model))
  return {v.name.removeprefix("layer/"): v.shape.to_integer_list
          for v in graph.graph.all_variables}


@every_notation
def test_variables_have_the_names_and_shapes_of_the_checkpoint_format(notation):
  assert shapes(notation) == cases.variables_of(notation)


def test_factorized_random_logits_have_the_rank_and_differ_between_rows():
  _, graph = harness.forward(cases.make_layer("FR"), tokens(), False)
  p = graph.variables
  logits = np.einsum("hik,hjk->hij", p["R1"], p["R2"])
  assert np.all(np.linalg.matrix_rank(logits, tol=1e-4) == 2)
  x = tokens(batch=1)
  x[:] = x[:, :1]  # equal tokens, so that V would give equal rows
  x[0, 0] += 1
  y, _ = harness.forward(cases.make_layer("FR"), x, False)
  assert np.abs(y[0, 1] - y[0, 2]).max() > 1e-2


def test_factorized_dense_makes_all_distinct_products():
  x = tokens(batch=1, length=cases.MAX_LENGTH)
  _, graph = harness.forward(cases.make_layer("FD"), x, False)
  logits = cases.factorized_dense(graph.variables, cases.Call(
      x, np.ones([1, cases.MAX_LENGTH], int), cases.HEADS))
  rows = logits.reshape(-1, cases.MAX_LENGTH)
  rows = rows[np.abs(rows).min(-1) > 0]  # relu can silence a whole row
  distinct = [len(np.unique(row.round(6))) for row in rows]
  assert distinct and min(distinct) == cases.MAX_LENGTH


def test_default_factors_of_factorized_dense_are_nearest_the_square_root():
  layer = synthesizer_mtf.attention_layer(
      "FD", num_heads=2, key_value_size=4, max_length=512)
  function, = layer.mixture.synthesizers
  assert sorted([function.a, function.b]) == [16, 32]


@stacks_and_rows([*WITH_TABLES, "R+V", "FR+D+V"])
def test_tiled_tables_repeat_to_any_length(notation, decoder, ids, rows):
  x = tokens()
  y, graph = harness.forward(
      cases.make_layer(notation, tile_length=4), x, decoder, ids, **rows)
  assert all(12 not in v.shape for v in graph.variables.values())
  expected = cases.attention(
      notation, graph.variables, x, ids, decoder, cases.HEADS)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


@pytest.mark.parametrize("weights", ["per_head", "per_layer", "sum"])
def test_mixture_weights_sum_to_one_or_are_absent(weights):
  layer = cases.make_layer("R+V")
  layer.mixture.weights = weights
  x, ids = tokens(), PADDED
  y, graph = harness.forward(layer, x, False, ids)
  p = graph.variables
  call = cases.Call(x, ids, 3)
  parts = [cases.random(p, call), cases.dot_product(p, call)]
  if weights == "sum":
    assert "alpha" not in p
    alpha = np.ones((3, 2))
  else:
    assert p["alpha"].shape == ((3, 2) if weights == "per_head" else (2,))
    alpha = np.broadcast_to(reference.softmax(p["alpha"]), (3, 2))
    np.testing.assert_allclose(alpha.sum(-1), 1, rtol=1e-6)
  logits = sum(alpha[:, i, None, None] * part for i, part in enumerate(parts))
  expected = reference.output(
      logits, p, x, reference.mask(ids, False), 3)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


def test_mixture_weights_start_equal():
  layer = cases.make_layer("FR+D+V")
  _, graph = harness.forward(layer, tokens(), False, scale=None)
  assert np.all(graph.variables["alpha"] == 1)


def test_parts_with_the_same_variable_names_have_their_own_scopes():
  layer = synthesizer_mtf.attention_layer(
      "Fix+R+V", num_heads=3, key_value_size=5, max_length=12)
  _, graph = harness.forward(layer, tokens(), False)
  assert {"part_0/R", "part_1/R", "q", "k", "alpha"} <= set(graph.variables)


def test_dense_can_share_its_hidden_layer_with_the_query_and_w2_over_heads():
  layer = cases.make_layer("D+V", share_query=True, share_heads=True)
  x = tokens()
  y, graph = harness.forward(layer, x, False, PADDED)
  p = dict(graph.variables)
  assert "W1" not in p and p["W2"].shape == (5, 12)
  p["W1"] = p["q"]
  p["W2"] = np.broadcast_to(p["W2"], (3, 5, 12))
  expected = cases.attention("D+V", p, x, PADDED, False, cases.HEADS)
  np.testing.assert_allclose(y[PADDED > 0], expected[PADDED > 0], atol=2e-5)


def test_dense_biases_are_the_formulas_of_the_papers_first_version():
  x = tokens()
  y, graph = harness.forward(
      cases.make_layer("D", use_bias=True), x, False, PADDED)
  p = graph.variables
  hidden = np.einsum("bnd,dhk->bhnk", x, reference.per_head(p["W1"], 3))
  hidden = np.maximum(0, hidden + p["b1"][:, None])
  logits = np.einsum("bhnk,hkm->bhnm", hidden, p["W2"]) + p["b2"][:, None]
  expected = reference.output(
      logits[..., :7], p, x, reference.mask(PADDED, False), 3)
  np.testing.assert_allclose(y[PADDED > 0], expected[PADDED > 0], atol=2e-5)


@pytest.mark.parametrize("notation", WITH_TABLES)
def test_a_sequence_longer_than_max_length_raises_and_names_the_remedy(notation):
  name = names.SYNTHESIZING_FUNCTIONS[notation].__name__
  for packed in (False, True):
    with pytest.raises(ValueError) as error:
      harness.forward(cases.make_layer(notation), tokens(length=13), False,
                      np.ones((2, 13), int), packed=packed)
    assert str(error.value).startswith(
        f"`{name}.max_length` is 12 but the sequence has length 13; raise "
        f"`{name}.max_length` to 13 or more")


def test_every_name_of_the_notation_has_a_row():
  assert set(cases.VARIANTS) == set(names.SYNTHESIZING_FUNCTIONS)


every_variant = pytest.mark.parametrize("notation", cases.VARIANTS)


@every_variant
def test_the_class_declares_its_variables_and_what_their_axes_are(notation):
  """A model needs this to start from a checkpoint with other lengths or heads."""
  cls = names.SYNTHESIZING_FUNCTIONS[notation]
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
  y, _ = harness.forward(cases.make_layer(notation), x, False)
  order = [3, 0, 5, 1, 6, 2, 4]
  z, _ = harness.forward(cases.make_layer(notation), x[:, order], False)
  alike = np.abs(z - y[:, order]).max() < 1e-5
  assert alike != names.SYNTHESIZING_FUNCTIONS[notation].encodes_order


def test_synthesizing_functions_ask_for_neither_mode_nor_packing():
  folder = pathlib.Path(synthesizer_mtf.__file__).parent / "synthesizers"
  asked = {path.name: {
      node.attr for node in ast.walk(ast.parse(path.read_text()))
      if isinstance(node, ast.Attribute)} & {"incremental", "packed", "mode"}
           for path in folder.glob("*.py")}
  assert len(asked) > 8 and not any(asked.values()), asked
