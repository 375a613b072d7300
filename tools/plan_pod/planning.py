"""Plans one model on one topology: its step, compiled, and what that says."""

from collections.abc import Sequence
import time
from typing import Any
from typing import NamedTuple

from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
import tensorflow.compat.v1 as tf

_LEAST_REPLICATED_BYTES = 2**20  # 1 MiB; the table has whole MiB.


class Variant(NamedTuple):
  """A model to plan: its name, gin files, bindings, and its row in the paper."""
  name: str
  files: Sequence[str]
  params: Sequence[str]
  paper: str | None = None
  attention: str | None = None

  def parse(self, params: Sequence[str], prefixes: Sequence[str] = ()) -> None:
    """Makes gin parse the files, the bindings and further bindings."""
    files, params = [*self.files], [*self.params, *params]
    row = attentions.ROWS.get(self.attention)
    if row and row.family in ("stock", "authors"):
      gin_files.parse(files, params, prefixes)
      lengths = lowering.lengths()
      params = row.bindings(lengths.get("inputs", 0), lengths["targets"]) + params
    elif self.attention:
      params = [f"synthesizer_stack.attention = {self.attention!r}", *params]
    gin_files.parse(files, params, prefixes)


def plan(variant: Variant, topology: pods.Topology, chip: pods.Chip | None = None,
         vocabulary_size: int = 32128, prefixes: Sequence[str] = (),
         mode: str = "train", compiler: str | None = None, keep: str | None = None
         ) -> dict[str, Any]:
  """Plans one model on one topology, in a process that has devices for it.

  Args:
    variant: a `Variant`.
    topology: a `pods.Topology`.
    chip: a `pods.Chip`; None for that of the topology.
    vocabulary_size: the number of tokens of the vocabulary.
    prefixes: more folders of gin files.
    mode: "train", "eval" or "infer".
    compiler: one of `compiling.COMPILERS`; None for `compiling.choose`.
    keep: as for `compiling.compiled`.

  Returns:
    a dict, ready for JSON. "status" is "ok" and "per_core" has the compiler's figures.
    Or it is "invalid", for a layout that does not fit, with "reason" and
    "mesh_shapes_that_fit"; or "refused", with the compiler's "reason".
  """
  start, compiler = time.time(), compiling.choose(compiler)
  chip = chip or pods.CHIPS[topology.generation]
  variant.parse([
      f"utils.tpu_mesh_shape.tpu_topology = {topology.mesh_name!r}"], prefixes)
  run = lowering.read_run(topology, vocabulary_size)
  result = described(variant, topology, mode, compiler) | {
      "model_type": run.model_type, "mesh_shape": layouts.flat(run.mesh_shape),
      "batch_size": run.batch_size, "sequence_length": run.sequence_length,
      "packed": bool(run.packed), "hbm_bytes": chip.hbm_gib * 2**30 // chip.cores}
  with tf.Graph().as_default():
    try:
      step = lowering.lower(run, mode, compiling.devices(topology, compiler))
    except layouts.LayoutError as error:
      return {**result, "status": "invalid", "reason": str(error),
              "mesh_shapes_that_fit": error.proposals}
    variables = step.graph.all_variables
    core = _bytes(variables, run)
    found = compiling.compiled(step, keep)
  if "reason" in found:
    reason = found["reason"] + (_largest(variables, run) if found["out_of_memory"]
                                else "")
    return {**result, "status": "refused", "reason": reason, "per_core": core}
  core |= found
  core["total_bytes"] = sum(core[f"{name}_bytes"] for name in (
      "argument", "temporary", "output", "code"))
  result.update(
      status="ok", per_core=core, fits=_fits(core, result),
      parameters=sum(v.size for v in step.graph.trainable_variables),
      microbatches=step.microbatches, replicated=layouts.replicated(
          variables, run.mesh_shape, run.layout, _LEAST_REPLICATED_BYTES))
  if compiler == compiling.TPU:
    cycles = core["cycles"] + step.microbatches * core["loop_cycles"]
    seconds = cycles / chip.clock
    result.update(seconds=seconds, steps_per_second=1 / seconds, tokens_per_second=(
        run.batch_size * max(run.sequence_length.values()) / seconds))
  return {**result, "planning_seconds": time.time() - start}


def described(variant: Variant, topology: pods.Topology, mode: str, compiler: str
              ) -> dict[str, Any]:
  """Returns what is known of a plan before its step is built."""
  result = {
      "name": variant.name, "gin_files": variant.files, "gin_params": variant.params,
      "topology": topology.name, "chip": topology.generation, "cores": topology.cores,
      "mode": mode, "compiler": compiler}
  if variant.paper:
    row = tables.TABLE_4[variant.paper]
    result["paper"] = {
        "row": row.name, "ratio": row.ratio, "tflops": row.tflops,
        "steps_per_second": row.steps_per_second,
        "parameters_millions": row.parameters_millions}
  return result


def _bytes(variables, run):
  """Returns the bytes of a core's parts of all variables.

  They are parameters (trainable variables), the optimizer's slots, and constants.
  """
  found = {"parameter_bytes": 0, "optimizer_bytes": 0, "constant_bytes": 0}
  for variable in variables:
    role = ("parameter" if variable.trainable else
            "optimizer" if optimizer_slots.is_slot(variable.name) else "constant")
    found[f"{role}_bytes"] += layouts.slice_bytes(variable, run.mesh_shape, run.layout)
  return found


def _fits(core, plan):
  """Returns whether a core's memory is large enough: "yes", "no" or "perhaps".

  The compiler of the host keeps other results than that of a TPU, so if it needs too
  much, a "no" is certain only if the arguments alone are too large.
  """
  if core["total_bytes"] <= plan["hbm_bytes"]:
    return "yes"
  is_sure = (plan["compiler"] == compiling.TPU or
             core["argument_bytes"] > plan["hbm_bytes"])
  return "no" if is_sure else "perhaps"


def _largest(variables, run):
  """Returns a message on the largest variable of a core, and what needs less."""
  size, variable = max(
      ((layouts.slice_bytes(v, run.mesh_shape, run.layout), v) for v in variables),
      key=lambda sized: sized[0])
  return (f"; the largest variable is {variable.name} "
          f"{layouts.describe(variable.shape)}, {size / 2**20:,.0f} MiB; a larger "
          "topology, a smaller batch, or fewer tokens in "
          "`serialize_num_microbatches.tokens_per_microbatch_per_replica` need less")
