"""The fast cross-attention equals T5's up to rounding."""

from unittest import mock

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import decoding
from support import harness
from support import models
from support.reference import check_same
from synthesizer_mtf.attention.others import uniform_cross_attention
from synthesizer_mtf.fast import cross_attention
import tensorflow.compat.v1 as tf

BATCH, LENGTH, MEMORY_LENGTH, HEADS, D_KV = 2, 5, 7, 3, 4
MEMORY = mtf.Dimension("memory_length", MEMORY_LENGTH)
IDS = {
    "unmarked": {},
    "padded": {"sequence_id": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]],
               "encoder_sequence_id": [[1] * 7, [1, 1, 1, 0, 0, 0, 0]]},
    "packed": {"sequence_id": [[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]],
               "encoder_sequence_id": [[1, 2, 2, 2, 2, 2, 0],
                                       [1, 1, 1, 2, 3, 3, 3]]},
}


@pytest.fixture(autouse=True)
def no_gin():
  models.parse_gin()


def stock(dropout_rate=0.0, **kwargs):
  return transformer_layers.EncDecAttention(
      num_heads=HEADS, key_value_size=D_KV, dropout_rate=dropout_rate, **kwargs)


def run(layer, ids=(), activation="float32", mode="train", more=()):
  """The output, and the gradients of inputs and variables by name."""
  generator = np.random.RandomState(0)
  graph = harness.LayerGraph(layer, True, BATCH, LENGTH, activation=activation)
  dims = {"sequence_id": graph.length_dim, "encoder_sequence_id": MEMORY,
          "inputs": graph.length_dim, "encoder_inputs": MEMORY}
  with graph.tf_graph.as_default():
    x, memory, weights = [
        graph.constant(generator.randn(BATCH, dim.size, harness.D_MODEL),
                       graph.batch_dim, dim, graph.d_model)
        for dim in (graph.length_dim, MEMORY, graph.length_dim)]
    marks = {name: graph.constant(array, graph.batch_dim, dims[name])
             for name, array in {**dict(ids), **dict(more)}.items()}
    y = graph.call(graph.context(mode, encoder_output=memory, **marks), x)
    if mode == "eval":
      return {"y": graph.run(y)[0]}
    variables = graph.graph.trainable_variables
    names = ["y", "x", "memory"] + [v.name for v in variables]
    loss = mtf.reduce_sum(mtf.cast(y * weights, tf.float32))
    grads = mtf.gradients(
        [loss], [x, memory] + [v.outputs[0] for v in variables])
    return dict(zip(names, graph.run(y, *grads)))


@pytest.mark.parametrize("ids", IDS)
def test_output_and_gradients_equal_those_of_stock(ids):
  expected = run(stock(), IDS[ids])
  assert len(expected) == 3 + 4 and all(
      np.abs(value).max() > 0.01 for value in expected.values())
  check_same(run(cross_attention.for_layer(stock()), IDS[ids]), expected)


def test_the_relative_bias_equals_that_of_stock():
  models.parse_gin(bindings=["relative_position_spans.num_sentinels = 3"])
  tokens = {"inputs": [[9, 4, 5, 8, 3], [9, 2, 8, 4, 0]],
            "encoder_inputs": [[2, 3, 9, 4, 5, 8, 6], [9, 2, 3, 4, 8, 1, 0]]}
  expected, fast = [
      run(layer, IDS["padded"], more=tokens) for layer in (
          stock(relative_attention_type="bias"),
          cross_attention.for_layer(stock(relative_attention_type="bias")))]
  bias = "layer/enc_dec_relative_attention_bias"
  assert np.abs(expected[bias]).max() > 0.01
  check_same(fast, expected)


def test_with_bfloat16_the_output_is_near_that_of_float32():
  exact, rounded = [
      run(cross_attention.for_layer(stock()), IDS["padded"], activation, "eval")
      for activation in ("float32", "bfloat16")]
  scale = np.abs(exact["y"]).max()
  check_same(rounded, exact, atol=0.03 * scale)


def test_dropout_hides_whole_keys_at_t5s_rate():
  """With uniform attention to equal values, the output is the share of kept keys."""
  ones = {name: np.ones((harness.D_MODEL, HEADS * D_KV)) / harness.D_MODEL
          for name in ("k", "v")}
  for make in (lambda layer: layer, cross_attention.for_layer):
    layer = make(stock(dropout_rate=0.25))
    graph = harness.LayerGraph(layer, True, 50, LENGTH, values={
        **ones, "q": 0 * ones["k"], "o": np.ones((HEADS * D_KV, harness.D_MODEL))
        / (HEADS * D_KV)})
    with graph.tf_graph.as_default():
      tf.set_random_seed(0)
      memory = mtf.ones(graph.mesh, [graph.batch_dim, MEMORY, graph.d_model])
      x = mtf.ones(
          graph.mesh, [graph.batch_dim, graph.length_dim, graph.d_model])
      y, = graph.run(
          graph.call(graph.context("train", encoder_output=memory), x))
    # Dropout keeps some of the HEADS * MEMORY_LENGTH keys of each row.
    left = y[:, 0, 0] * 0.75 * HEADS * MEMORY_LENGTH
    np.testing.assert_allclose(left, np.round(left), atol=1e-3)
    np.testing.assert_allclose(
        y, np.broadcast_to(y[:, :1, :1], y.shape), atol=1e-5)
    assert 0.9 < y.mean() < 1.1 and left.std() > 1


def test_decoding_gives_the_ids_of_stock_with_the_same_variables():
  results, variables = [], []
  for fast in (True, False):
    models.parse_gin([], models.TINY + [
        "synthesizer_stack.attention = 'V'",
        f"synthesizer_stack.fast_cross_attention = {fast}"])
    m = models.Model()
    with m.tf_graph.as_default():
      outputs = m.model.decode(
          m.ids([[5, 9, 3, 7, 11, 2, 1], [8, 4, 1, 0, 0, 0, 0]]),
          beam_size=3, max_decode_length=9, decode_length_constant=20)
      ((ids,),), _ = m.run(outputs, scale=0.7)
    results.append(ids)
    variables.append({v.name: v.shape.to_integer_list for v in m.graph.all_variables})
  assert len(set(results[0].flatten())) > 2
  np.testing.assert_array_equal(*results)
  assert "decoder/block_001/layer_001/EncDecAttention/q" in variables[0]
  assert variables[0] == variables[1]


def are_fast(*bindings):
  models.parse_gin([], models.TINY + [
      "decoder/synthesizer_stack.attention = 'R'", *bindings])
  layers = models.build().decoder.layer_stack.layers[1::3]
  assert [type(layer).__name__ for layer in layers] == ["EncDecAttention"] * 2
  return [isinstance(layer, cross_attention.EncDecAttention) for layer in layers]


class Subclass(transformer_layers.EncDecAttention):
  """Has the constructor and all attributes of stock."""

  def call(self, context, x, losses=None):
    return super().call(context, x, losses) * 2


Namesake = type("EncDecAttention", (transformer_layers.EncDecAttention,), {
    "call": Subclass.call, "__module__": transformer_layers.__name__})


def test_subclasses_of_stock_and_a_replaced_call_stay(monkeypatch):
  for make in (Subclass, Namesake):
    layer = make(num_heads=HEADS, key_value_size=D_KV)
    assert cross_attention.for_layer(layer) is layer
  layer = stock()
  layer.call = lambda context, x, losses=None: x
  assert cross_attention.for_layer(layer) is layer
  monkeypatch.setattr(transformer_layers.EncDecAttention, "call", Subclass.call)
  assert cross_attention.for_layer(stock()).call.__func__ is Subclass.call


def test_fast_cross_attention_is_the_default_with_a_chosen_attention():
  assert are_fast() == [True, True]


def test_stock_stays_if_gin_asks_for_it_or_gives_it_other_options():
  for binding in (
      "synthesizer_stack.fast_cross_attention = False",
      "EncDecAttention.shared_kv = True",
      "EncDecAttention.num_memory_heads = 1",
      "EncDecAttention.num_heads = 1",
      "EncDecAttention.combine_dims = False",
      "EncDecAttention.keep_query_heads_dims = True",
      "EncDecAttention.fold_scaling_into_initializer = False",
      "EncDecAttention.z_loss_coeff = 0.001",
      "EncDecAttention.attention_kwargs = {'float32_logits': False}",
      "mesh_tensorflow.layers.unit_scaling_convention.value = True"):
    assert are_fast(binding) == [False, False], binding


@pytest.mark.parametrize("ids", IDS)
def test_uniform_attention_is_the_mean_of_the_values_that_a_query_may_see(ids):
  layer = uniform_cross_attention.UniformEncDecAttention(HEADS, D_KV, 0.0)
  graph = harness.LayerGraph(layer, True, BATCH, LENGTH)
  generator = np.random.RandomState(0)
  memory = generator.randn(BATCH, MEMORY_LENGTH, harness.D_MODEL)
  marks = {name: np.array(IDS[ids].get(name, np.ones((BATCH, size), int)))
           for name, size in (("sequence_id", LENGTH),
                              ("encoder_sequence_id", MEMORY_LENGTH))}
  with graph.tf_graph.as_default():
    dims = {"sequence_id": graph.length_dim, "encoder_sequence_id": MEMORY}
    given = {name: graph.constant(marks[name], graph.batch_dim, dims[name])
             for name in IDS[ids]}
    context = graph.context("eval", encoder_output=graph.constant(
        memory, graph.batch_dim, MEMORY, graph.d_model), **given)
    x = graph.constant(generator.randn(BATCH, LENGTH, harness.D_MODEL),
                       graph.batch_dim, graph.length_dim, graph.d_model)
    y = graph.call(context, x)
    values = {v.name.rpartition("/")[2]: v.outputs[0]
              for v in graph.graph.all_variables}
    assert set(values) == {"v", "o"}
    y, v, o = graph.run(y, values["v"], values["o"])
  seen = (marks["sequence_id"][:, :, None] ==
          marks["encoder_sequence_id"][:, None, :]).astype(float)
  weights = seen / seen.sum(-1, keepdims=True)
  expected = np.einsum("blm,bmd,dv,vo->blo", weights, memory, v, o)
  is_token = marks["sequence_id"] > 0
  np.testing.assert_allclose(y[is_token], expected[is_token], atol=1e-4)


def test_decoding_with_uniform_attention_equals_the_full_pass():
  decoding.parse("V", "decoder/make_layer_stack.layers = ["
                 "@transformer_layers.SelfAttention, @UniformEncDecAttention, "
                 "@transformer_layers.DenseReluDense]")
  layers = [type(layer).__name__ for layer in models.build().decoder.layer_stack.layers]
  assert layers.count("UniformEncDecAttention") == 2
  assert "EncDecAttention" not in layers
  decoding.check_greedy_decoding()


def test_an_unequal_split_of_heads_is_an_error_that_names_the_layer():
  layer = uniform_cross_attention.UniformEncDecAttention(HEADS, D_KV, 0.0)
  model = mock.Mock(mesh_shape=mtf.convert_to_shape("all:2"),
                    layout=mtf.convert_to_layout_rules("heads:all"))
  with pytest.raises(ValueError, match="`UniformEncDecAttention.num_heads` is 3"):
    layer.heads.check_layout(model)
