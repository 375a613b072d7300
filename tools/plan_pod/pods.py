"""TPU topologies, and what is published of their chips."""

import math
import re
from typing import NamedTuple

from synthesizer_mtf import checks


class Chip(NamedTuple):
  """A TPU chip.

  Attributes:
    tflops: the peak of the matrix units in bfloat16, in 10^12 operations per second.
    hbm_gib: the size of the memory in GiB.
    cores: the number of cores that programs see. The cores of a v5p work as one.
    units: the number of multipliers of all matrix units together.
  """
  tflops: float
  hbm_gib: float
  cores: int
  units: int

  @property
  def clock(self) -> float:
    """Cycles per second, at which all units together reach the published peak."""
    return 1e12 * self.tflops / (2 * self.units)


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of the
# chips there; v2: Jouppi et al., "A domain-specific supercomputer for training deep
# neural networks", CACM 63(7), 2020.
_SIDE = 128 ** 2  # The multipliers of a matrix unit, up to v5.
CHIPS = {
    "v2": Chip(46, 16, 2, 2 * _SIDE),
    "v3": Chip(123, 32, 2, 4 * _SIDE),
    "v4": Chip(275, 32, 2, 8 * _SIDE),
    "v5e": Chip(197, 16, 1, 4 * _SIDE),
    "v5p": Chip(459, 95, 1, 8 * _SIDE),
    "v6e": Chip(918, 32, 1, 4 * 256 ** 2)}

# From the number of cores to the chips along x and y, as Cloud TPU offers them.
_SHAPES = {8: (2, 2), 32: (4, 4), 64: (4, 8), 128: (8, 8), 256: (8, 16),
           512: (16, 16), 1024: (16, 32), 2048: (32, 32)}
_OFFERED = {"v2": (8, 32, 128, 256, 512),
            "v3": (8, 32, 64, 128, 256, 512, 1024, 2048)}


class Topology(NamedTuple):
  """A block of chips.

  Attributes:
    name: the name in the command.
    generation: a key of `CHIPS`.
    chips: the numbers of chips along the three dimensions of the torus.
  """
  name: str
  generation: str
  chips: tuple[int, int, int]

  @property
  def cores_per_chip(self) -> int:
    return CHIPS[self.generation].cores

  @property
  def cores(self) -> int:
    return math.prod(self.physical_shape)

  @property
  def mesh_name(self) -> str:
    """The name for `utils.tpu_mesh_shape.tpu_topology`."""
    return self.name.partition(":")[2] or self.name

  @property
  def compiler_name(self) -> str:
    """The name for libtpu."""
    sides = self.chips[:3 if self.generation in ("v4", "v5p") else 2]
    return f"{self.generation}:{'x'.join(map(str, sides))}"

  @property
  def physical_shape(self) -> list[int]:
    """[x, y, z, cores of a chip], as TensorFlow describes a TPU."""
    return [*self.chips, self.cores_per_chip]


def parse_topology(name: str, generation: str = "v3") -> Topology:
  """Returns the topology with this name.

  Args:
    name: such as "v3-128" (cores), "4x8" (chips), or "v5e:4x8" (chips of a
      generation).
    generation: a key of `CHIPS`, for names without a generation.

  Raises:
    ValueError: there is no such topology.
  """
  chips = re.fullmatch(
      rf"(?:({'|'.join(CHIPS)}):)?([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", name)
  if chips:
    x, y, z = (int(side or 1) for side in chips.groups()[1:])
    return Topology(name, chips[1] or generation, (x, y, z))
  cores = re.fullmatch(r"(v\d+)-(\d+)", name)
  if cores and int(cores[2]) in _OFFERED.get(cores[1], ()):
    return Topology(name, cores[1], (*_SHAPES[int(cores[2])], 1))
  offered = "; ".join(
      ", ".join(f"{version}-{n}" for n in sizes)
      for version, sizes in _OFFERED.items())
  raise checks.Error(
      f"unknown topology {name!r} in --topology; use one of {offered}, chips such "
      "as 2x2 or 4x8, or chips of a generation such as v5e:4x8 or v4:2x2x4 "
      f"({', '.join(CHIPS)}).")
