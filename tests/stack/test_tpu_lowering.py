"""Training steps lower to a TPU mesh, without a TPU, and large variables split."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from support.decoding import parse
from support.meshes import LAYOUT
from support.meshes import tpu_mesh
import tensorflow.compat.v1 as tf


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("notation", ["V", "R", "FD", "FR+D+V", "Fix+R+V"])
def test_a_training_step_lowers_to_eight_cores(notation, packed):
  parse(notation, "num_heads = 4", "d_ff = 12", "num_layers = 1")
  m = models.Model(mesh_shape="batch:2,model:4", layout=LAYOUT, tpu=True)
  with m.tf_graph.as_default():
    inputs, targets = m.ids(np.ones((4, 9), int)), m.ids(np.ones((4, 7), int))
    kwargs = {"encoder_sequence_id": inputs, "decoder_sequence_id": targets
              } if packed else {}
    _, loss = m.model.call_simple(inputs, targets, True, mode="train", **kwargs)
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    tf.train.get_or_create_global_step()
    optimize.AdafactorOptimizer(learning_rate=0.1).apply_grads(grads, variables)
    mesh_impl = tpu_mesh("batch:2,model:4")
    lowering = mtf.Lowering(m.graph, {m.mesh: mesh_impl}, autostack=False)
  for variable in m.graph.all_variables:
    if variable.name.split("/")[-1] in ("R", "R1", "R2", "W1", "W2", "q", "v"):
      assert np.prod(mesh_impl.slice_shape(variable.shape)) * 4 == variable.size
  # XLA wants shapes that it knows.
  assert all(t.shape.is_fully_defined() for op in m.tf_graph.get_operations()
             for t in op.outputs)
  names = {str(k) for k in lowering.counters}
  assert any("einsum" in name for name in names)
