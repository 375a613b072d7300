"""The layer's own parts, beside what test_random_configurations.py draws.

These are huge logits of padding, the keys that stock's queries see, stock's relative
bias, the types within the layer, and dropout.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import cases
from support import harness
from support import reference
from support.examples import PADDED
from support.examples import tokens
from support.random_cases import Case
from synthesizer_mtf.fast import attend
import tensorflow.compat.v1 as tf


@pytest.mark.parametrize("notation, name", [("R", "R"), ("D", "W2"), ("R+V", "R")])
def test_padding_never_matters_even_if_its_logits_are_50_larger(notation, name):
  x = tokens()
  y, graph = harness.forward(cases.make_layer(notation), x, False, PADDED)
  larger = graph.variables[name].copy()
  larger[..., 4:7] += 50 if name == "R" else 20 * np.sign(larger[..., 4:7])
  z, _ = harness.forward(cases.make_layer(notation), x, False, PADDED,
                         values={name: larger})
  np.testing.assert_allclose(z[1, :4], y[1, :4], atol=1e-5)


@pytest.mark.parametrize("case", [
    Case([], [[7], [7]], 7, decoder=True, prefix=[3, 1]),
    Case([], [[7], [4, 3]], 7, decoder=True, prefix=[3, 6], ids="features"),
    Case([], [[2, 2, 3], [2, 2, 2]], 7, decoder=True, ids="subsequences")],
                         ids=["prefix", "packed prefix", "subsequences"])
def test_stock_self_attention_sees_the_keys_of_the_random_cases(case):
  layer = transformer_layers.SelfAttention(num_heads=1, key_value_size=5)
  graph = harness.LayerGraph(None, True, 2, 7)
  with graph.tf_graph.as_default():
    dims = graph.batch_dim, graph.length_dim
    order = graph.constant(np.broadcast_to(case.priority, (2, 7)), *dims)
    marks = {"sequence_id": graph.constant(case.segments, *dims)}
    if case.ids == "subsequences":
      marks["subsequence_id"] = marks["sequence_id"]
      marks["sequence_id"] = graph.constant((case.segments + 1) // 2, *dims)
    context = graph.context(read_priority=order, write_priority=order, **marks)
    positions = mtf.range(context.mesh, context.length_dim, tf.int32)
    memory = mtf.Dimension("memory_length", 7)
    bias = layer.compute_bias(
        context, mtf.rename_dimension(positions, "length", "memory_length"),
        positions, [], None)
    bias, = graph.run(mtf.transpose(bias, mtf.Shape([*dims, memory])))
  np.testing.assert_array_equal(bias > -1e8, case.visible)


@pytest.mark.parametrize("decoder", [False, True])
def test_the_relative_bias_of_the_references_is_that_of_stock(decoder):
  layer = transformer_layers.SelfAttention(
      num_heads=3, key_value_size=5, relative_attention_type="bias",
      relative_attention_num_buckets=12)
  graph = harness.LayerGraph(layer, decoder, 1, 150)
  with graph.tf_graph.as_default():
    context = graph.context()
    positions = mtf.range(context.mesh, context.length_dim, tf.int32)
    memory = mtf.Dimension("memory_length", 150)
    heads = mtf.Dimension("heads", 3)
    with tf.variable_scope("layer"):
      bias = layer.compute_bias(
          context, mtf.rename_dimension(positions, "length", "memory_length"),
          positions, [heads], None)
    bias, = graph.run(mtf.transpose(
        bias, mtf.Shape([heads, graph.length_dim, memory])))
  table, = graph.variables.values()
  expected = reference.relative_bias(table, 150, decoder)
  seen = bias > -1e8
  np.testing.assert_allclose(bias[seen], expected[seen], atol=1e-6)


@pytest.mark.parametrize("notation", ["D", "FR+D+V"])
def test_logits_and_softmax_are_float32_with_bfloat16_activations(
    notation, monkeypatch):
  seen = []
  original = attend._sum

  def spy(tables):
    total = original(tables)
    seen.append(total.dtype)
    return total

  monkeypatch.setattr(attend, "_sum", spy)
  harness.forward(cases.make_layer(notation), tokens(), False, PADDED,
                  activation="bfloat16")
  assert seen and set(seen) == {tf.float32}


@pytest.mark.parametrize("notation", ["V", "R"])
def test_dropout_drops_a_key_for_all_queries_alike(notation):
  layer = cases.make_layer(
      notation, num_heads=1, key_value_size=11, dropout_rate=0.5)
  eye = np.eye(11, dtype=np.float32)
  x = np.stack([eye[:7]] * 40)  # the output shows the weight of each key
  kept, graph = harness.forward(layer, x, False, values={"v": eye, "o": eye})
  y, _ = harness.forward(
      layer, x, False, mode="train", values=graph.variables)
  factor = y[..., :7] / kept[..., :7]
  np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1], factor.shape),
                             rtol=1e-4, atol=1e-4)
  assert set(factor.round(3).ravel()) == {0.0, 2.0}
  assert 0.3 < (factor == 0).mean() < 0.7
