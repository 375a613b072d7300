"""Attention without its softmax, and R as an MLP-Mixer's token mixing."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import cases
from support import examples
from support import harness
from support import models
from support import reference
from support.decoding import check_greedy_decoding
from support.decoding import parse
from support.examples import tokens
import synthesizer_mtf
import tensorflow.compat.v1 as tf

# Notations for each kind of logits: without and with a batch, inner products, mixtures.
NOTATIONS = ["R", "FR", "D", "FD", "V", "FR+D+V", "Fix+FD+V"]


def make(notation, **kwargs):
  return cases.make_layer(notation, softmax=False, **kwargs)


def expected(notation, p, x, ids, decoder):
  """(logits where the mask allows them, else 0) G(X), projected."""
  logits = cases.mixed_logits(notation, p, x, ids, decoder, cases.HEADS)
  mask = reference.mask(ids, decoder) & (ids > 0)[:, None]
  weights = logits * mask[:, None]
  values = np.einsum("bnd,dhk->bhnk", x, reference.per_head(p["v"], cases.HEADS))
  mean = np.einsum("bhij,bhjk->bhik", weights, values)
  return np.einsum("bhik,hkd->bid", mean,
                   p["o"].reshape(cases.HEADS, -1, x.shape[-1]))


@pytest.mark.parametrize("heads", [1, 3])
def test_r_is_token_mixing_by_a_linear_map_on_the_transposed_tokens(heads):
  """Tolstikhin et al.: transpose to channels x tokens, Dense, transpose back."""
  x = tokens()[..., :9]
  eye = np.eye(11, 9, dtype=np.float32)
  layer = synthesizer_mtf.attention_layer(
      "R", num_heads=heads, key_value_size=9 // heads, max_length=7,
      dropout_rate=0.0, softmax=False)
  wide = np.concatenate([x, np.zeros([2, 7, 2])], -1).astype(np.float32)
  y, graph = harness.forward(layer, wide, False, values={"v": eye, "o": eye.T})
  with tf.Graph().as_default(), tf.Session() as session:
    groups = tf.split(tf.transpose(tf.constant(x), [0, 2, 1]), heads, axis=1)
    mixed = [tf.keras.layers.Dense(
        7, use_bias=False,
        kernel_initializer=tf.constant_initializer(kernel.T))(group)
             for group, kernel in zip(groups, graph.variables["R"])]
    session.run(tf.global_variables_initializer())
    mixed = session.run(tf.transpose(tf.concat(mixed, axis=1), [0, 2, 1]))
  np.testing.assert_allclose(y[..., :9], mixed, atol=1e-5)
  assert np.abs(mixed).max() > 1


@examples.stacks_and_rows(NOTATIONS)
def test_weights_are_the_logits_and_zero_for_hidden_keys(
    notation, decoder, ids, rows):
  """Compares the output with the formula, and gradients with finite differences."""
  x = tokens() / 3
  weights = np.arange(x.size).reshape(x.shape) / x.size * (ids > 0)[..., None]
  y, graph, grads = harness.forward(
      make(notation), x, decoder, ids, **rows, gradients=True,
      loss_weights=weights, scale=0.3)
  values = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  z = expected(notation, values, x, ids, decoder)
  np.testing.assert_allclose(
      y[ids > 0], z[ids > 0], atol=2e-6 * np.abs(z).max())

  def loss(**change):
    return (expected(notation, {**values, **change}, x, ids, decoder) * weights).sum()

  for name, grad in grads.items():
    direction = np.random.RandomState(3).randn(*grad.shape)
    step = 1e-5 * direction
    difference = (loss(**{name: values[name] + step}) -
                  loss(**{name: values[name] - step})) / 2e-5
    np.testing.assert_allclose(
        (grad * direction).sum(), difference, rtol=2e-3, atol=1e-3,
        err_msg=name)


def test_a_packed_row_equals_its_examples_one_per_row():
  x = tokens()
  ids = np.array([[1] * 4 + [2] * 3] * 2)
  packed, _ = harness.forward(make("R"), x, False, ids, packed=True)
  for part in (np.s_[:, :4], np.s_[:, 4:]):
    alone, _ = harness.forward(make("R"), x[part], False)
    np.testing.assert_allclose(packed[part], alone, atol=1e-5)


@pytest.mark.parametrize("notation", ["R", "FR+D+V"])
def test_an_example_of_padding_alone_gives_zeros(notation):
  ids = np.array([[1] * 7, [0] * 7])
  y, _, grads = harness.forward(
      make(notation), tokens(), False, ids, gradients=True)
  assert np.all(y[1] == 0) and np.abs(y[0]).min() > 0
  assert all(np.isfinite(grad).all() for grad in grads.values())


@examples.rows_in_turn(["R", "FR+D+V"])
def test_bfloat16_stays_within_its_error_of_float32(notation, ids, rows):
  x = tokens()
  y, graph = harness.forward(make(notation), x, False, ids, **rows)
  z, _ = harness.forward(make(notation), x, False, ids, **rows,
                         activation="bfloat16", values=graph.variables)
  assert np.abs(z - y)[ids > 0].max() < 0.04 * np.abs(y).max()


@pytest.mark.slow
@examples.rows_in_turn(["R", "FD", "FR+D+V"])
def test_output_and_gradients_are_the_same_on_a_mesh(notation, ids, rows):
  one, many = [
      harness.forward(make(notation), tokens(), True, ids, **rows,
                      gradients=True, **mesh)
      for mesh in ({}, {"mesh_shape": "b:2,m:3", "layout": "batch:b,heads:m"})]
  scale = np.abs(one[0]).max()
  np.testing.assert_allclose(many[0], one[0], atol=1e-5 * scale)
  for name, grad in one[2].items():
    np.testing.assert_allclose(
        many[2][name], grad, atol=1e-5 * np.abs(grad).max(), err_msg=name)


@pytest.mark.parametrize("notation", ["R", "D+V"])
def test_greedy_decoding_gives_the_argmax_of_the_full_pass(notation):
  parse(notation, "SyntheticAttention.softmax = False")
  check_greedy_decoding()


@pytest.mark.slow
def test_recomputed_layers_have_the_same_gradients():
  results = []
  for recompute in (False, True):
    parse("R+V", "SyntheticAttention.softmax = False", "num_layers = 1",
          f"transformer.LayerStack.recompute_grads = {recompute}")
    m = models.Model()
    with m.tf_graph.as_default():
      ids = m.ids([[5, 9, 3, 1], [8, 4, 1, 0]])
      _, loss = m.model.call_simple(ids, ids, True, mode="eval")
      variables = m.graph.trainable_variables
      grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
      (values,), _ = m.run(loss, *grads, scale=0.3)
    results.append(dict(zip([v.name for v in variables], values[1:])))
  for name, grad in results[0].items():
    np.testing.assert_allclose(results[1][name], grad, atol=1e-5, err_msg=name)


def test_the_scale_in_the_gin_file_keeps_the_scale_of_the_values():
  x = tokens(length=512)
  models.parse_gin(["attention/mixer.gin"], models.TINY + ["num_heads = 1",
                                                           "d_kv = 11"])
  layer = models.build().encoder.layer_stack.layers[0]
  eye = np.eye(11, dtype=np.float32)
  y, _ = harness.forward(layer, x, False, scale=None,
                         values={"v": eye, "o": eye})
  assert 0.8 < y.std() / x.std() < 1.25
