"""Uniform cross-attention, beside the mean in NumPy and a pass over all tokens."""

from unittest import mock

import mesh_tensorflow as mtf
import numpy as np
import pytest
from studies.uniform_cross_attention import UniformEncDecAttention
from support import decoding
from support import harness
from support import models

MEMORY = mtf.Dimension("memory_length", 7)
ONE_EXAMPLE = np.ones((2, 5), int), np.ones((2, 7), int)
PACKED = (np.array([[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]]),
          np.array([[1, 2, 2, 2, 2, 2, 0], [1, 1, 1, 2, 3, 3, 3]]))


@pytest.mark.parametrize("ids, memory_ids", [ONE_EXAMPLE, PACKED])
def test_each_query_gets_the_mean_of_the_values_that_it_may_see(ids, memory_ids):
  generator = np.random.RandomState(0)
  graph = harness.LayerGraph(UniformEncDecAttention(3, 4, 0.0), True, 2, 5)
  x, memory = (generator.randn(2, size, harness.D_MODEL) for size in (5, 7))
  with graph.tf_graph.as_default():
    of_memory = graph.batch_dim, MEMORY
    y = graph.call(graph.context(
        encoder_output=graph.constant(memory, *of_memory, graph.d_model),
        encoder_sequence_id=graph.constant(memory_ids, *of_memory),
        sequence_id=graph.constant(ids, graph.batch_dim, graph.length_dim)),
                   graph.constant(x, graph.batch_dim, graph.length_dim, graph.d_model))
    y, = graph.run(y)
  assert set(graph.variables) == {"v", "o"}
  seen = (ids[:, :, None] == memory_ids[:, None, :]).astype(float)
  expected = np.einsum("blm,bmd,dv,vo->blo", seen / seen.sum(-1, keepdims=True),
                       memory, graph.variables["v"], graph.variables["o"])
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=1e-4)


def test_the_gin_file_gives_it_to_decoders_which_decode_as_a_full_pass():
  decoding.parse("V", files=["studies/uniform_cross_attention.gin"])
  layers = [type(layer).__name__ for layer in models.build().decoder.layer_stack.layers]
  assert layers[1::3] == ["UniformEncDecAttention"] * 2
  decoding.check_greedy_decoding()


def test_an_unequal_split_of_heads_is_an_error_that_names_the_layer():
  layer = UniformEncDecAttention(3, 4, 0.0)
  model = mock.Mock(mesh_shape=mtf.convert_to_shape("all:2"),
                    layout=mtf.convert_to_layout_rules("heads:all"))
  with pytest.raises(ValueError, match="`UniformEncDecAttention.num_heads` is 3"):
    layer.heads.check_layout(model)
