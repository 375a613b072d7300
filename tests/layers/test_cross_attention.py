"""The fast cross-attention, beside what test_fast_equals_plain.py compares."""

from unittest import mock

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import decoding
from support import harness
from support import lookalikes
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


def stock(**kwargs):
  return transformer_layers.EncDecAttention(
      num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0, **kwargs)


def run(layer, given):
  """Calls a layer of a decoder.

  Returns:
    the output, and the gradients of inputs and variables, by name; the output of the
    encoder; and the variables by name.
  """
  generator = np.random.RandomState(0)
  graph = harness.LayerGraph(layer, True, BATCH, LENGTH)
  dims = {"sequence_id": graph.length_dim, "encoder_sequence_id": MEMORY,
          "inputs": graph.length_dim, "encoder_inputs": MEMORY}
  tokens = [generator.randn(BATCH, size, harness.D_MODEL)
            for size in (LENGTH, MEMORY_LENGTH, LENGTH)]
  with graph.tf_graph.as_default():
    x, memory, weights = [
        graph.constant(values, graph.batch_dim, dim, graph.d_model)
        for values, dim in zip(tokens, (graph.length_dim, MEMORY, graph.length_dim))]
    marks = {name: graph.constant(array, graph.batch_dim, dims[name])
             for name, array in given.items()}
    y = graph.call(graph.context("train", encoder_output=memory, **marks), x)
    variables = graph.graph.trainable_variables
    loss = mtf.reduce_sum(mtf.cast(y * weights, tf.float32))
    grads = mtf.gradients([loss], [x, memory] + [v.outputs[0] for v in variables])
    named = {"y": y, **dict(zip(["x", "memory", *(v.name for v in variables)], grads))}
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    found = dict(zip(named, graph.run(*named.values())))
  return found, tokens[1], {
      name.rpartition("/")[2]: value for name, value in graph.variables.items()}


def test_the_relative_bias_equals_that_of_stock():
  models.parse_gin(bindings=["relative_position_spans.num_sentinels = 3"])
  tokens = {"inputs": [[9, 4, 5, 8, 3], [9, 2, 8, 4, 0]],
            "encoder_inputs": [[2, 3, 9, 4, 5, 8, 6], [9, 2, 3, 4, 8, 1, 0]]}
  expected, fast = [
      run(layer, {**IDS["padded"], **tokens})[0] for layer in (
          stock(relative_attention_type="bias"),
          cross_attention.for_layer(stock(relative_attention_type="bias")))]
  bias = "layer/enc_dec_relative_attention_bias"
  assert np.abs(expected[bias]).max() > 0.01
  check_same(fast, expected)


def are_fast(*bindings):
  models.parse_gin([], models.TINY + [
      "decoder/synthesizer_stack.attention = 'R'", *bindings])
  layers = models.build().decoder.layer_stack.layers[1::3]
  assert [type(layer).__name__ for layer in layers] == ["EncDecAttention"] * 2
  return [isinstance(layer, cross_attention.EncDecAttention) for layer in layers]


def test_subclasses_of_stock_and_a_replaced_call_stay():
  lookalikes.check_stay(
      cross_attention.for_layer, transformer_layers.EncDecAttention, "call",
      lambda cls: cls(num_heads=HEADS, key_value_size=D_KV))


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
  found, memory, p = run(
      uniform_cross_attention.UniformEncDecAttention(HEADS, D_KV, 0.0), IDS[ids])
  assert set(p) == {"v", "o"}
  marks = {name: np.array(IDS[ids].get(name, np.ones((BATCH, size), int)))
           for name, size in (("sequence_id", LENGTH),
                              ("encoder_sequence_id", MEMORY_LENGTH))}
  seen = (marks["sequence_id"][:, :, None] ==
          marks["encoder_sequence_id"][:, None, :]).astype(float)
  weights = seen / seen.sum(-1, keepdims=True)
  expected = np.einsum("blm,bmd,dv,vo->blo", weights, memory, p["v"], p["o"])
  is_token = marks["sequence_id"] > 0
  np.testing.assert_allclose(found["y"][is_token], expected[is_token], atol=1e-4)


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
