"""The fast cross-attention, beside what test_fast_equals_plain.py compares."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import harness
from support import lookalikes
from support import models
from support.reference import check_same
from synthesizer_mtf.fast import cross_attention

HEADS, D_KV = 3, 4
IDS = {"sequence_id": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]],
       "encoder_sequence_id": [[1] * 7, [1, 1, 1, 0, 0, 0, 0]],
       "inputs": [[9, 4, 5, 8, 3], [9, 2, 8, 4, 0]],
       "encoder_inputs": [[2, 3, 9, 4, 5, 8, 6], [9, 2, 3, 4, 8, 1, 0]]}


@pytest.fixture(autouse=True)
def no_gin():
  models.parse_gin()


def stock(**kwargs):
  return transformer_layers.EncDecAttention(
      num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0, **kwargs)


def run(layer):
  """The output of a layer of a decoder, and the gradients of inputs and variables."""
  generator = np.random.RandomState(0)
  graph = harness.LayerGraph(layer, True, 2, 5)
  lengths = {5: graph.length_dim, 7: mtf.Dimension("memory_length", 7)}
  with graph.tf_graph.as_default():
    x, memory = (graph.constant(
        generator.randn(2, size, harness.D_MODEL), graph.batch_dim, dim, graph.d_model)
                 for size, dim in lengths.items())
    y = graph.call(graph.context("train", encoder_output=memory, **{
        name: graph.constant(ids, graph.batch_dim, lengths[len(ids[0])])
        for name, ids in IDS.items()}), x)
    variables = graph.graph.trainable_variables
    loss = mtf.reduce_mean(mtf.square(y))
    grads = mtf.gradients([loss], [x, memory] + [v.outputs[0] for v in variables])
    names = ["y", "x", "memory", *(v.name for v in variables)]
    return dict(zip(names, graph.run(y, *grads)))


def test_the_relative_bias_equals_that_of_stock():
  models.parse_gin(bindings=["relative_position_spans.num_sentinels = 3"])
  expected, fast = [run(layer) for layer in (
      stock(relative_attention_type="bias"),
      cross_attention.for_layer(stock(relative_attention_type="bias")))]
  assert np.abs(expected["layer/enc_dec_relative_attention_bias"]).max() > 0.01
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
