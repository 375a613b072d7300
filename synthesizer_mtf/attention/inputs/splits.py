"""How the mesh splits dimensions, and sums over split dimensions.

While a graph is built, only the model's layout says how the mesh will split it, and a
model may have none. While it is lowered, the mesh says it. So an operation that needs
some dimension whole checks this again when it is lowered.
"""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
import tensorflow.compat.v1 as tf

_PLATFORM = "synthesizer_mtf/compiled_for"  # A collection of TensorFlow's graph.


def mesh_dimension(model: transformer.Unitransformer,
                   dim: mtf.Dimension) -> mtf.Dimension | None:
  """The dimension of the mesh that T5's layout splits `dim` over, or None.

  Args:
    model: has mesh and layout in T5; elsewhere both may be None, and then the result is
      None, whatever the mesh does.
    dim: a dimension of tensors.
  """
  return _mesh_dimension(dim, model.layout, model.mesh_shape)


def _mesh_dimension(dim, layout, mesh_shape):
  if layout is None or mesh_shape is None:
    return None
  mesh_shape = mtf.convert_to_shape(mesh_shape)
  axis = mtf.convert_to_layout_rules(layout).tensor_dimension_to_mesh_axis(
      dim, mesh_shape)
  return None if axis is None else mesh_shape.dims[axis]


def check_division(name: str, dim: mtf.Dimension, layout: Any, mesh_shape: Any) -> None:
  """Raises a ValueError if a layout splits a dimension into unequal parts.

  Args:
    name: the parameter that has the size of the dimension, for the message.
    dim: a dimension of tensors.
    layout: what `mtf.convert_to_layout_rules` accepts, or None.
    mesh_shape: what `mtf.convert_to_shape` accepts, or None.
  """
  axis = _mesh_dimension(dim, layout, mesh_shape)
  if axis is not None and dim.size % axis.size:
    raise checks.Error(
        f"`{name}` is {dim.size} but `{checks.called('utils.run.layout_rules')}` "
        f"splits {dim.name} over the {axis.size} parts of the mesh dimension "
        f"{axis.name!r}; make it a multiple of {axis.size}, or change "
        f"`{checks.called('utils.run.mesh_shape')}`.")


def is_whole(model: transformer.Unitransformer, dim: mtf.Dimension) -> bool:
  """Whether each processor holds all of a dimension."""
  axis = mesh_dimension(model, dim)
  return axis is None or axis.size == 1


def is_unsplit(shape: mtf.Shape, mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules) -> bool:
  """Whether a layout leaves a tensor whole on each processor."""
  axes = [layout.tensor_dimension_to_mesh_axis(dim, mesh_shape)
          for dim in shape.dims]
  return all(axis is None or mesh_shape.dims[axis].size == 1 for axis in axes)


def require_whole(lowering: mtf.Lowering, operation: mtf.Operation,
                  dims: Iterable[mtf.Dimension], remedy: str = "") -> None:
  """Raises a ValueError if the mesh splits one of the dimensions.

  Args:
    lowering: the lowering of the operation.
    operation: an operation that needs the dimensions whole.
    dims: dimensions of its tensors.
    remedy: what else the user can do, for the message.
  """
  mesh_impl = lowering.mesh_impl(operation)
  for dim in dims:
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dim)
    parts = 1 if axis is None else mesh_impl.shape.dims[axis].size
    if parts > 1:
      raise checks.Error(
          f"The layout splits {dim.name} over the {parts} parts of the mesh dimension "
          f"{mesh_impl.shape.dims[axis].name!r}, but {operation.name} needs all of it "
          f"on each processor; take `{dim.name}` out of the layout rules "
          f"(`utils.run.layout_rules`){remedy}.")


# The remedy where Mesh TensorFlow has a slower way that works on every mesh. It is
# chosen while the graph is built.
NAME_A_LAYOUT = (", or hand `layout` and `mesh_shape` to each Unitransformer, so that "
                 "Mesh TensorFlow computes it")


class SlicewiseOperation(mtf.SlicewiseOperation):
  """Mesh's, with a sentence if the mesh splits a dimension that has to be whole."""

  def __init__(self, *args: Any, remedy: str = "", **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._remedy = remedy  # See `require_whole`.

  def lower(self, lowering: mtf.Lowering) -> None:
    tensors = [*self.inputs, *self.outputs]
    require_whole(lowering, self, [dim for t in tensors for dim in t.shape.dims
                                   if dim.name in self.unsplittable_dims], self._remedy)
    values = lowering.mesh_impl(self).slicewise(
        self._tf_fn, *[lowering.tensors[x] for x in self.inputs])
    if len(self.outputs) == 1:
      values = values,
    for output, value in zip(self.outputs, values):
      lowering.set_tensor_lowering(output, value)


class SlicewiseGradOperation(mtf.GenericGradOperation):
  """Mesh's gradient of a `SlicewiseOperation`, which can also be handed partial sums.

  Mesh's own fails if processors have not yet added up a gradient or an input, such as
  the gradient by the input of a product whose output dimension is split.
  """

  def lower(self, lowering: mtf.Lowering) -> None:
    for x in self.inputs:
      if isinstance(lowering.tensors[x], mtf.LazyAllreduceSum):
        lowering.tensors[x] = lowering.tensors[x].to_laid_out_tensor()
    super().lower(lowering)


def _by_tensorflow(operation, *grad_ys):
  return SlicewiseGradOperation(operation, list(grad_ys)).outputs


def slicewise(tf_fn: Callable[..., Any], xs: list[mtf.Tensor], output_shape: Any = None,
              output_dtype: Any = None, splittable_dims: Iterable[mtf.Dimension] = (),
              grad_function: Any = None, name: str | None = None,
              remedy: str = "") -> Any:
  """As `mtf.slicewise`, with a `SlicewiseOperation` of this module.

  With a list of shapes and one of dtypes, the result is a list of tensors.
  """
  is_list = isinstance(output_dtype, list)
  shapes, dtypes = (output_shape, output_dtype) if is_list else (
      [output_shape], [output_dtype])
  outputs = SlicewiseOperation(
      tf_fn, xs, [xs[0].shape if shape is None else mtf.convert_to_shape(shape)
                   for shape in shapes],
      [dtype or xs[0].dtype for dtype in dtypes], list(splittable_dims),
      _by_tensorflow if grad_function is None else grad_function, name=name,
      remedy=remedy).outputs
  return outputs if is_list else outputs[0]


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


class Mesh(mtf.Mesh):
  """A mesh that says whether its graph is built for TPUs.

  Attributes:
    is_on_tpu: whether XLA will compile the graph, for a TPU or as for one.
  """

  def __init__(self, graph: mtf.Graph, variable_placer: Any = None,
               is_on_tpu: bool | None = None):
    """Declares the mesh; without an answer, it is on TPUs if it places variables."""
    super().__init__(graph, "mesh", variable_placer)
    self.is_on_tpu = variable_placer is not None if is_on_tpu is None else is_on_tpu


def compile_for(platform: str) -> None:
  """Declares that XLA compiles TensorFlow's default graph.

  Args:
    platform: "cpu", "gpu" or "tpu".
  """
  tf.add_to_collection(_PLATFORM, platform)


def is_on_tpu(mesh: mtf.Mesh) -> bool:
  """Whether this graph is built for TPUs.

  The mesh says it. One model may have graphs of both kinds, because T5 exports for CPUs
  even with `--tpu`. The meshes of T5's trainer have no attribute for it; it places
  variables itself only for TPUs.
  """
  if isinstance(mesh, Mesh):
    return mesh.is_on_tpu
  return mesh.variable_placer_fn != "cpu:0" or "tpu" in tf.get_collection(_PLATFORM)


def is_compiled(mesh: mtf.Mesh) -> bool:
  """Whether XLA compiles this graph, for TPUs or through JAX.

  XLA joins elementwise operations itself, and has no operations that work in place.
  """
  return is_on_tpu(mesh) or bool(tf.get_collection(_PLATFORM))
