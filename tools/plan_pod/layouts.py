"""Which mesh shapes fit a model, and what a layout leaves whole."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import math
import re

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import devices


class LayoutError(checks.Error):
  """A layout that cannot be lowered.

  Attributes:
    proposals: a list of the mesh shapes that fit, as strings.
  """

  def __init__(self, problem: str, proposals: list[str], cores: int) -> None:
    self.proposals = proposals
    super().__init__(problem.rstrip(".") + (
        f"; mesh shapes for {cores} cores that fit: {', '.join(proposals)}."
        if proposals else f"; no mesh shape of these dimensions fits {cores} cores."))


def problem(shapes: Iterable[mtf.Shape], mesh_shape: mtf.Shape,
            layout: mtf.LayoutRules) -> str | None:
  """What a mesh cannot split: a size, or two dimensions of a tensor at once."""
  for shape in shapes:
    used: dict[int, mtf.Dimension] = {}
    for dim in shape.dims:
      axis = layout.tensor_dimension_to_mesh_axis(dim, mesh_shape)
      if axis is None:
        continue
      mesh_dim, other = mesh_shape[axis], used.setdefault(axis, dim)
      if other != dim:
        return (f"{dim.name} and {other.name} of {describe(shape)} are both split over "
                f"mesh dimension {mesh_dim.name}")
      if dim.size % mesh_dim.size:
        return (f"{dim.name} = {dim.size} of {describe(shape)} does not divide by mesh "
                f"dimension {mesh_dim.name} = {mesh_dim.size}")
  return None


def propose(shapes: Iterable[mtf.Shape], dimension_names: list[str],
            layout: mtf.LayoutRules, cores: int,
            batch_size: Callable[[mtf.Shape], int]) -> list[str]:
  """Returns the mesh shapes of this number of cores that fit.

  Args:
    shapes: those of variables.
    dimension_names: the names of the mesh dimensions, in order.
    layout: a `mtf.LayoutRules`.
    cores: the product of the mesh dimensions.
    batch_size: a function from a mesh shape to the number of sequences.

  Returns:
    a list of strings such as "batch:4,model:2".
  """
  fitting = []
  for sizes in _factors(cores, len(dimension_names)):
    mesh_shape = mtf.Shape([
        mtf.Dimension(n, s) for n, s in zip(dimension_names, sizes) if s > 1])
    try:
      batch = mtf.Shape([mtf.Dimension("batch", batch_size(mesh_shape))])
    except ValueError:  # The tokens of a batch are not a multiple of the length.
      continue
    if not problem([*shapes, batch], mesh_shape, layout):
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
               layout: mtf.LayoutRules, least_bytes: int) -> Iterator[str]:
  """Yields lines about large variables that a model-parallel dimension does not split.

  Over the mesh dimension that splits the batch, variables are replicated by design.
  They are not listed, nor those whose part of a core is below `least_bytes`.
  """
  data = {layout.tensor_dimension_to_mesh_axis(mtf.Dimension(name, 1), mesh_shape)
          for name in ("batch", "outer_batch")}
  for v in variables:
    axes = layout.tensor_layout(v.shape, mesh_shape).tensor_axis_to_mesh_axis
    size = slice_bytes(v, mesh_shape, layout)
    for axis, mesh_dim in enumerate(mesh_shape.dims):
      if axis in {*data, *axes} or mesh_dim.size == 1 or size < least_bytes:
        continue
      could = " or ".join(d.name for d, a in zip(v.shape.dims, axes)
                          if a is None and d.size % mesh_dim.size == 0)
      name = re.sub(r"block_\d+", "block_*", v.name)
      yield (f"{name} {describe(v.shape)}, "
             f"{size / 2**20:,.1f} MiB per core: {mesh_dim.name} should split it, and "
             f"divides {could or 'no dimension of it'}")


def describe(shape: mtf.Shape) -> str:
  """Returns a text for a shape, such as [heads=8, length=512]."""
  return "[" + ", ".join(f"{d.name}={d.size}" for d in shape.dims) + "]"
