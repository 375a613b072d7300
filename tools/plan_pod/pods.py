"""Topologies of TPUs and GPUs, and what is published of their chips."""

import math
import re
from typing import NamedTuple

from synthesizer_mtf import checks

# From the number of cores to the chips along x and y, as Cloud TPU offers them.
_SHAPES = {8: (2, 2), 32: (4, 4), 64: (4, 8), 128: (8, 8), 256: (8, 16),
           512: (16, 16), 1024: (16, 32), 2048: (32, 32)}
_MOST_CORES = {"v2": 512, "v3": 2048}


class Chip(NamedTuple):
  """A TPU chip or a GPU.

  Attributes:
    hbm_gib: the size of the memory in GiB.
    cores: the number of devices that programs see. The cores of a v5p work as one.
    megahertz: the clock at which each multiplier of a TPU's matrix units makes two
      operations in a cycle at the published peak; 0 for a GPU.
  """
  hbm_gib: float
  cores: int = 1
  megahertz: float = 0

  @property
  def is_gpu(self) -> bool:
    return not self.megahertz


# TPUs: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of
# the chips there; v2: Jouppi et al., "A domain-specific supercomputer for training deep
# neural networks", CACM 63(7), 2020. GPUs: the memory that NVIDIA's data sheets name,
# of which programs see up to 4% less.
CHIPS = {
    "v2": Chip(16, 2, 702), "v3": Chip(32, 2, 938), "v4": Chip(32, 2, 1049),
    "v5e": Chip(16, 1, 1503), "v5p": Chip(95, 1, 1751), "v6e": Chip(32, 1, 1751),
    "a100": Chip(80), "h100": Chip(80), "h200": Chip(141), "b200": Chip(180),
    "l4": Chip(24), "l40s": Chip(48)}


class Topology(NamedTuple):
  """A block of chips: its name in the command, a key of `CHIPS`, and its three sides.

  The devices of GPUs are along the first side.
  """
  name: str
  generation: str
  chips: tuple[int, int, int]

  @property
  def chip(self) -> Chip:
    return CHIPS[self.generation]

  @property
  def cores(self) -> int:
    return math.prod(self.chips) * self.chip.cores

  @property
  def mesh_name(self) -> str:
    """The name for `utils.tpu_mesh_shape.tpu_topology`."""
    return self.name.partition(":")[2] or self.name

  @property
  def compiler_name(self) -> str:
    """The name for libtpu."""
    sides = self.chips[:3 if self.generation in ("v4", "v5p") else 2]
    return f"{self.generation}:{'x'.join(map(str, sides))}"


def parse_topology(name: str, generation: str = "v3") -> Topology:
  """Returns the topology with this name.

  Args:
    name: such as "v3-128" (cores), "4x8" (chips), "v5e:4x8" (chips of a generation), or
      "h100:8" (GPUs).
    generation: a key of `CHIPS`, for names without a generation.

  Raises:
    ValueError: there is no such topology.
  """
  chips = re.fullmatch(r"(?:(\w+):)?([1-9]\d*)(?:x([1-9]\d*)(?:x([1-9]\d*))?)?", name)
  if chips:
    kind = chips[1] or generation
    x, y, z = (int(side or 1) for side in chips.groups()[1:])
    if kind in CHIPS and CHIPS[kind].is_gpu == (chips[3] is None):
      return Topology(name, kind, (x, y, z))
  cores = re.fullmatch(r"(v2|v3)-(\d+)", name)
  if cores and int(cores[2]) in _SHAPES and int(cores[2]) <= _MOST_CORES[cores[1]]:
    return Topology(name, cores[1], (*_SHAPES[int(cores[2])], 1))
  raise checks.Error(
      f"unknown topology {name!r} in --topology; use v2-8 ... v2-512 or v3-8 ... "
      f"v3-2048, of {', '.join(map(str, _SHAPES))} cores, chips such as 2x2 or 4x8, "
      "chips of a generation such as v5e:4x8 or v4:2x2x4, or GPUs such as h100:8 "
      f"({', '.join(CHIPS)}).")
