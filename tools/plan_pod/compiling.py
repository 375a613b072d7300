"""Compiles a step for the devices of a topology, none of which needs to be there.

Where libtpu is installed, it compiles for the TPUs themselves. Elsewhere, and for GPUs,
XLA compiles for as many devices of the host.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import time
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf import gin_names
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import modules
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.trainer.model import jax_runtime
import tensorflow.compat.v1 as tf

TPU, HOST = COMPILERS = ("tpu", "host")
# libtpu must not ask Google for a TPU, and several processes may compile.
_ALONE = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1",
          "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
          "TPU_ACCELERATOR_TYPE": "v3-8", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
          "TPU_LOG_DIR": "disabled", "TPU_STDERR_LOG_LEVEL": "3"}
_MEMORY = re.compile(
    r"\(([\d.]+)([GMK])\) exceeds available HBM \(([\d.]+)([GMK])\)")


def choose(compiler: str | None, topology: pods.Topology) -> str:
  """Returns the compiler of this name; for None, libtpu for a TPU if it is installed.

  Raises:
    ValueError: JAX or libtpu is not there, or libtpu is asked for a GPU.
  """
  if sys.version_info < (3, 12) or not importlib.util.find_spec("jax"):
    raise checks.Error(
        "plan_pod compiles the program that JAX runs, which needs Python 3.12 or 3.13 "
        f"and JAX, but this is Python {sys.version_info.major}."
        f"{sys.version_info.minor}: install this package there.")
  has_libtpu = importlib.util.find_spec("libtpu") is not None
  if compiler == TPU and topology.chip.is_gpu:
    raise checks.Error(
        f"--compiler=tpu compiles for TPUs, but --topology has {topology.name}, which "
        "are GPUs; leave out --compiler to compile for the host.")
  if compiler == TPU and not has_libtpu:
    raise checks.Error(
        "--compiler=tpu needs libtpu, which is not installed: pip install "
        "'synthesizer-mtf[tpu]', or leave out --compiler to compile for the host.")
  return compiler or (TPU if has_libtpu and not topology.chip.is_gpu else HOST)


def versions(compiler: str) -> dict[str, str]:
  """Returns the versions of JAX, and of libtpu if it compiles."""
  return {name: importlib.metadata.version(name)
          for name in ("jax", "libtpu")[:1 + (compiler == TPU)]}


def check(topology: pods.Topology, compiler: str) -> None:
  """Raises a ValueError if the compiler does not know a topology."""
  devices(topology, compiler)


def devices(topology: pods.Topology, compiler: str) -> list[Any]:
  """Returns JAX's devices, one for each core of a topology.

  Raises:
    ValueError: libtpu does not know the topology.
  """
  import jax
  from jax.experimental import topologies

  if compiler == HOST:
    return jax.devices("cpu")[:topology.cores]
  try:
    return list(topologies.get_topology_desc(
        platform="tpu", topology_name=topology.compiler_name).devices)
  except jax.errors.JaxRuntimeError as error:
    raise checks.Error(
        f"--topology={topology.name}: libtpu knows no topology "
        f"{topology.compiler_name}: {error}; name one that Google offers, such as "
        "v3-32 or v5e:4x8.") from error


def compiled(step: lowering.Step, keep: str | None = None) -> dict[str, Any]:
  """Compiles a step, whose graph is the default.

  `keep` is a path without ending, where the program (.mlir) and the compiler's result
  for it (.txt) are kept; None keeps neither.

  Returns:
    a dict: figures of one core, in which a loop's body counts once, and those of
    `modules.summarized`. If the compiler refuses, it has only "reason", and
    "out_of_memory", a boolean.
  """
  import jax

  start = time.time()
  step.mesh_impl.compile(not jax_runtime.chosen()[1])
  program = step.mesh_impl.arrays.lower()
  if keep:
    pathlib.Path(f"{keep}.mlir").write_text(program.as_text(), encoding="utf-8")
  try:
    executable = program.compile()
  except jax.errors.JaxRuntimeError as error:
    return {"reason": _sentence(str(error)),
            "out_of_memory": bool(_MEMORY.search(str(error)))}
  text = executable.as_text()
  if keep:
    pathlib.Path(f"{keep}.txt").write_text(text, encoding="utf-8")
  memory, cost = executable.memory_analysis(), executable.cost_analysis()
  return {
      "operations": cost["flops"], "bytes_accessed": cost["bytes accessed"],
      "argument_bytes": memory.argument_size_in_bytes,
      "temporary_bytes": memory.temp_size_in_bytes,
      "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
      "code_bytes": memory.generated_code_size_in_bytes,
      **modules.summarized(text), "compiling_seconds": time.time() - start}


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


class Worker(contextlib.AbstractContextManager):
  """A process of its own, with as many devices of the host as it needs.

  JAX counts the devices of the host just once, and a fault of the compiler would end
  the command.
  """

  def __init__(self, cores: int, modules_to_import: Sequence[str] = ()) -> None:
    self._context = multiprocessing.get_context("spawn")
    self._begin = cores, modules_to_import
    self._process: Any = None
    self._pipe: Any = None

  def call(self, function: Callable[..., Any], *args: Any,
           waiting: Callable[[], Any] = lambda: None) -> Any:
    """What a function returns in this process; None if it ends the process.

    Args:
      function: a function of a module.
      *args: its arguments, which can be pickled, as its result.
      waiting: a function that is called each second.
    """
    if self._process is None:
      self._pipe, other_end = self._context.Pipe()
      self._process = self._context.Process(
          target=_serve, args=(other_end, *self._begin), daemon=True)
      self._process.start()
      other_end.close()
    self._pipe.send((function, args))
    while not self._pipe.poll(1):
      waiting()
    try:
      result, error = self._pipe.recv()
    except EOFError:
      self._process = None
      return None
    if error is not None:
      raise error
    return result

  def __exit__(self, *error: object) -> None:
    """Ends the process, whatever it does."""
    if self._process is not None:
      self._process.kill()
      self._process.join()


def _serve(pipe, cores, modules_to_import):
  """Answers with (result, error) of each (function, arguments)."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The command ends this process.
  flags = os.environ.get("XLA_FLAGS", "").split()  # Of those twice, the last counts.
  devices = f"--xla_force_host_platform_device_count={cores}"
  os.environ.update({**_ALONE, "XLA_FLAGS": " ".join([*flags, devices])})
  jax_runtime.keep_constants_small()
  tf.logging.set_verbosity(tf.logging.ERROR)
  gin_names.import_modules(modules_to_import)
  while True:
    function, args = pipe.recv()
    try:
      pipe.send((function(*args), None))
    except Exception as error:
      pipe.send((None, error))
