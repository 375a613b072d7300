"""Finds out why a layout does not fit a mesh, and which mesh shapes fit."""

from collections.abc import Callable
from collections.abc import Iterable
import math
import re
from typing import Any

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import devices


class LayoutError(checks.Error):
  """A layout that cannot be lowered.

  Attributes:
    proposals: a list of the mesh shapes that fit, as strings.
  """

  def __init__(self, problems: list[str], proposals: list[str], cores: int) -> None:
    self.proposals = proposals
    more = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    fits = (f"mesh shapes for {cores} cores that fit: " + ", ".join(proposals)
            if proposals else
            f"no mesh shape of these dimensions fits {cores} cores")
    super().__init__(f"{'; '.join([*problems[:3], *more])}; {fits}.")


def find_problems(shapes: Iterable[tuple[str, mtf.Shape]], mesh_shape: mtf.Shape,
                  layout: mtf.LayoutRules) -> list[str]:
  """Returns what prevents the layout of variables and features of these names."""
  problems = []
  for name, shape in shapes:
    used: dict[int, mtf.Dimension] = {}
    where = f"of {collapse(name)} {describe(shape)}"
    for dim in shape.dims:
      axis = layout.tensor_dimension_to_mesh_axis(dim, mesh_shape)
      if axis is None:
        continue
      mesh_dim, other = mesh_shape[axis], used.setdefault(axis, dim)
      if other != dim:
        problems.append(f"{dim.name} and {other.name} {where} are both split over mesh "
                        f"dimension {mesh_dim.name}")
      elif dim.size % mesh_dim.size:
        problems.append(f"{dim.name} = {dim.size} {where} does not divide by mesh "
                        f"dimension {mesh_dim.name} = {mesh_dim.size}")
  return list(dict.fromkeys(problems))


def describe(shape: mtf.Shape) -> str:
  """Returns a text for a shape, such as [heads=8, length=512]."""
  return "[" + ", ".join(f"{d.name}={d.size}" for d in shape.dims) + "]"


def collapse(name: str) -> str:
  """Returns the name with the number of its block replaced by *."""
  return re.sub(r"block_\d+", "block_*", name)


def propose(shapes: Iterable[mtf.Shape], dimension_names: list[str],
            layout: mtf.LayoutRules, cores: int,
            batch_size: Callable[[mtf.Shape], int]) -> list[str]:
  """Returns the mesh shapes of this number of cores that divide all dimensions.

  Args:
    shapes: those of variables.
    dimension_names: the names of the mesh dimensions, in order.
    layout: a `mtf.LayoutRules`.
    cores: the product of the mesh dimensions.
    batch_size: a function from a mesh shape to the number of sequences.

  Returns:
    a list of strings such as "batch:4,model:2".
  """
  distinct = [("", mtf.Shape(list(dims))) for dims in {tuple(s.dims) for s in shapes}]
  fitting = []
  for sizes in _factors(cores, len(dimension_names)):
    mesh_shape = mtf.Shape([
        mtf.Dimension(n, s) for n, s in zip(dimension_names, sizes) if s > 1])
    try:
      batch = mtf.Shape([mtf.Dimension("batch", batch_size(mesh_shape))])
    except ValueError:  # The tokens of a batch are not a multiple of the length.
      continue
    if not find_problems([*distinct, ("", batch)], mesh_shape, layout):
      fitting.append(devices.flat(mesh_shape))
  return fitting


def _factors(product, count):
  """Returns all lists of `count` positive integers with this product."""
  if count == 0:
    return [[]] if product == 1 else []
  return [[n] + rest for n in range(product, 0, -1) if product % n == 0
          for rest in _factors(product // n, count - 1)]


def slice_bytes(variable: mtf.Variable, mesh_shape: mtf.Shape,
                layout: mtf.LayoutRules) -> int:
  """Returns the bytes of the part of a variable that a core has."""
  axes = layout.tensor_layout(variable.shape, mesh_shape).tensor_axis_to_mesh_axis
  parts = math.prod(mesh_shape[axis].size for axis in axes if axis is not None)
  return variable.size // parts * variable.slice_dtype.size


def replicated(variables: Iterable[mtf.Variable], mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules, least_bytes: int) -> list[dict[str, Any]]:
  """Returns large variables that a model-parallel mesh dimension does not split.

  Over the mesh dimension that splits the batch, variables are replicated by design.
  They are not listed, nor those whose part of a core is below `least_bytes`.

  Returns:
    a list of dicts: variable (with * for the number of the block), shape, count,
    bytes_per_core (of all these variables), mesh_dimension, and could_split, the
    dimensions that the mesh dimension could split.
  """
  data = {layout.tensor_dimension_to_mesh_axis(mtf.Dimension(name, 1), mesh_shape)
          for name in ("batch", "outer_batch")}
  entries: dict[Any, dict[str, Any]] = {}
  for v in variables:
    axes = layout.tensor_layout(v.shape, mesh_shape).tensor_axis_to_mesh_axis
    size = slice_bytes(v, mesh_shape, layout)
    for axis, mesh_dim in enumerate(mesh_shape.dims):
      if axis in {*data, *axes} or mesh_dim.size == 1 or size < least_bytes:
        continue
      key = collapse(v.name), describe(v.shape), mesh_dim.name
      entry = entries.setdefault(key, {
          "variable": key[0], "shape": key[1], "mesh_dimension": key[2],
          "count": 0, "bytes_per_core": 0, "could_split": [
              d.name for d, a in zip(v.shape.dims, axes)
              if a is None and d.size % mesh_dim.size == 0]})
      entry["count"] += 1
      entry["bytes_per_core"] += size
  return sorted(entries.values(), key=lambda e: -e["bytes_per_core"])
