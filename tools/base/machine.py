"""The machine and the versions of packages that figures were measured with."""

import importlib.metadata
import os
import pathlib
import platform
import re

_PACKAGES = ("tensorflow", "mesh-tensorflow", "t5", "synthesizer-mtf", "numpy")


def machine() -> dict[str, str | int | float]:
  """The processor's model, its usable cores, and their load."""
  return {"cpu": _cpu_model(), "cores": len(cores()),
          "system": platform.system(), "load": round(os.getloadavg()[0], 2)}


def cores() -> list[int]:
  """The numbers of the usable cores."""
  return sorted(os.sched_getaffinity(0))


def _cpu_model():
  text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  name = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
  return name[1] if name else platform.machine()


def versions() -> dict[str, str]:
  """The versions of Python and of the packages that matter here."""
  versions_ = {"python": platform.python_version()}
  for package in _PACKAGES:
    try:
      versions_[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions_[package] = "not installed"
  return versions_


def state() -> dict[str, dict]:
  """A dict of `machine` and `versions`, under these names."""
  return {"machine": machine(), "versions": versions()}
