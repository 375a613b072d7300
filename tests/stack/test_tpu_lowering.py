"""Training steps lower to a TPU mesh, without a TPU, and large variables split."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import decoding
from support import meshes
from support import models
import tensorflow.compat.v1 as tf

MESH = "batch:2,model:4"


@pytest.mark.slow
@pytest.mark.parametrize("attention, packed, files, bindings", [
    ((["Fix+R+FD"], ["FR+D+V", "T"]), True, [], []),
    ((["LightConv", "SparseFixed", "Linformer"], ["SparseStrided", "DyConv"]), False,
     [], ["Linformer.max_length = 16"]),
    ("Pattern+V", False, ["stacks/universal.gin"],
     ["decoder/FixedPatterns.patterns = ['start']"]),
    ("R+V", False, [], ["LayerStack.recompute_grads = True", "num_layers = 1",
                        "Mixture.final_weights = {'R': 1.0}",
                        "Mixture.annealing_steps = (10, 20)"])],
                         ids=["packed", "padded", "universal", "annealed"])
def test_a_training_step_lowers_to_eight_cores(attention, packed, files, bindings):
  decoding.parse(attention, "num_heads = 4", "d_ff = 12", *bindings, files=files)
  m = models.Model(mesh_shape=MESH, layout=meshes.LAYOUT, tpu=True)
  with m.tf_graph.as_default():
    tf.train.create_global_step()
    inputs, targets = m.ids(np.ones((4, 9), int)), m.ids(np.ones((4, 7), int))
    _, loss = m.model.call_simple(inputs, targets, True, mode="train", **(
        {"encoder_sequence_id": inputs, "decoder_sequence_id": targets}
        if packed else {}))
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    optimize.AdafactorOptimizer(learning_rate=0.1).apply_grads(grads, variables)
    mesh_impl = meshes.tpu_mesh(MESH)
    lowering = mtf.Lowering(m.graph, {m.mesh: mesh_impl}, autostack=False)
  ours = [v for v in variables if "layer_000" in v.name and "norm" not in v.name]
  assert len(ours) > 8
  for variable in ours:
    if variable.name.split("/")[-1] not in ("alpha", "o_bias"):  # Small ones.
      parts = variable.size / np.prod(mesh_impl.slice_shape(variable.shape))
      assert parts == 4, variable.name
  # XLA wants shapes that it knows.
  assert all(t.shape.is_fully_defined() for op in m.tf_graph.get_operations()
             for t in op.outputs)
  assert any("einsum" in str(name) for name in lowering.counters)
