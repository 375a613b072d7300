"""When a layer warns that nothing tells the order of the tokens."""

import pytest
from support import cases
from support import harness
from support.examples import tokens


@pytest.mark.parametrize("bias, positions, decoder, warns", [
    (None, False, False, True), ("bias", False, False, False),
    (None, True, False, False), (None, False, True, False)])
def test_dot_products_warn_unless_a_bias_positions_or_a_mask_tell_the_order(
    bias, positions, decoder, warns, caplog):
  graph = harness.LayerGraph(
      cases.make_layer("V", relative_attention_type=bias), decoder, 2, 7)
  with graph.tf_graph.as_default():
    context = graph.context()
    context.model.positional_embedding = positions
    graph.call(context, graph.constant(
        tokens(), graph.batch_dim, graph.length_dim, graph.d_model))
  assert ("cannot tell the order" in caplog.text) == warns
