"""TPU topologies and the public rates of their chips."""

import re
from typing import NamedTuple

import numpy as np
from tensorflow.python.tpu import device_assignment
from tensorflow.python.tpu import topology as tpu_topology

CORES_PER_CHIP = 2


class Chip(NamedTuple):
  """The published rates of a TPU chip, which has two cores.

  Attributes:
    tflops: peak of its matrix units in bfloat16, 10^12 operations per second.
    hbm_gbps: 10^9 bytes per second from and to its memory.
    hbm_gib: its memory in GiB.
    link_gbps: 10^9 bits per second of one link in one direction; a chip has
      four links, two for each dimension of the torus.
  """
  tflops: float
  hbm_gbps: float
  hbm_gib: float
  link_gbps: float


SOURCES = """\
https://cloud.google.com/tpu/docs/v3 (v3: peak, memory) and Jouppi et al.,
  "A domain-specific supercomputer for training deep neural networks", CACM
  63(7), 2020 (v2, and the links of both)"""

CHIPS = {"v2": Chip(46, 700, 16, 496), "v3": Chip(123, 900, 32, 656)}

# Chips along x and y by the number of cores, as Cloud TPU offers them.
_SHAPES = {8: (2, 2), 32: (4, 4), 64: (4, 8), 128: (8, 8), 256: (8, 16),
           512: (16, 16), 1024: (16, 32), 2048: (32, 32)}
_OFFERED = {"v2": (8, 32, 128, 256, 512),
            "v3": (8, 32, 64, 128, 256, 512, 1024, 2048)}


class Topology(NamedTuple):
  """A rectangle of chips.

  Attributes:
    name: as `utils.tpu_mesh_shape.tpu_topology` takes it.
    generation: "v2" or "v3".
    x: chips along the first dimension of the torus.
    y: chips along the second.
  """
  name: str
  generation: str
  x: int
  y: int

  @property
  def cores(self) -> int:
    return self.x * self.y * CORES_PER_CHIP

  @property
  def physical_shape(self) -> list[int]:
    """[x, y, z, cores of a chip], as TensorFlow describes a TPU."""
    return [self.x, self.y, 1, CORES_PER_CHIP]

  def device_assignment(self) -> device_assignment.DeviceAssignment:
    """A `DeviceAssignment` of all cores, on made-up coordinates."""
    coordinates = np.array(
        list(np.ndindex(*self.physical_shape)), np.int32)
    return device_assignment.DeviceAssignment(
        tpu_topology.Topology(mesh_shape=self.physical_shape,
                              device_coordinates=coordinates[np.newaxis]),
        core_assignment=coordinates[:, np.newaxis])


def parse_topology(name: str, generation: str = "v3") -> Topology:
  """The topology of this name.

  Args:
    name: such as "v3-128" (cores) or "4x8" (chips).
    generation: "v2" or "v3", for names that do not say it.

  Returns:
    a `Topology`.

  Raises:
    ValueError: there is no such topology.
  """
  chips = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
  if chips:
    return Topology(name, generation, int(chips[1]), int(chips[2]))
  cores = re.fullmatch(r"(v\d+)-(\d+)", name)
  if cores and int(cores[2]) in _OFFERED.get(cores[1], ()):
    return Topology(name, cores[1], *_SHAPES[int(cores[2])])
  offered = "; ".join(
      ", ".join(f"{version}-{n}" for n in sizes)
      for version, sizes in _OFFERED.items())
  raise ValueError(
      f"unknown topology {name!r} in --topology; use one of {offered}, or "
      "chips such as 2x2 or 4x8.")
