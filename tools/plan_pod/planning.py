"""Plans one model on one topology: its step, compiled, and what that says."""

from collections.abc import Sequence
import time
from typing import Any
from typing import NamedTuple

import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.runtime import devices
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


class Options(NamedTuple):
  """How to plan.

  Attributes:
    mode: "train", "eval" or "infer".
    compiler: one of `compiling.COMPILERS`; None for `compiling.choose`.
    layers: two values of `num_layers`, whose figures are extended to the model's own
      in a straight line; or none.
    vocabulary_size: the number of tokens of the vocabulary.
    hbm_gib: the memory of a chip; None for what is published.
    prefixes: more folders of gin files.
    keep: as for `compiling.compiled`.
  """
  mode: str = "train"
  compiler: str | None = None
  layers: Sequence[int] = ()
  vocabulary_size: int = 32128
  hbm_gib: float | None = None
  prefixes: Sequence[str] = ()
  keep: str | None = None


def plan(variant: Variant, topology: pods.Topology, options: Options
         ) -> dict[str, Any]:
  """Plans one model on one topology, in a process that has devices for it.

  Returns:
    a dict, ready for JSON. "status" is "ok" and "per_core" has the compiler's figures.
    Or it is "invalid", for a layout that does not fit, with "reason" and
    "mesh_shapes_that_fit"; or "refused", with the compiler's "reason".
  """
  start = time.time()
  if options.layers:
    made = _extended(variant, topology, options)
  else:
    made = _compiled(variant, topology, options)
  result = described(variant, topology, options) | made
  if result["status"] != "ok":
    return result
  core = result["per_core"]
  core["total_bytes"] = sum(core[f"{name}_bytes"] for name in (
      "argument", "temporary", "output", "code"))
  result["fits"] = _fits(core, result)
  if result["compiler"] == compiling.TPU:
    seconds, most_seconds = (
        (core[f"{most}cycles"] + result["microbatches"] * core[f"{most}loop_cycles"]) /
        (1e6 * topology.chip.megahertz) for most in ("", "most_"))
    tokens = result["batch_size"] * max(result["sequence_length"].values())
    result.update(seconds=seconds, most_seconds=most_seconds,
                  steps_per_second=1 / seconds, tokens_per_second=tokens / seconds)
  return {**result, "planning_seconds": time.time() - start}


def described(variant: Variant, topology: pods.Topology, options: Options
              ) -> dict[str, Any]:
  """Returns what is known of a plan before its step is built."""
  chip = topology.chip
  result = {
      "name": variant.name, "gin_files": variant.files, "gin_params": variant.params,
      "topology": topology.name, "chip": topology.generation, "cores": topology.cores,
      "hbm_bytes": (options.hbm_gib or chip.hbm_gib) * 2**30 // chip.cores,
      "mode": options.mode, "compiler": compiling.choose(options.compiler, topology)}
  if options.layers:
    result["compiled_layers"] = [*options.layers]
  if variant.paper:
    row = tables.TABLE_4[variant.paper]
    result["paper"] = {
        "row": row.name, "ratio": row.ratio, "tflops": row.tflops,
        "steps_per_second": row.steps_per_second,
        "parameters_millions": row.parameters_millions}
  return result


def _extended(variant, topology, options):
  """Compiles with two numbers of blocks, and extends the figures to all blocks."""
  variant.parse(_bindings(topology), options.prefixes)
  try:
    layers = gin.query_parameter("%num_layers")
  except ValueError:
    raise checks.Error(
        "--layers extends figures to `num_layers`, which these gin files do not bind; "
        "leave out --layers, or bind it.") from None
  few, more = options.layers
  plans = []
  for number in (few, more):
    plans.append(_compiled(variant, topology, options, f"num_layers = {number}"))
    if plans[-1]["status"] != "ok":
      return plans[-1]
  extended = _line(plans[0], plans[1], (layers - few) / (more - few))
  cores, core = [made["per_core"] for made in plans], extended["per_core"]
  core["compiling_seconds"] = sum(made["compiling_seconds"] for made in cores)
  if layers > few:  # Temporary memory grows in steps, so the line may fall.
    core["temporary_bytes"] = max(
        core["temporary_bytes"], *(made["temporary_bytes"] for made in cores))
  return extended | {"layers": layers}


def _line(first, second, times):
  """Returns the first figures, and `times` their differences to the second ones."""
  if isinstance(second, dict):
    return {key: _line(first.get(key, value), value, times)
            for key, value in second.items()}
  if isinstance(second, list) and len(first) == len(second):
    return [_line(a, b, times) for a, b in zip(first, second)]
  if first == second or not checks.is_number(second):
    return second
  value = first + times * (second - first)
  return round(value) if isinstance(second, int) else value


def _bindings(topology):
  return [f"utils.tpu_mesh_shape.tpu_topology = {topology.mesh_name!r}"]


def _compiled(variant, topology, options, *params):
  """Returns the compiler's figures of one program, and those of its variables."""
  variant.parse([*_bindings(topology), *params], options.prefixes)
  if topology.chip.is_gpu:  # As in T5's command without --tpu.
    gin_files.bind({"utils.get_variable_dtype.activation_dtype":
                    mixed_precision.products()})
  result = {}
  compiler = compiling.choose(options.compiler, topology)
  with tf.Graph().as_default():
    try:
      run = lowering.read_run(topology, options.vocabulary_size)
      result = {
          "model_type": run.model_type, "mesh_shape": devices.flat(run.mesh_shape),
          "batch_size": run.batch_size, "sequence_length": run.sequence_length,
          "packed": bool(run.packed)}
      step = lowering.lower(run, options.mode, compiling.devices(topology, compiler))
    except layouts.LayoutError as error:
      return {**result, "status": "invalid", "reason": str(error),
              "mesh_shapes_that_fit": error.proposals}
    variables = step.graph.all_variables
    core = _bytes(variables, run)
    figures = compiling.compiled(step, options.keep)
  if "reason" in figures:
    reason = figures["reason"] + (
        _largest(variables, run) if figures["out_of_memory"] else "")
    return {**result, "status": "refused", "reason": reason, "per_core": core}
  return {**result, "status": "ok", "per_core": core | figures,
          "parameters": sum(v.size for v in step.graph.trainable_variables),
          "microbatches": step.microbatches, "replicated": [*dict.fromkeys(
              layouts.replicated(variables, run.mesh_shape, run.layout,
                                 _LEAST_REPLICATED_BYTES))]}


def _bytes(variables, run):
  """Returns the bytes of a core's parts of all variables.

  They are parameters (trainable variables), the optimizer's slots, and constants.
  """
  sizes = {"parameter_bytes": 0, "optimizer_bytes": 0, "constant_bytes": 0}
  for variable in variables:
    role = ("parameter" if variable.trainable else
            "optimizer" if optimizer_slots.is_slot(variable.name) else "constant")
    sizes[f"{role}_bytes"] += layouts.slice_bytes(variable, run.mesh_shape, run.layout)
  return sizes


def _fits(core, plan):
  """Returns whether a core's memory is large enough: "yes", "no" or "perhaps".

  The compiler of the host keeps other results than that of a TPU or a GPU, so if it
  needs too much, a "no" is certain only if the arguments alone are too large.
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
