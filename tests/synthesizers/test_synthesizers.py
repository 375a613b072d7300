"""Every synthesizing function and mixture against NumPy, from the paper."""

import numpy as np
import pytest
from support import cases
from support import harness
from support import reference
from support.examples import both_stacks
from support.examples import every_notation
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens


@every_notation
@both_stacks
@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_equals_the_papers_formula(notation, decoder, ids):
  x = tokens()
  packed = ids is PACKED
  y, graph = harness.forward(
      cases.make_layer(notation), x, decoder, ids, packed=packed)
  expected = reference.attention(
      notation, graph.variables, x, ids, decoder, cases.HEADS)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


@every_notation
@both_stacks
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


@every_notation
def test_variables_have_the_names_and_shapes_of_the_checkpoint_format(notation):
  _, graph = harness.forward(cases.make_layer(notation), tokens(), False)
  expected = dict(cases.CASES[notation][1], v=[11, 15], o=[15, 11])
  assert {k: list(v.shape) for k, v in graph.variables.items()} == expected


@every_notation
@both_stacks
@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_every_gradient_equals_a_finite_difference(notation, decoder, ids):
  x = tokens()
  weights = np.arange(x.size).reshape(x.shape) / x.size * (ids > 0)[..., None]
  _, graph, grads = harness.forward(
      cases.make_layer(notation), x, decoder, ids, packed=ids is PACKED,
      gradients=True, loss_weights=weights)
  values = graph.variables
  fixed = {"R"} if "Fix" in notation else set()
  assert set(grads) == set(values) - fixed

  def loss(**change):
    y = reference.attention(
        notation, {**values, **change}, x, ids, decoder, cases.HEADS)
    return (y * weights).sum()

  for name, grad in grads.items():
    assert np.abs(grad).max() > 0, name
    direction = np.random.RandomState(3).randn(*grad.shape)
    step = 1e-5
    difference = (loss(**{name: values[name] + step * direction}) -
                  loss(**{name: values[name] - step * direction})) / (2 * step)
    np.testing.assert_allclose(
        (grad * direction).sum(), difference, rtol=2e-3, atol=1e-3,
        err_msg=name)


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
  logits = reference.factorized_dense(
      graph.variables, x, np.arange(cases.MAX_LENGTH)[None], cases.HEADS)
  rows = logits.reshape(-1, cases.MAX_LENGTH)
  rows = rows[np.abs(rows).min(-1) > 0]  # relu can silence a whole row
  distinct = [len(np.unique(row.round(6))) for row in rows]
  assert distinct and min(distinct) == cases.MAX_LENGTH


def test_default_factors_of_factorized_dense_are_nearest_the_square_root():
  layer = cases.synthesizer_mtf.attention_layer(
      "FD", num_heads=2, key_value_size=4, max_length=512)
  function, = layer.mixture.synthesizers
  assert sorted([function.a, function.b]) == [16, 32]


@pytest.mark.parametrize("notation", ["R", "FR", "D", "FD", "R+V", "FR+D+V"])
@both_stacks
@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_tiled_tables_repeat_to_any_length(notation, decoder, ids):
  kwargs = {"tile_length": 4}
  if "FD" in notation:
    kwargs["a"] = 2
  x = tokens()
  y, graph = harness.forward(
      cases.make_layer(notation, **kwargs), x, decoder, ids,
      packed=ids is PACKED)
  p = dict(graph.variables)
  for name in ("R", "R1", "R2", "W2"):
    if name in p:
      for axis, size in enumerate(p[name].shape):
        if size == 4:
          p[name] = np.concatenate([p[name]] * 2, axis)
  if notation == "FD":
    def p_logits():
      return reference.factorized_dense(
            p, x, reference.positions(ids) % 4, cases.HEADS)
    expected = reference.output(
        p_logits(), p, x, reference.visible(ids, decoder), cases.HEADS)
  else:
    expected = reference.attention(notation, p, x, ids, decoder, cases.HEADS)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


@pytest.mark.parametrize("weights", ["per_head", "per_layer", "sum"])
def test_mixture_weights_sum_to_one_or_are_absent(weights):
  layer = cases.make_layer("R+V")
  layer.mixture.weights = weights
  x, ids = tokens(), PADDED
  y, graph = harness.forward(layer, x, False, ids)
  p = graph.variables
  parts = [reference.random(p, x, reference.positions(ids), 3),
           reference.dot_product(p, x, None, 3)]
  if weights == "sum":
    assert "alpha" not in p
    alpha = np.ones((3, 2))
  else:
    assert p["alpha"].shape == ((3, 2) if weights == "per_head" else (2,))
    alpha = np.broadcast_to(reference.softmax(p["alpha"]), (3, 2))
    np.testing.assert_allclose(alpha.sum(-1), 1, rtol=1e-6)
  logits = sum(alpha[:, i, None, None] * part for i, part in enumerate(parts))
  expected = reference.output(
      logits, p, x, reference.visible(ids, False), 3)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


def test_mixture_weights_start_equal():
  layer = cases.make_layer("FR+D+V")
  _, graph = harness.forward(layer, tokens(), False, scale=None)
  assert np.all(graph.variables["alpha"] == 1)


def test_parts_with_the_same_variable_names_have_their_own_scopes():
  layer = cases.synthesizer_mtf.attention_layer(
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
  expected = reference.attention("D+V", p, x, PADDED, False, cases.HEADS)
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
      logits[..., :7], p, x, reference.visible(PADDED, False), 3)
  np.testing.assert_allclose(y[PADDED > 0], expected[PADDED > 0], atol=2e-5)


@pytest.mark.parametrize("notation, name", [
    ("R", "RandomLogits"), ("Fix", "FixedRandomLogits"),
    ("FR", "FactorizedRandomLogits"), ("D", "DenseLogits"),
    ("FD", "FactorizedDenseLogits")])
def test_a_sequence_longer_than_max_length_raises_and_names_the_remedy(
    notation, name):
  for packed in (False, True):
    with pytest.raises(ValueError) as error:
      harness.forward(cases.make_layer(notation), tokens(length=13), False,
                      np.ones((2, 13), int), packed=packed)
    assert str(error.value).startswith(
        f"`{name}.max_length` is 12 but the sequence has length 13; raise "
        f"`{name}.max_length` to 13 or more")
