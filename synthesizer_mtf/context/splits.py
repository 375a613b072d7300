"""How the mesh splits dimensions, and sums over split dimensions."""

from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer


def mesh_dimension(model: transformer.Unitransformer,
                   dim: mtf.Dimension) -> mtf.Dimension | None:
  """The dimension of the mesh that T5's layout splits `dim` over, or None.

  Args:
    model: has mesh and layout in T5; elsewhere both may be None.
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


def is_unsplit(shape: mtf.Shape, mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules) -> bool:
  """Whether a layout leaves a tensor whole on each processor."""
  axes = [layout.tensor_dimension_to_mesh_axis(dim, mesh_shape)
          for dim in shape.dims]
  return all(axis is None or mesh_shape.dims[axis].size == 1 for axis in axes)


def add_parts(lowering: mtf.Lowering, operation: mtf.Operation,
              dims: list[mtf.Dimension], laid_out: Any, output: mtf.Tensor) -> Any:
  """Adds up the processors' sums over their parts of some dimensions.

  Args:
    lowering: the lowering of the operation.
    operation: an operation, which names the counter that `plan_pod` reads.
    dims: dimensions that `output` has lost in a sum over each processor's part.
    laid_out: the laid-out tensor of these sums.
    output: the Mesh tensor of the result.

  Returns:
    a laid-out tensor, or one that Mesh adds up when an operation reads it.
  """
  mesh_impl = lowering.mesh_impl(operation)
  axes = [axis for axis in map(mesh_impl.tensor_dimension_to_mesh_axis, dims)
          if axis is not None]
  if not axes:
    return laid_out

  def add_counter():
    kind = operation.name.rpartition("/")[2].rstrip("_0123456789")
    lowering.add_counter(
        f"allreduce/{axes}/{kind}", mesh_impl.laid_out_size(output.shape))

  return mtf.LazyAllreduceSum(
      mesh_impl, laid_out, axes, add_counter_fn=add_counter)


def is_on_tpu(mesh: mtf.Mesh) -> bool:
  """Whether this graph is built for TPUs.

  The mesh tells it: T5's trainer places variables itself only for TPUs. One model may
  have graphs of both kinds, because T5 exports for CPUs even with `--tpu`.
  """
  return mesh.variable_placer_fn != "cpu:0"
