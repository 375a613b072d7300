"""Hands a program to the TPU's compiler, which has an environment of its own."""

from collections.abc import Callable
import json
import os
import pathlib
import re
import subprocess
import tempfile
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tools.plan_pod import modules
from synthesizer_mtf.tools.plan_pod import pods

ENVIRONMENT = ".venv-tpu"
# The interfaces that we use are private, and may change.
VERSIONS = {"jax": "0.12.0.1", "libtpu": "0.0.52"}
_REMEDY = (
    "make it with Python 3.12 or later: python3.12 -m venv {0} && {0}/bin/pip install "
    + " ".join(f"{name}=={version}" for name, version in VERSIONS.items()))
_ASK = ("import importlib.metadata as m\nfor name in ('jax', 'libtpu'):\n  try: "
        "print(name, m.version(name))\n  except m.PackageNotFoundError: pass")
_MEMORY = re.compile(
    r"\(([\d.]+)([GMK])\) exceeds available HBM \(([\d.]+)([GMK])\)")
_SCRIPT = pathlib.Path(__file__).with_name("tpu_compiler.py")


class Compiler:
  """libtpu, in an environment that the user chooses."""

  def __init__(self, environment: str) -> None:
    """Finds the compiler.

    Args:
      environment: a folder with a virtual environment, or its Python.

    Raises:
      ValueError: it has no Python, JAX or libtpu, or other versions than `VERSIONS`.
    """
    path = pathlib.Path(environment)
    self._python = str(path / "bin" / "python" if path.is_dir() else path)
    missing, other = _REMEDY.format(environment), _REMEDY.format(ENVIRONMENT)
    try:
      asked = subprocess.run([self._python, "-c", _ASK], check=True, text=True,
                             capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
      raise checks.Error(
          f"--compile={environment}: there is no Python environment; {missing}."
      ) from error
    self.versions = dict(line.split() for line in asked.stdout.splitlines())
    for name, version in VERSIONS.items():
      found = self.versions.get(name)
      if found != version:
        has = f"{name} {found}" if found else f"no {name}"
        raise checks.Error(
            f"--compile={environment} has {has}, but its interfaces are private, so "
            f"that it must be {name} {version}; {other}.")

  def check_topology(self, topology: pods.Topology) -> None:
    """Raises a ValueError if the compiler does not know a topology."""
    found = self._run(topology)
    if found["status"] == "refused":
      raise checks.Error(
          f"--topology={topology.name}: {found['reason']}; name one that Google "
          "offers, such as v3-32 or v5e:4x8.")

  def compile(self, program: bytes, topology: pods.Topology,
              keep: str | None = None,
              progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Compiles a program for all cores of a topology.

    Args:
      program: a serialized `HloModuleProto`.
      topology: a `pods.Topology`.
      keep: a path without ending, where the program and the compiler's text of the
        program are kept; None to keep neither.
      progress: a function that is called each second.

    Returns:
      a dict. If "status" is "compiled", it has the figures that `tpu_compiler.main`
      prints and `modules.summarized` returns. If "status" is "refused", it has "reason"
      and "out_of_memory", a boolean.

    Raises:
      ValueError: the script does not work with these versions of JAX and libtpu.
    """
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(f"{keep}.hlo" if keep else os.path.join(folder, "step.hlo"))
      path.write_bytes(program)
      found = self._run(topology, str(path), progress=progress)
      if found["status"] == "compiled":
        found |= modules.summarized(pathlib.Path(f"{path}.txt").read_text("utf-8"))
      return found

  def _run(self, topology, *path, progress=lambda: None):
    """Returns the script's result for a topology, or for a program on this topology."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
      process = subprocess.Popen(
          [self._python, str(_SCRIPT), topology.compiler_name, str(topology.cores),
           *path], stdout=output, stderr=subprocess.STDOUT)
      try:
        _wait(process, progress)
      finally:
        process.kill()
        process.wait()
      output.seek(0)
      return _result(output.read(), process.returncode)


def _wait(process, progress):
  while True:
    try:
      process.wait(1)
      return
    except subprocess.TimeoutExpired:
      progress()


def _result(text, status):
  """Returns the last line that the script has printed, which is JSON."""
  lines = text.strip().splitlines() or [""]
  try:
    found = json.loads(lines[-1])
  except ValueError:
    return {"status": "refused", "out_of_memory": False, "reason": (
        f"the compiler ended with status {status}: {lines[-1]}")}
  if "unfit" in found:
    raise checks.Error(
        f"JAX and libtpu do not take the program as expected: {found['unfit']}; use "
        + ", ".join(f"{name} {version}" for name, version in VERSIONS.items()) + ".")
  if "refused" in found:
    return {"status": "refused", "reason": _sentence(found["refused"]),
            "out_of_memory": bool(_MEMORY.search(found["refused"]))}
  return {"status": "compiled", **found}


def _sentence(message):
  """Returns the compiler's reason, with the layer or memory that it may name."""
  memory = _MEMORY.search(message)
  if memory:
    needed, has = (float(memory[i]) * {"G": 1, "M": 2**-10, "K": 2**-20}[memory[i + 1]]
                   for i in (1, 3))
    return (f"it needs {needed:.2f} GiB of a core's memory, and there are {has:.2f}: "
            f"{needed - has:.2f} GiB too much")
  layer = re.search(r'op_name="([^"]+)"', message)
  first = re.sub(r"\s+", " ", message).strip()
  return (f"at {layer[1]}: " if layer else "") + first[:300].rstrip(".")
