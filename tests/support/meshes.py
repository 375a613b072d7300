"""Lays models out on a mesh of CPU devices or on a simulated TPU."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow import simd_mesh_impl
import numpy as np
from support import models
from support.decoding import parse
import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import device_assignment
from tensorflow.python.tpu import topology

LAYOUT = "batch:batch,heads:model,d_ff:model,vocab:model"


def tpu_mesh(shape):
  """Makes a mesh on a simulated 2x2 topology of 8 cores."""
  coordinates = np.array([[[x, y, 0, core] for x in range(2) for y in range(2)
                           for core in range(2)]], np.int32)
  devices = device_assignment.DeviceAssignment(
      topology.Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=coordinates),
      core_assignment=coordinates.reshape(8, 1, 4))
  return simd_mesh_impl.SimdMeshImpl(
      mtf.convert_to_shape(shape), mtf.convert_to_layout_rules(LAYOUT), None,
      devices)


def lowered_step(attention, packed, *bindings, tpu=False):
  """(model, mesh, lowering) of a training step for 8 cores of a simulated TPU."""
  parse(attention, "num_heads = 4", "d_ff = 12", *bindings)
  m = models.Model(mesh_shape="batch:2,model:4", layout=LAYOUT, tpu=tpu)
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
    return m, mesh_impl, mtf.Lowering(m.graph, {m.mesh: mesh_impl}, autostack=False)
