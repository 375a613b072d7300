"""The layer's own parts, beside what test_random_configurations.py draws.

These are huge logits of padding, the keys that stock's queries see, stock's relative
bias, the types within the layer, dropout, and a warning.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import cases
from support import harness
from support import models
from support import reference
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens
from support.random_cases import Case
import synthesizer_mtf
from synthesizer_mtf.fast import kernels
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


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("notation", ["R", "T+V", "Fix+FD+V", "FR+D+V"])
@pytest.mark.parametrize("tpu", [False, True])
def test_tables_count_the_tokens_of_the_row_if_positions_are_its_own(
    notation, decoder, tpu):
  x, whole_rows = tokens(), np.ones_like(PACKED)
  layer = cases.make_layer(notation, positions="row")
  y, graph = harness.forward(layer, x, decoder, PACKED, packed=True, tpu=tpu)
  p = {name: value.astype(np.float64) for name, value in graph.variables.items()}
  logits = cases.mixed_logits(notation, p, x, whole_rows, decoder, cases.HEADS)
  expected = reference.output(
      logits, p, x, reference.mask(PACKED, decoder), cases.HEADS)
  np.testing.assert_allclose(y[PACKED > 0], expected[PACKED > 0], atol=2e-5)
  # Where a row holds one example, its positions are those of the row.
  y, z = [harness.forward(cases.make_layer(notation, positions=positions), x, decoder,
                          3 * PADDED, packed=True, tpu=tpu)[0]
          for positions in ("example", "row")]
  np.testing.assert_allclose(y[PADDED > 0], z[PADDED > 0], atol=2e-5)


@pytest.mark.parametrize("case", [
    Case([], [[7], [7]], 7, decoder=True, prefix=[3, 1]),
    Case([], [[7], [4, 3]], 7, decoder=True, prefix=[3, 6], ids="features"),
    Case([], [[2, 2, 3], [2, 2, 2]], 7, decoder=True, ids="subsequences")],
                         ids=["prefix", "packed prefix", "subsequences"])
def test_stock_self_attention_sees_the_keys_of_the_random_cases(case):
  graph = harness.LayerGraph(None, True, 2, 7)
  with graph.tf_graph.as_default():
    dims = graph.batch_dim, graph.length_dim
    order = graph.constant(np.broadcast_to(case.priority, (2, 7)), *dims)
    marks = {"sequence_id": graph.constant(case.segments, *dims)}
    if case.ids == "subsequences":
      marks["subsequence_id"] = marks["sequence_id"]
      marks["sequence_id"] = graph.constant((case.segments + 1) // 2, *dims)
    bias = stock_bias(graph, 1, [graph.batch_dim], read_priority=order,
                      write_priority=order, **marks)
  np.testing.assert_array_equal(bias > -1e8, case.visible)


def stock_bias(graph, heads, lead, **marks):
  """What stock's self-attention adds to logits: [*lead, length, memory_length]."""
  context = graph.context(**marks)
  positions = mtf.range(context.mesh, context.length_dim, tf.int32)
  memory = mtf.rename_dimension(positions, "length", "memory_length")
  layer = transformer_layers.SelfAttention(
      num_heads=heads, key_value_size=5, relative_attention_num_buckets=12,
      relative_attention_type="bias" if heads > 1 else None)
  with graph.light(), tf.variable_scope("layer"):
    bias = layer.compute_bias(context, memory, positions, lead, None)
  return graph.run(mtf.transpose(
      bias, mtf.Shape([*lead, graph.length_dim, *memory.shape.dims])))[0]


@pytest.mark.parametrize("decoder", [False, True])
def test_the_relative_bias_of_the_references_is_that_of_stock(decoder):
  graph = harness.LayerGraph(None, decoder, 1, 150)
  with graph.tf_graph.as_default():
    bias = stock_bias(graph, 3, [mtf.Dimension("heads", 3)])
  table, = graph.variables.values()
  expected = reference.relative_bias(table, 150, decoder)
  seen = bias > -1e8
  np.testing.assert_allclose(bias[seen], expected[seen], atol=1e-6)


@pytest.mark.parametrize("notation", ["D", "FR+D+V"])
def test_logits_and_softmax_are_float32_with_bfloat16_activations(
    notation, monkeypatch):
  seen = []
  original = kernels._sum

  def spy(tables):
    total = original(tables)
    seen.append(total.dtype)
    return total

  monkeypatch.setattr(kernels, "_sum", spy)
  harness.forward(cases.make_layer(notation), tokens(), False, PADDED,
                  activation="bfloat16")
  assert seen and set(seen) == {tf.float32}


@pytest.mark.parametrize("notation, kwargs", [
    ("V", {}), ("R", {}), ("SparseFixed", {"stride": 3, "columns": 1}),
    ("SparseStrided", {"stride": 4})])
def test_dropout_drops_a_key_for_all_queries_alike(notation, kwargs):
  layer = synthesizer_mtf.attention_layer(
      notation, num_heads=1, key_value_size=11, dropout_rate=0.5, **kwargs)
  eye = np.eye(11, dtype=np.float32)
  x = np.stack([eye[:7]] * 40)  # the output shows the weight of each key
  kept, graph = harness.forward(layer, x, False, values={"v": eye, "o": eye})
  y, _ = harness.forward(
      layer, x, False, mode="train", values=graph.variables)
  seen = kept[..., :7] > 0
  factor = np.divide(y[..., :7], kept[..., :7], out=np.full(seen.shape, np.nan),
                     where=seen)
  of_a_key = np.nanmean(factor, axis=1, keepdims=True)
  np.testing.assert_allclose(factor[seen], np.broadcast_to(of_a_key, seen.shape)[seen],
                             rtol=1e-4, atol=1e-4)
  assert set(of_a_key.round(3).ravel()) == {0.0, 2.0}
  assert 0.3 < (of_a_key == 0).mean() < 0.7


def test_without_a_softmax_an_example_of_padding_alone_gives_zeros():
  ids = np.array([[1] * 7, [0] * 7])
  for notation in ("R", "FR+D+V"):
    y, _ = harness.forward(
        cases.make_layer(notation, softmax=False), tokens(), False, ids)
    assert np.all(y[1] == 0) and np.abs(y[0]).min() > 0


def test_entries_of_a_table_have_the_same_gradients_on_a_mesh():
  """Packed rows read them one by one, without a softmax."""
  one, many = (harness.forward(
      cases.make_layer("R", softmax=False), tokens(), False, PACKED, True,
      gradients=True, mesh_shape=mesh, layout="batch:b,heads:m")
               for mesh in ("", "b:2,m:3"))
  np.testing.assert_allclose(many[0], one[0], atol=1e-5)
  reference.check_same(many[2], one[2])


def test_the_scale_in_the_mixers_gin_file_keeps_the_scale_of_the_values():
  x = tokens(length=512)
  models.parse_gin(["attention/mixer.gin"], models.TINY + ["num_heads = 1",
                                                           "d_kv = 11"])
  layer = models.build().encoder.layer_stack.layers[0]
  eye = np.eye(11, dtype=np.float32)
  y, _ = harness.forward(layer, x, False, scale=None,
                         values={"v": eye, "o": eye})
  assert 0.8 < y.std() / x.std() < 1.25


@pytest.mark.parametrize("notation, bias, positions, decoder, warns", [
    ("V", None, False, False, True), ("V", "bias", False, False, False),
    ("V", None, True, False, False), ("V", None, False, True, False),
    ("Pattern+V", None, False, False, False)])
def test_dot_products_warn_unless_a_bias_positions_a_mask_or_a_pattern_tell_the_order(
    notation, bias, positions, decoder, warns, caplog):
  graph = harness.LayerGraph(
      cases.make_layer(notation, relative_attention_type=bias), decoder, 2, 7)
  with graph.tf_graph.as_default():
    context = graph.context()
    context.model.positional_embedding = positions
    graph.call(context, graph.constant(
        tokens(), graph.batch_dim, graph.length_dim, graph.d_model))
  assert ("cannot tell the order" in caplog.text) == warns
