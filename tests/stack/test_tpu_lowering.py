"""Training steps lower to a TPU mesh, without a TPU, and large variables split."""

import numpy as np
import pytest
from support import meshes


@pytest.mark.slow
@pytest.mark.parametrize("encoder, decoder, packed", [
    (["Fix+R+FD"], ["FR+D+V", "T"], True),
    (["LightConv", "SparseFixed"], ["SparseStrided", "DyConv"], False)], ids=str)
def test_a_training_step_lowers_to_eight_cores(encoder, decoder, packed):
  m, mesh_impl, lowering = meshes.lowered_step((encoder, decoder), packed, tpu=True)
  ours = [v for v in m.graph.trainable_variables if "layer_000" in v.name]
  assert len(ours) > 8
  for variable in ours:
    if variable.name.split("/")[-1] not in ("scale", "o_bias"):  # [d_model]
      parts = variable.size / np.prod(mesh_impl.slice_shape(variable.shape))
      assert parts == 4, variable.name
  # XLA wants shapes that it knows.
  assert all(t.shape.is_fully_defined() for op in m.tf_graph.get_operations()
             for t in op.outputs)
  assert any("einsum" in str(name) for name in lowering.counters)
