"""A machine's cores and GPUs, shared by commands that run at the same time."""

from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import subprocess
from typing import NamedTuple

from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import machine

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


class Share(NamedTuple):
  """The share of one command.

  Attributes:
    cores: the system's numbers of the command's cores; empty for all.
    environment: variables that the command gets in addition to this process's.
  """
  cores: tuple[int, ...] = ()
  environment: Mapping[str, str] = {}


def shares(count: int) -> list[Share]:
  """Divides the machine; a single share is the whole machine.

  Raises:
    ValueError: there are fewer cores than shares.
  """
  if count == 1:
    return [Share()]
  cores = sorted(machine.cores(), key=_socket_and_core)
  if count > len(cores):
    raise checks.Error(
        f"--jobs={count}, but this machine lets us use {len(cores)} cores; each "
        "job needs one, so take no more jobs than cores.")
  gpus = _gpus()
  return [Share(tuple(_piece(cores, i, count)), _environment(gpus, i, count))
          for i in range(count)]


def _socket_and_core(core):
  """A sort key that groups the threads of a core, and the cores of a socket."""
  folder = pathlib.Path(_TOPOLOGY.format(core))
  try:
    return [int((folder / name).read_text(encoding="utf-8"))
            for name in ("physical_package_id", "core_id")] + [core]
  except (OSError, ValueError):
    return [0, core, core]


def _piece(things: Sequence, i: int, count: int) -> Sequence:
  """The i-th of `count` pieces; if there are fewer things, some pieces share one."""
  start, end = i * len(things) // count, (i + 1) * len(things) // count
  return things[start:max(end, start + 1)]


def _environment(gpus, i, count):
  if not gpus:
    return {}
  mine = {"CUDA_VISIBLE_DEVICES": ",".join(_piece(gpus, i, count))}
  # Otherwise the first command on a shared GPU takes all of its memory.
  shared = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if len(gpus) < count else {}
  return {**mine, **shared}


def _gpus():
  """The GPUs as CUDA_VISIBLE_DEVICES names them."""
  named = os.environ.get("CUDA_VISIBLE_DEVICES")
  if named is not None:
    return [name for name in map(str.strip, named.split(","))
            if name not in ("", "-1")]
  try:
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60,
        check=True).stdout
  except (OSError, subprocess.SubprocessError):
    return []
  lines = [line for line in listed.splitlines() if line.startswith("GPU ")]
  return [str(number) for number in range(len(lines))]
