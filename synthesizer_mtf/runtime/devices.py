"""The devices of a mesh in JAX, and how they share tensors."""

from collections.abc import Sequence
import contextlib
import os
import re
from typing import Any

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import checks

# For each dimension of a tensor, the dimension of the mesh that splits it, or None.
Parts = tuple[str | None, ...]
_NAME = re.compile(r"/?(?:device:)?(cpu|gpu|tpu):(\d+)", re.IGNORECASE)


class Devices:
  """The devices of a mesh.

  Attributes:
    shape: the mesh, a `mtf.Shape`.
  """

  def __init__(self, shape: Any, layout: Any, names: Sequence[Any] | None = None
               ) -> None:
    """Finds the devices.

    Args:
      shape: what `mtf.convert_to_shape` accepts.
      layout: what `mtf.convert_to_layout_rules` accepts.
      names: `utils.run.mesh_devices`: names such as "gpu:0"; without names, all
        devices that JAX sees. Devices of JAX can stand for their names.

    Raises:
      ValueError: a device does not exist, or is named twice, or their number is not
        the mesh's size.
    """
    import jax

    self.shape = mtf.convert_to_shape(shape)
    self._layout = mtf.convert_to_layout_rules(layout)
    self.list = [*map(_device, filter(None, names or ()))] or _existing()
    if len({*self.list}) != len(self.list):
      raise checks.Error(
          f"`utils.run.mesh_devices` is {names!r}, which names a device twice, but "
          "through JAX each part of the mesh has one of its own; name each once, and "
          "let the sizes of `utils.run.mesh_shape` multiply to their number.")
    if len(self.list) != self.shape.size:
      raise checks.Error(
          f"`utils.run.mesh_shape` is {flat(self.shape)!r}, of {self.shape.size} "
          f"devices, but there are {len(self.list)}: "
          f"{', '.join(map(str, self.list))}; make the sizes multiply to "
          f"{len(self.list)}, or name devices in `utils.run.mesh_devices`.")
    self._mesh = jax.sharding.Mesh(
        np.array(self.list).reshape(self.shape.to_integer_list),
        [dim.name for dim in self.shape.dims])

  @property
  def platform(self) -> str:
    """"cpu", "gpu" or "tpu"."""
    return self.list[0].platform

  def parts(self, shape: mtf.Shape) -> Parts:
    """How the layout rules split a tensor.

    Raises:
      ValueError: the mesh does not divide a dimension.
    """
    names: list[str | None] = []
    for dim in shape.dims:
      axis = self._layout.tensor_dimension_to_mesh_axis(dim, self.shape)
      part = None if axis is None else self.shape.dims[axis]
      if part is not None and dim.size % part.size:
        raise checks.Error(
            f"{dim.name} is {dim.size} but `utils.run.layout_rules` splits it over the "
            f"{part.size} parts of the mesh dimension {part.name!r}; make it a "
            f"multiple of {part.size}, or change `utils.run.mesh_shape`.")
      names.append(part and part.name)
    return tuple(names)

  def sharding(self, parts: Parts) -> Any:
    """The sharding of JAX; () is that of tensors which every device holds."""
    import jax

    return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*parts))

  def __str__(self) -> str:
    split = [f"{dim} over {mesh}" for mesh in self.shape.dimension_names
             for dim in self._layout.mesh_dimension_name_to_tensor_dimension_names(mesh)
             if self.shape.get_dim_by_name(mesh).size > 1]
    how = "it splits " + ", ".join(sorted(split)) if split else "nothing is split"
    return (f"{len(self.list)} {self.platform} ({', '.join(map(str, self.list))}) as "
            f"the mesh {flat(self.shape)!r}; {how}")


def flat(shape: mtf.Shape) -> str:
  """A mesh as users write it: "model:1,batch:4"."""
  return ",".join(f"{dim.name}:{dim.size}" for dim in shape.dims)


def _existing():
  """All devices that JAX sees."""
  import jax

  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:  # The second if JAX_PLATFORMS names
    why = str(error).partition("\n")[0].rstrip(".")  # what it has no package for.
    raise checks.Error(
        f"JAX finds no devices{why and f' ({why})'}: install the device's driver and "
        "JAX's package for it, or change the environment variable JAX_PLATFORMS, which "
        f"is {os.environ.get('JAX_PLATFORMS')!r}.") from error


def _device(name):
  """The device of a name such as "gpu:0"."""
  import jax

  if isinstance(name, jax.Device):
    return name
  match = _NAME.fullmatch(name)
  with contextlib.suppress(RuntimeError, IndexError):  # No such platform; no such one.
    if match:
      return jax.devices(match[1].lower())[int(match[2])]
  existing = ", ".join(f"{d.platform}:{d.id}" for d in _existing())
  raise checks.Error(
      f"`utils.run.mesh_devices` names {name!r}, but JAX has {existing}; name "
      "these, or leave out `utils.run.mesh_devices` to use all.")
