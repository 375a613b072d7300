"""Fixed, strided and local attention, beside what random configurations draw."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import harness
from support import models
from support.examples import tokens
import synthesizer_mtf
import tensorflow.compat.v1 as tf

HEADS, D_KV = 3, 5
LENGTH = 13
PADDED = np.array([[1] * 13, [1] * 8 + [0] * 5])
PACKED = np.array([[1] * 7 + [2] * 4 + [3] + [0], [1] * 2 + [2] * 11])


def make(name, **kwargs):
  return synthesizer_mtf.attention_layer(
      name, num_heads=HEADS, key_value_size=D_KV, dropout_rate=0.0, **kwargs)


def largest(name, length, packed, decoder, **kwargs):
  """The size of the largest tensor, and the multiply-adds of all matrix products."""
  layer = make(name, relative_attention_type="bias", **kwargs)
  graph = harness.LayerGraph(layer, decoder, 2, length)
  with graph.tf_graph.as_default():
    batch = graph.batch_dim, graph.length_dim
    ids = graph.constant(np.ones((2, length), int), *batch)
    x = graph.constant(tokens(length=length), *batch, graph.d_model)
    y = graph.call(graph.context(
        sequence_id=ids if packed else mtf.minimum(ids, 1)), x)
    mtf.gradients([mtf.reduce_sum(y)], [
        v.outputs[0] for v in graph.graph.trainable_variables])
  sizes, products = [], 0
  for operation in graph.graph.operations:
    sizes += [t.size for t in operation.outputs]
    if isinstance(operation, mtf.ops.EinsumOperation):
      dims = {d for t in operation.inputs + operation.outputs
              for d in t.shape.dims}
      products += mtf.Shape(list(dims)).size
  return max(sizes), products


FIXED = {"stride": 8, "columns": 2}, {"stride": 32, "columns": 2}
STRIDED = {"stride": 8}, {"stride": 32}
LOCAL = {"width": 5}, {"width": 5}


@pytest.mark.parametrize("packed, decoder", [(False, True), (True, False)])
@pytest.mark.parametrize("name, kwargs, most", [
    ("SparseFixed", FIXED, 80), ("SparseStrided", STRIDED, 80), ("LD", LOCAL, 17)])
def test_cost_grows_with_the_length_to_the_power_of_1_5_and_that_of_ld_linearly(
    name, kwargs, most, packed, decoder):
  """From n = 64, l = 8 to n = 1024, l = 32 the cost grows by 64, not by 256."""
  small, large = (largest(name, length, packed, decoder, **more)
                  for length, more in zip((64, 1024), kwargs))
  for few, many in zip(small, large):
    assert many / few < most
  assert large[0] < 2 * HEADS * 1024 * 1024 / 4


@pytest.mark.parametrize("name, kwargs, ids", [
    ("SparseFixed", {"stride": 4, "columns": 2}, PACKED),
    ("SparseStrided", {"stride": 4}, PADDED)])
def test_further_batch_dimensions_change_nothing(name, kwargs, ids):
  """T5's trainer has `outer_batch` before `batch`, and beam search `beam`."""
  layer = make(name, relative_attention_type="bias", **kwargs)
  expected, plain = harness.forward(
      layer, tokens(length=LENGTH), True, ids, packed=ids is PACKED)
  graph = harness.LayerGraph(layer, True, 2, LENGTH, values=plain.variables)
  with graph.tf_graph.as_default():
    dims = [mtf.Dimension("outer_batch", 1), graph.batch_dim,
            mtf.Dimension("beam", 1)]
    segments = graph.constant(ids[None, :, None], *dims, graph.length_dim)
    context = graph.context(batch_dims=dims, sequence_id=(
        segments if ids is PACKED else mtf.minimum(segments, 1)))
    y, = graph.run(graph.call(context, graph.constant(
        tokens(length=LENGTH)[None, :, None], *dims, graph.length_dim, graph.d_model)))
  np.testing.assert_allclose(y[0, :, 0], expected, atol=1e-5)


def test_a_packed_encoder_gathers_the_columns_of_each_last_block():
  """Segments of 8 tokens have 6 columns each, more than one block of them a row."""
  layer = make("SparseFixed", stride=4, columns=3, distinct_columns=False)
  x = tokens(1, 16)
  packed, graph = harness.forward(
      layer, x, False, np.repeat([[1, 2]], 8, axis=1), packed=True)
  alone, _ = harness.forward(layer, x.reshape(2, 8, -1), False, np.ones((2, 8), int),
                             values=graph.variables)
  np.testing.assert_allclose(packed.reshape(alone.shape), alone, atol=1e-5)


@pytest.mark.parametrize("strides, kind, masks, biases", [
    ([4, 4], "bias_shared", 1, 1), ([4, 5], "bias_shared", 2, 2),
    ([4, 4], "bias", 1, 0)])
def test_layers_of_a_stack_share_what_is_the_same_for_both(
    strides, kind, masks, biases):
  graph = harness.LayerGraph(None, True, 2, LENGTH)
  with graph.tf_graph.as_default():
    context = graph.context()
    x = graph.constant(
        tokens(length=LENGTH), graph.batch_dim, graph.length_dim, graph.d_model)
    for n, stride in enumerate(strides):
      with tf.variable_scope(f"block_{n}"):
        x = make("SparseStrided", stride=stride,
                 relative_attention_type=kind).call(context, x)
  kept = [str(key) for key in context.cache if isinstance(key, tuple)]
  assert sum("mask near" in key for key in kept) == masks
  assert sum("relative near" in key for key in kept) == biases


def test_blocks_of_a_model_can_take_the_two_sets_in_turn():
  models.parse_gin([], models.TINY + [
      "decoder/synthesizer_stack.attention = "
      "[@decoder/a/SparseFixed, @decoder/b/SparseFixed]",
      "decoder/a/SparseFixed.pattern = 'local'",
      "decoder/b/SparseFixed.pattern = 'summary'"])
  layers = models.build().decoder.layer_stack.layers
  assert [layer.pattern for layer in layers[::3]] == ["local", "summary"]
