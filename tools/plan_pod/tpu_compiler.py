"""Compiles programs with the TPU's own compiler, on a machine without a TPU.

This script runs alone, in an environment with JAX and libtpu, because the TensorFlow of
this package needs other versions of packages. The command

  python tpu_compiler.py v3:4x4 32 A.hlo

compiles a file, a serialized HloModuleProto, for all cores of the topology. Without a
file it only looks for the topology. It prints a line of JSON with the compiler's
figures. If the compiler does not know the topology or does not compile the file, the
line has "refused" and the compiler's message. If this script does not work with the
versions of JAX and libtpu, whose interfaces are private, the line has "unfit" and the
error.
"""

import json
import os
import sys
import time

# libtpu must not ask Google for a TPU, and several processes may compile.
os.environ.update(
    JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0", TPU_ACCELERATOR_TYPE="v3-8", ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_LOG_DIR="disabled")

try:
  import jax
  from jax._src import compiler
  from jax._src.interpreters import mlir
  from jax._src.lib import _jax
  from jax._src.lib.mlir import ir
  from jax._src.lib.mlir.dialects import hlo as stablehlo
  from jax.experimental import topologies
  import libtpu
  import numpy as np
except ImportError as error:
  print(json.dumps({"unfit": str(error)}))
  sys.exit(1)


def main(topology: str, cores: str, path: str | None = None) -> None:
  """Compiles a file and prints the compiler's figures.

  Args:
    topology: libtpu's name of a topology, such as "v3:4x4".
    cores: how many cores of the topology run the program.
    path: the path of a serialized HloModuleProto; None to only look for the topology.
  """
  start = time.time()
  print(json.dumps({
      **_compiled(topology, int(cores), path), "seconds": time.time() - start,
      "versions": {"jax": jax.__version__, "libtpu": libtpu.__version__}}))


def _compiled(topology, cores, path):
  """Returns the compiler's figures, or the reason why it refuses."""
  try:
    devices = list(topologies.get_topology_desc(
        platform="tpu", topology_name=topology).devices)
  except Exception as error:  # JAX's exception for unknown topologies.
    return {"refused": f"libtpu knows no topology {topology}: {error}"}
  if path is None:
    return {}
  # Mesh TensorFlow numbers the cores in this order.
  devices.sort(key=lambda device: (*device.coords, device.core_on_chip))
  with open(path, "rb") as file:
    program = file.read()
  try:
    module = _module(program)
  except Exception as error:  # Private interfaces can raise any exception.
    return {"unfit": f"{type(error).__name__}: {error}"}
  try:
    return _described(_compile(module, devices[:cores]), path)
  except jax.errors.JaxRuntimeError as error:
    return {"refused": str(error)}


def _module(program):
  """Returns the program as StableHLO, with collectives in place of custom calls."""
  context = mlir.make_ir_context()
  with context, ir.Location.unknown():
    module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program))
    calls = []

    def find(operation):
      if operation.name == "stablehlo.custom_call":
        target = operation.attributes["call_target_name"]
        package, _, kind = ir.StringAttr(target).value.partition(".")
        if package == "synthesizer_mtf":
          calls.append((kind, operation))
      return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    for kind, operation in calls:
      _replace(kind, operation)
  return module


def _replace(kind, operation):
  """Replaces a custom call with a collective."""
  config = json.loads(ir.StringAttr(operation.attributes["backend_config"]).value)
  result, operand = operation.results[0].type, operation.operands[0]
  with ir.InsertionPoint(operation), operation.location:
    if kind == "receive":
      new = stablehlo.CollectivePermuteOp(operand, _matrix(config["pairs"]))
    elif kind == "alltoall":
      new = stablehlo.AllToAllOp(
          [operand], config["split"], config["concat"], config["count"],
          _matrix(config["groups"]), results=[result])
    else:
      new = stablehlo.AllReduceOp([result], [operand], _matrix(config["groups"]))
      scalar = ir.RankedTensorType.get([], ir.RankedTensorType(result).element_type)
      block = new.regions[0].blocks.append(scalar, scalar)
      with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
  operation.results[0].replace_all_uses_with(new.results[0])
  operation.erase()


def _matrix(rows):
  return ir.DenseIntElementsAttr.get(np.asarray(rows, np.int64))


def _compile(module, devices):
  """Returns the executable of a program that each of the devices runs."""
  options = compiler.get_compile_options(
      num_replicas=len(devices), num_partitions=1,
      device_assignment=np.array([[device.id] for device in devices]))
  return devices[0].client.compile(
      module, executable_devices=_jax.DeviceList(tuple(devices)),
      compile_options=options)


def _described(executable, path):
  """Returns the compiler's figures; writes the optimized program to a file."""
  cost, memory = executable.cost_analysis(), executable.get_compiled_memory_stats()
  with open(f"{path}.txt", "w", encoding="utf-8") as file:
    file.write(executable.hlo_modules()[0].to_string())
  return {
      "operations": cost["flops"], "bytes_accessed": cost["bytes accessed"],
      "argument_bytes": memory.argument_size_in_bytes,
      "temporary_bytes": memory.temp_size_in_bytes,
      "output_bytes": (memory.output_size_in_bytes - memory.alias_size_in_bytes),
      "code_bytes": memory.generated_code_size_in_bytes}


if __name__ == "__main__":
  main(*sys.argv[1:])
