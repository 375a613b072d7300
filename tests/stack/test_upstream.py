"""Agreement with mesh_tensorflow's own layers."""

from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import cases
from support import harness
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens
from synthesizer_mtf.tools import from_mesh_tensorflow


@pytest.mark.parametrize("mode, decoder", [
    ("random", False), ("dense_minus", True), ("factorized", True),
    ("random_plus", True), ("dense_plus", False), ("random_plus_alpha", True),
    ("dense_plus_alpha", False)])
@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
def test_a_converted_layer_equals_the_authors(mode, decoder, ids):
  x = tokens()
  layer = transformer_layers.Synthesizer(
      num_heads=3, key_value_size=5, synthesize_mode=mode)
  z, theirs = harness.forward(layer, x, decoder, ids, packed=ids is PACKED)
  notation = from_mesh_tensorflow.notation(theirs.variables)
  options = {"D": {"share_query": True, "share_heads": True}, "FR": {"rank": 1}}
  ours = cases.make_layer(notation, max_length=512, positions="row",
                          **options.get(notation.split("+")[0], {}))
  ours.mixture.weights = "per_layer" if "alpha" in theirs.variables else "sum"
  values = from_mesh_tensorflow.convert(theirs.variables)
  y, graph = harness.forward(
      ours, x, decoder, ids, packed=ids is PACKED, values=values)
  assert set(graph.variables) == set(values)
  np.testing.assert_allclose(y[ids > 0], z[ids > 0], atol=2e-5)
