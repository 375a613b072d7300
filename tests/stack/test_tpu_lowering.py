"""Training steps lower to a TPU mesh, without a TPU, and large variables split."""

import numpy as np
import pytest
from support import meshes


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("notation", ["V", "R", "FD", "FR+D+V", "Fix+R+V"])
def test_a_training_step_lowers_to_eight_cores(notation, packed):
  m, mesh_impl, lowering = meshes.lowered_step(notation, packed, tpu=True)
  for variable in m.graph.all_variables:
    if variable.name.split("/")[-1] in ("R", "R1", "R2", "W1", "W2", "q", "v"):
      assert np.prod(mesh_impl.slice_shape(variable.shape)) * 4 == variable.size
  # XLA wants shapes that it knows.
  assert all(t.shape.is_fully_defined() for op in m.tf_graph.get_operations()
             for t in op.outputs)
  names = {str(k) for k in lowering.counters}
  assert any("einsum" in name for name in names)
