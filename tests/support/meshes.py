"""The layout of models, and the mesh of a simulated TPU."""

import mesh_tensorflow as mtf
from mesh_tensorflow import simd_mesh_impl
import numpy as np
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
