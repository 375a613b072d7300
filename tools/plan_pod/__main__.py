"""Plans a training run on a TPU pod, without a TPU.

  python -m synthesizer_mtf.tools.plan_pod \\
    --gin_file=models/table4/r+v.gin --topology=v3-32

It takes the trainer's gin files and bindings, and lowers the whole training step
(forward, backward, optimizer) for one core of the topology. It reports what a core
keeps, computes and sends, and the least time of a step at published rates. With
--compile the memory and the time are those of the TPU's own compiler.

  compare:   --gin_file=models/bi_v1.gin --attention=SelfAttention,V,R --topology=2x2
             --compare=models/table4/r.gin,models/table4/d.gin
  compile:   --compile=.venv-tpu hands the step to the TPU's own compiler
  sweep:     --topology=v3-8,v3-32,v3-128 --png=sweep.png
  the paper: --table4
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import gc
import itertools
import os
import pathlib
import re
import sys
import time
from typing import Any

from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import recipes as recipes_lib
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.plan_pod import compiler_report
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import counting
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import plot
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.tools.plan_pod import programs
from synthesizer_mtf.tools.plan_pod import report
from synthesizer_mtf.tools.plan_pod import roofline
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf
import tqdm

_STAGES = 3  # building, lowering, counting
_COMPILER_STAGES = 2  # lowering for the compiler, compiling
_LEAST_REPLICATED_BYTES = 2**20  # 1 MiB; the table has whole MiB.

# The bindings of the commands in gin/models/table4.
_TABLE_4_PARAMS = [
    "utils.run.sequence_length = {'inputs': 512, 'targets': 114}",
    "utils.run.batch_size = ('tokens_per_batch', 65536)",
]


class Variant:
  """A model to plan: its name, gin files, bindings, and its row in the paper."""

  def __init__(self, name: str, files: Iterable[str], params: Iterable[str],
               paper: str | None = None, attention: str | None = None) -> None:
    self.name, self.files, self.params = name, list(files), list(params)
    self.paper, self.attention = paper, attention

  def parse(self, params: list[str], prefixes: Sequence[str] = ()) -> None:
    """Makes gin parse the files, the bindings and further bindings."""
    params = self.params + params
    row = attentions.ROWS.get(self.attention)
    if row and row.family in ("stock", "authors"):
      gin_files.parse(self.files, params, prefixes)
      lengths = lowering.lengths()
      params = row.bindings(lengths.get("inputs", 0), lengths["targets"]) + params
    elif self.attention:
      params = [f"synthesizer_stack.attention = {self.attention!r}", *params]
    gin_files.parse(self.files, params, prefixes)


def plan(variant: Variant, topology: pods.Topology, chip: pods.Chip,
         vocabulary_size: int = 32128, prefixes: Sequence[str] = (),
         progress: Callable[[str], None] = lambda what: None, mode: str = "train",
         compiler: compiling.Compiler | None = None,
         keep: str | None = None) -> dict[str, Any]:
  """Plans one model on one topology.

  Args:
    variant: a `Variant`.
    topology: a `pods.Topology`.
    chip: a `pods.Chip` with the rates to use.
    vocabulary_size: the number of tokens of the vocabulary.
    prefixes: more folders of gin files.
    progress: a function that is called with the name of each stage when it begins.
    mode: "train", "eval" or "infer".
    compiler: a compiler that also compiles the step; see `_compiled`.
    keep: a path without ending, where the program and the compiler's text of the
      program are kept.

  Returns:
    a dict, ready for JSON: see `_measure`. A layout that does not fit gives "status"
    "invalid", "reason" and "mesh_shapes_that_fit".
  """
  start = time.time()
  result: dict[str, Any] = {
      "name": variant.name, "gin_files": variant.files,
            "gin_params": variant.params, "topology": topology.name,
            "chip": topology.generation, "cores": topology.cores,
            "rates": {name: getattr(chip, name) for name in pods.RATES}, "mode": mode}
  variant.parse([
      f"utils.tpu_mesh_shape.tpu_topology = {topology.mesh_name!r}"], prefixes)
  run = lowering.read_run(topology, vocabulary_size)
  result.update(
      model_type=run.model_type, mesh_shape=layouts.flat(run.mesh_shape),
      batch_size=run.batch_size, sequence_length=run.sequence_length,
      packed=bool(run.packed))
  with tf.Graph().as_default():
    try:
      step = lowering.lower(run, mode, progress)
    except layouts.LayoutError as error:
      return {**result, "status": "invalid", "reason": str(error),
              "mesh_shapes_that_fit": error.proposals}
    progress("counting")
    result.update(_measure(step, chip))
  if compiler:
    result["compiler"] = _compiled(compiler, run, step, result, progress, keep)
    if result["compiler"]["status"] == "compiled":
      _take_compilers(result)
  step_seconds = result["seconds"]["step"]
  result["steps_per_second"] = 1 / step_seconds
  result["tflops"] = 2e-12 * result["per_core"]["multiply_adds"] / step_seconds
  result["tokens_per_second"] = (
      run.batch_size * max(run.sequence_length.values()) / step_seconds)
  if variant.paper:
    row = tables.TABLE_4[variant.paper]
    result["paper"] = {
        "row": row.name, "ratio": row.ratio, "tflops": row.tflops,
        "steps_per_second": row.steps_per_second,
        "parameters_millions": row.parameters_millions}
  return {**result, "status": "ok", "planning_seconds": time.time() - start}


def _measure(step, chip):
  """Returns what a core keeps, computes and sends, and the least time of this."""
  counts = counting.count(
      step.fetches, step.mesh_impl.collectives, step.microbatches)
  sizes = counting.variable_bytes(step.graph, step.mesh_impl)
  total = sum(sizes.values()) + counts.activation_bytes
  memory = chip.hbm_gib * 2**30 // chip.cores
  return {
      "parameters": sum(v.size for v in step.graph.trainable_variables),
      "microbatches": step.microbatches,
      "model_parallel_dimensions": [
          step.mesh_impl.shape[i].name
          for i in counting.model_axes(step.mesh_impl)],
      "per_core": {
          "parameter_bytes": sizes["parameters"],
          "optimizer_bytes": sizes["optimizer"],
          "constant_bytes": sizes["constants"],
          "activation_bytes": counts.activation_bytes,
          "largest_activation": counts.largest_activation,
          "total_bytes": total,
          "multiply_adds": counts.multiply_adds,
          "allreduce_bytes": counts.allreduce_bytes(),
      },
      "collectives": [
          {**c._asdict(), "bytes_per_core": size}
          for c, size in counts.collectives.items()],
      "largest_allreduces": counts.largest_allreduces(),
      "operations": counts.operations,
      "hbm_bytes": memory,
      "fits": _fits(sum(sizes.values()), total, memory),
      "replicated": counting.replicated_variables(
          step.graph, step.mesh_impl, _LEAST_REPLICATED_BYTES),
      "repeated_einsum_share": counting.repeated_share(step.lowering),
      "seconds": roofline.estimate(counts, chip),
  }


def _compiled(compiler, run, step, result, progress, keep):
  """Returns the compiler's figures for the step, which count a loop's body once."""
  progress("lowering for the compiler")
  with tf.Graph().as_default():
    whole = lowering.lower(run, result["mode"], loops_as_functions=True)
  program = programs.of_step(whole)
  progress("compiling")
  found = compiler.compile(program, run.topology, keep, lambda: progress("compiling"))
  if found["status"] == "refused":
    if found["out_of_memory"]:
      found["reason"] += _largest(step, result)
    return found
  clock = pods.CHIPS[run.topology.generation].clock
  cycles = found["cycles"] + step.microbatches * found["loop_cycles"]
  return {**found, "milliseconds": 1e3 * cycles / clock, "memory_bytes": sum(
      found[f"{name}_bytes"] for name in ("argument", "temporary", "output"))}


def _take_compilers(result):
  """Puts the compiler's memory and time in the place of the counted ones."""
  compiler, core, seconds = (result[key] for key in ("compiler", "per_core", "seconds"))
  core["activation_bytes"] = compiler["temporary_bytes"] + compiler["output_bytes"]
  core["total_bytes"] = compiler["memory_bytes"] + compiler["code_bytes"]
  result["fits"] = "yes" if core["total_bytes"] <= result["hbm_bytes"] else "no"
  seconds["compiled"] = 1e-3 * compiler["milliseconds"]
  seconds["step"] = seconds["compiled"] + seconds["communication"]


def _largest(step, result):
  """Returns a message on the largest variable and the largest result of a core."""
  size, variable = max(
      ((counting.slice_bytes(v, step.mesh_impl), v) for v in step.graph.all_variables),
      key=lambda found: found[0])
  name, most = result["per_core"]["largest_activation"]
  return (f"; the largest variable is {variable.name} "
          f"{layouts.describe(variable.shape)}, {size / 2**20:,.0f} MiB, and "
          f"the largest activation, by our own count, {name}, {most / 2**20:,.0f} MiB; "
          "a larger topology, a smaller batch, or fewer tokens in "
          "`serialize_num_microbatches.tokens_per_microbatch_per_replica` need less")


def _fits(variables, total, memory):
  """Returns whether a core's memory is large enough: "yes", "no" or "perhaps".

  XLA fuses more than we count, and recomputes cheap results if memory is short, so our
  count of activations is an upper bound. A "no" is certain only if the variables alone
  are too large.
  """
  if total <= memory:
    return "yes"
  return "no" if variables > memory else "perhaps"


def table_4() -> list[Variant]:
  """Returns the models of the paper's Table 4."""
  return [Variant(row, [f"models/table4/{row.lower()}.gin"], [], paper=row)
          for row in tables.TABLE_4]


def recipes() -> list[Variant]:
  """Returns the recipes for pods, each with its first command's files and bindings."""
  found = {name: recipes_lib.commands(f"recipes/pod/{name}.gin")
           for name in _stems("recipes/pod")}
  return [Variant(name, recipes_lib.values(commands[0], "gin_file"),
                  recipes_lib.values(commands[0], "gin_param"))
          for name, commands in found.items() if commands]  # Others are parts.


def _stems(folder):
  """Returns the names of the gin files in a folder, without their ending."""
  return sorted(p.stem for p in pathlib.Path(gin_files.folder(), folder).iterdir())


def _variants(args):
  """Returns the variants for --attention, --compare, --recipes and --table4."""
  if args.table4:
    found = table_4()
  elif args.recipes:
    found = recipes()
  elif args.compare:
    found = [Variant(pathlib.Path(f).stem, [f], []) for f in args.compare]
  else:
    found = [Variant(pathlib.Path(["defaults", *args.gin_file][-1]).stem, [], [])]
  common = _TABLE_4_PARAMS if args.table4 else []
  chosen = []  # (name, gin files, attention)
  for name in args.attention or [None]:
    chosen += every_attention() if name == "all" else [(name, [], name)]
  return [
      Variant(" ".join(([v.name] if len(found) > 1 or not name else []) +
                       [name] * bool(name)),
              args.gin_file + v.files + files, common + v.params + args.gin_param,
              v.paper, attention)
      for v in found for name, files, attention in chosen]


def every_attention() -> list[tuple[str, list[str], str | None]]:
  """Returns (name, gin files, binding) of stock and of attentions with a gin file."""
  return [(attentions.STOCK, [], attentions.STOCK)] + [
      (name, [f"attention/{name}.gin"], None) for name in _stems("attention")]


def _chip(topology, args):
  """Returns the topology's chip, with the rates that flags replace."""
  given = {name: getattr(args, name) for name in pods.RATES
           if getattr(args, name) is not None}
  return pods.CHIPS[topology.generation]._replace(**given)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, plans, prints the tables and writes the files."""
  args = _parser().parse_args(argv)
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("plan_pod"):
    plans, interrupted = _plan_all(args)
  print(report.table(plans))
  if args.compile:
    print(f"\n{compiler_report.table(plans)}")
  paper = report.paper_table(plans)
  if paper:
    print(f"\n{paper}")
  tabular.write_json(plans, args.json)
  if args.png:
    plot.plot(plans, args.png)
  if interrupted:
    print("plan_pod: interrupted; the finished plans are above.",
          file=sys.stderr)
    sys.exit(130)
  if all(p["status"] != "ok" for p in plans):
    sys.exit(f"plan_pod: {plans[0]['reason']}")
  refused = [p for p in plans if p.get("compiler", {}).get("status") == "refused"]
  if refused:
    sys.exit(f"plan_pod: the compiler refused {len(refused)} of {len(plans)} plans, "
             "for the reasons above.")


def _plan_all(args):
  """Plans all variants on all topologies; returns plans and whether interrupted."""
  gin_names.import_modules(args.module_import)
  topologies = [pods.parse_topology(name, args.chip)
                for name in args.topology]
  wanted = list(itertools.product(topologies, _variants(args), args.mode))
  arguments.check_folders(args.json, args.png)
  if args.hlo:
    os.makedirs(args.hlo, exist_ok=True)
  compiler = compiling.Compiler(args.compile) if args.compile else None
  if compiler:
    for topology in topologies:
      compiler.check_topology(topology)
  versions = machine.versions() | (compiler.versions if compiler else {})
  plans = []
  stages = _STAGES + _COMPILER_STAGES * bool(compiler)
  with tqdm.tqdm(total=len(wanted) * stages, desc="plan", unit="stage") as bar:
    try:
      for topology, variant, mode in wanted:
        name = f"{variant.name} {topology.name}" + f" {mode}" * (mode != "train")
        plans.append({**plan(
            variant, topology, _chip(topology, args), args.vocabulary_size,
            args.gin_location_prefix, _progress(bar, name), mode, compiler,
            args.hlo and os.path.join(args.hlo, re.sub(r"[^\w.+-]+", "_", name))),
                      "versions": versions})
        bar.update(len(plans) * stages - bar.n)
        gc.collect()  # The graphs of a step are large, and have reference cycles.
    except KeyboardInterrupt:
      return plans, True
  return plans, False


def _progress(bar, name):
  """Returns a function that shows which stage has begun, and that it still runs."""
  last = None

  def show(stage):
    nonlocal last
    if stage != last or sys.stderr.isatty():
      bar.update(stage not in ("building", last))
      bar.set_postfix_str(f"{name}: {stage}")
    last = stage

  return show


def _parser():
  parser = arguments.parser("plan_pod", __doc__)
  arguments.add_gin(parser, "as for synthesizer_mesh_transformer; repeat it",
                    "likewise; comes last")
  parser.add_argument("--gin_location_prefix", type=_split, default=[],
                      metavar="DIR,...", help="more folders of gin files")
  parser.add_argument(
      "--topology", type=_split, default=["2x2"], metavar="NAME,...",
      help="v2-8 ... v2-512, v3-8 ... v3-2048, or chips such as 4x4; several "
      "make a sweep (default: 2x2)")
  parser.add_argument("--attention", type=_split, default=[], metavar="A,B,...",
                      help="compare these, such as V,R,R+V; SelfAttention is stock's, "
                      "Synthesizer:random is the authors', and all stands for all with "
                      "a file in gin/attention")
  parser.add_argument("--compare", type=_split, default=[], metavar="FILE,...",
                      help="compare these gin files, each after --gin_file")
  parser.add_argument("--table4", action="store_true", help=(
      "plan the models of the paper's Table 4, and show its figures beside"))
  parser.add_argument("--recipes", action="store_true", help=(
      "plan the recipes for pods, each with the model that its file names"))
  parser.add_argument("--mode", type=_modes, default=["train"], metavar="MODE,...",
                      help="train, a training step; eval, the loss alone; infer, a "
                      "whole decoding (default: train)")
  parser.add_argument(
      "--compile", metavar="VENV", nargs="?", const=compiling.ENVIRONMENT, help=(
          "compile with libtpu as well; VENV is the virtual environment that has it "
          f"(without a value: {compiling.ENVIRONMENT})"))
  parser.add_argument("--hlo", metavar="DIR", help=(
      "with --compile: keep each program, and the compiler's result for it"))
  parser.add_argument("--vocabulary_size", type=int, default=32128, metavar="N",
                      help="the number of tokens (default: %(default)s, T5's; no file "
                      "is read)")
  _add_rates(parser)
  parser.add_argument("--json", metavar="FILE", help="write JSON lines")
  parser.add_argument("--png", metavar="FILE", help="draw the plans")
  return parser


def _add_rates(parser):
  chips = pods.CHIPS
  parser.add_argument("--chip", choices=sorted(chips), default="v3", help=(
      "the chips of a topology such as 2x2 (default: %(default)s)"))
  texts = {"tflops": "peak of a chip, 10^12 operations/s in bfloat16",
           "hbm_gbps": "memory of a chip, 10^9 bytes/s",
           "hbm_gib": "memory of a chip, GiB",
           "link_gbps": "one of a chip's four links, 10^9 bits/s"}
  for name, text in texts.items():
    default = ", ".join(f"{c} {getattr(r, name):g}" for c, r in chips.items())
    parser.add_argument(f"--{name}", type=float, metavar="X",
                        help=f"{text} (default: {default})")


def _modes(text):
  modes = _split(text)
  for mode in modes:
    if mode not in ("train", "eval", "infer"):
      raise argparse.ArgumentTypeError(
          f"{mode!r} is not a mode; use some of train, eval, infer")
  return modes


def _split(text):
  return [part for part in text.split(",") if part]


if __name__ == "__main__":
  main()
