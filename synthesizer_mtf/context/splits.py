"""How the mesh divides a dimension, while the graph is built."""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer


def mesh_dimension(model: transformer.Unitransformer,
                   dim: mtf.Dimension) -> mtf.Dimension | None:
  """The dimension of the mesh that T5's layout splits `dim` over, or None.

  Args:
    model: knows mesh and layout in T5; elsewhere both may be None.
    dim: a dimension of tensors.
  """
  if model.layout is None or model.mesh_shape is None:
    return None
  mesh_shape = mtf.convert_to_shape(model.mesh_shape)
  axis = mtf.convert_to_layout_rules(
      model.layout).tensor_dimension_to_mesh_axis(dim, mesh_shape)
  return None if axis is None else mesh_shape.dims[axis]


def is_whole(model: transformer.Unitransformer, dim: mtf.Dimension) -> bool:
  """Whether each processor holds all of a dimension."""
  found = mesh_dimension(model, dim)
  return found is None or found.size == 1


def is_on_tpu(mesh: mtf.Mesh) -> bool:
  """Whether T5's trainer builds for TPUs: only then it places variables itself."""
  return mesh.variable_placer_fn != "cpu:0"
