"""Finds out why a layout does not fit a mesh, and which mesh shapes fit."""

from collections.abc import Callable
from collections.abc import Iterable
import math
import re
from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks

# A tensor: its name, its shape, and whether it is a variable.
NamedShape = tuple[str, mtf.Shape, bool]


class LayoutError(checks.Error):
  """A layout that cannot be lowered.

  Attributes:
    proposals: a list of the mesh shapes that fit, as strings.
  """

  def __init__(self, problems: list["Problem"], proposals: list[str],
               cores: int) -> None:
    self.proposals = proposals
    parts = [*map(str, problems[:3])]
    if len(problems) > 3:
      parts.append(f"and {len(problems) - 3} more")
    fits = (f"mesh shapes for {cores} cores that fit: " + ", ".join(proposals)
            if proposals else
            f"no mesh shape of these dimensions fits {cores} cores")
    super().__init__(f"{'; '.join(parts)}; {fits}.")


class Problem(NamedTuple):
  """A dimension of a tensor that a mesh dimension cannot split.

  Attributes:
    tensor: the name of the tensor, with the numbers of blocks replaced by *.
    shape: the `mtf.Shape` of the tensor.
    dimension: the `mtf.Dimension` of the tensor.
    mesh_dimension: the `mtf.Dimension` of the mesh.
    other: another dimension of the tensor on the same mesh dimension; None if the
      problem is that the sizes do not divide.
    is_variable: whether the tensor is a variable.
  """
  tensor: str
  shape: mtf.Shape
  dimension: mtf.Dimension
  mesh_dimension: mtf.Dimension
  other: mtf.Dimension | None = None
  is_variable: bool = False

  def __str__(self) -> str:
    kind = "variable" if self.is_variable else "tensor"
    where = f"of {kind} {self.tensor} {describe(self.shape)}"
    mesh = f"mesh dimension {self.mesh_dimension.name}"
    if self.other is not None:
      return (f"{self.dimension.name} and {self.other.name} {where} are both "
              f"split over {mesh}")
    return (f"{self.dimension.name} = {self.dimension.size} {where} does not "
            f"divide by {mesh} = {self.mesh_dimension.size}")


def describe(shape: mtf.Shape) -> str:
  """Returns a text for a shape, such as [heads=8, length=512]."""
  return "[" + ", ".join(f"{d.name}={d.size}" for d in shape.dims) + "]"


def collapse(name: str) -> str:
  """Returns the name with the number of its block replaced by *."""
  return re.sub(r"block_\d+", "block_*", name)


def find_problems(tensors: Iterable[NamedShape], mesh_shape: mtf.Shape,
                  layout: mtf.LayoutRules) -> list[Problem]:
  """Returns the problems that prevent the layout of tensors.

  Args:
    tensors: an iterable of (name, `mtf.Shape`, whether it is a variable).
    mesh_shape: a `mtf.Shape`.
    layout: a `mtf.LayoutRules`.

  Returns:
    a list of `Problem`, one for each kind; variables come first.
  """
  found = {}
  for name, shape, is_variable in tensors:
    used = {}
    for dim in shape.dims:
      axis = layout.tensor_dimension_to_mesh_axis(dim, mesh_shape)
      if axis is None:
        continue
      mesh_dim = mesh_shape[axis]
      other = used.setdefault(axis, dim)
      other = None if other == dim else other
      if other is None and dim.size % mesh_dim.size == 0:
        continue
      problem = Problem(
          collapse(name), shape, dim, mesh_dim, other, is_variable)
      key = dim, mesh_dim, other, problem.tensor if is_variable else ""
      found.setdefault(key, problem)
  variables = [p for p in found.values() if p.is_variable]
  known = {(p.dimension, p.mesh_dimension) for p in variables}
  return variables + [
      p for p in found.values()
      if not p.is_variable and (p.dimension, p.mesh_dimension) not in known]


def slice_bytes(variable: mtf.Variable, mesh_shape: mtf.Shape,
                layout: mtf.LayoutRules) -> int:
  """Returns the bytes of the part of a variable that a core has."""
  axes = layout.tensor_layout(variable.shape, mesh_shape).tensor_axis_to_mesh_axis
  parts = math.prod(mesh_shape[axis].size for axis in axes if axis is not None)
  return variable.size // parts * variable.slice_dtype.size


def model_axes(mesh_shape: mtf.Shape, layout: mtf.LayoutRules) -> list[int]:
  """Returns the mesh axes longer than 1 that do not split the batch."""
  data = {layout.tensor_dimension_to_mesh_axis(mtf.Dimension(name, 1), mesh_shape)
          for name in ("batch", "outer_batch")}
  return [i for i, d in enumerate(mesh_shape.dims) if i not in data and d.size > 1]


def replicated(variables: Iterable[mtf.Variable], mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules, least_bytes: int) -> list[dict[str, Any]]:
  """Returns large variables that a model-parallel mesh dimension does not split.

  Over the mesh dimension that splits the batch, variables are replicated by design.
  They are not listed.

  Args:
    variables: variables of Mesh.
    mesh_shape: a `mtf.Shape`.
    layout: a `mtf.LayoutRules`.
    least_bytes: the least size of a core's part; smaller ones are left out.

  Returns:
    a list of dicts: variable (with * for the number of the block), shape, count,
    bytes_per_core (of all these variables), mesh_dimension, and could_split, the
    dimensions that the mesh dimension could split.
  """
  found = {}
  for v in variables:
    axes = layout.tensor_layout(v.shape, mesh_shape).tensor_axis_to_mesh_axis
    size = slice_bytes(v, mesh_shape, layout)
    for axis in model_axes(mesh_shape, layout):
      if axis in axes or size < least_bytes:
        continue
      key = collapse(v.name), describe(v.shape), mesh_shape[axis].name
      entry = found.setdefault(key, {
          "variable": key[0], "shape": key[1], "mesh_dimension": key[2],
          "count": 0, "bytes_per_core": 0, "could_split": [
              d.name for d, a in zip(v.shape.dims, axes)
              if a is None and d.size % mesh_shape[axis].size == 0]})
      entry["count"] += 1
      entry["bytes_per_core"] += size
  return sorted(found.values(), key=lambda e: -e["bytes_per_core"])


def propose(tensors: Iterable[NamedShape], dimension_names: list[str],
            layout: mtf.LayoutRules, cores: int,
            batch_size: Callable[[mtf.Shape], int]) -> list[str]:
  """Returns the mesh shapes of this number of cores that divide all dimensions.

  Args:
    tensors: as in `find_problems`; their batch dimensions are ignored.
    dimension_names: the names of the mesh dimensions, in order.
    layout: a `mtf.LayoutRules`.
    cores: the product of the mesh dimensions.
    batch_size: a function from a mesh shape to the number of sequences.

  Returns:
    a list of strings such as "batch:4,model:2".
  """
  distinct = {tuple(d for d in shape.dims if d.name != "batch")
              for _, shape, _ in tensors}
  shapes = [("", mtf.Shape(list(dims)), False) for dims in distinct]
  fitting = []
  for sizes in _factors(cores, len(dimension_names)):
    mesh_shape = mtf.Shape([
        mtf.Dimension(n, s) for n, s in zip(dimension_names, sizes) if s > 1])
    try:
      batch = mtf.Shape([mtf.Dimension("batch", batch_size(mesh_shape))])
    except ValueError:  # The tokens of a batch are not a multiple of the length.
      continue
    if not find_problems(shapes + [("", batch, False)], mesh_shape, layout):
      fitting.append(flat(mesh_shape))
  return fitting


def flat(mesh_shape: mtf.Shape) -> str:
  """Returns a mesh shape in gin's format, such as "batch:4,model:2"."""
  return ",".join(f"{d.name}:{d.size}" for d in mesh_shape.dims)


def _factors(product, count):
  """Yields all lists of `count` positive integers with this product."""
  if count == 0:
    return [[]] if product == 1 else []
  return [[n] + rest for n in range(product, 0, -1) if product % n == 0
          for rest in _factors(product // n, count - 1)]
