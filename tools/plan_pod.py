"""Plans a training run on a TPU pod, without a TPU.

  python tools/plan_pod.py --gin_file=models/table4/r+v.gin --topology=v3-32

It takes the trainer's gin files and bindings, lowers the whole training step
(forward, backward, optimizer) for one core of the topology, and reports what a
core keeps, computes and sends, and how long a step takes at published rates.

  compare:   --gin_file=models/bi_v1.gin --attention=V,R,R+V --topology=2x2
             --compare=models/table4/r.gin,models/table4/d.gin
  sweep:     --topology=v3-8,v3-32,v3-128 --png=sweep.png
  the paper: --table4
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import os
import sys
import time
from typing import Any

from synthesizer_mtf import gin_files
from synthesizer_mtf.command import messages
from synthesizer_mtf.runs import machine
from synthesizer_mtf.runs import tabular
from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.pod_planning import counting
from synthesizer_mtf.tools.pod_planning import layouts
from synthesizer_mtf.tools.pod_planning import lowering
from synthesizer_mtf.tools.pod_planning import plot
from synthesizer_mtf.tools.pod_planning import pods
from synthesizer_mtf.tools.pod_planning import report
from synthesizer_mtf.tools.pod_planning import roofline
import tensorflow.compat.v1 as tf
import tqdm

_STAGES = 3  # building, lowering, counting
_LEAST_REPLICATED_BYTES = 2**20

# What the commands in gin/models/table4 bind.
_TABLE_4_PARAMS = [
    "utils.run.sequence_length = {'inputs': 512, 'targets': 114}",
    "utils.run.batch_size = ('tokens_per_batch', 65536)",
]


class Variant:
  """A model to plan: its name, gin files and bindings, and row of the paper."""

  def __init__(self, name: str, files: Iterable[str], params: Iterable[str],
               paper: str | None = None) -> None:
    self.name, self.files, self.params = name, list(files), list(params)
    self.paper = paper


def plan(variant: Variant, topology: pods.Topology, chip: pods.Chip,
         vocabulary_size: int = 32128, prefixes: Sequence[str] = (),
         progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
  """Plans one model on one topology.

  Args:
    variant: a `Variant`.
    topology: a `pods.Topology`.
    chip: a `pods.Chip` with the rates to use.
    vocabulary_size: tokens of the vocabulary.
    prefixes: more folders of gin files.
    progress: called with the name of each stage when it begins.

  Returns:
    a dict, ready for JSON: see `_describe` and `_measure`. A layout that does
    not fit gives "status" "invalid", "reason" and "mesh_shapes_that_fit".
  """
  start = time.time()
  result = {"name": variant.name, "gin_files": variant.files,
            "gin_params": variant.params, "topology": topology.name,
            "chip": topology.generation, "cores": topology.cores,
            "rates": chip._asdict()}
  gin_files.parse(variant.files, variant.params + [
      f"utils.tpu_mesh_shape.tpu_topology = {topology.name!r}"], prefixes)
  run, batch_size = lowering.read_run(topology)
  result.update(_describe(run))
  with tf.Graph().as_default():
    try:
      step = lowering.lower(
          run, topology, batch_size, vocabulary_size, progress)
    except layouts.LayoutError as error:
      return {**result, "status": "invalid", "reason": str(error),
              "mesh_shapes_that_fit": error.proposals}
    progress("counting")
    result.update(_measure(step, chip))
  result["tokens_per_second"] = (
      run.batch_size * max(run.sequence_length.values()) *
      result["steps_per_second"])
  if variant.paper:
    row = attentions.TABLE_4[variant.paper]
    result["paper"] = {
        "row": row.name, "ratio": row.ratio, "tflops": row.tflops,
        "steps_per_second": row.steps_per_second,
        "parameters_millions": row.parameters_millions}
  return {**result, "status": "ok", "planning_seconds": time.time() - start}


def _describe(run):
  """The run, as gin and the topology give it."""
  return {"model_type": run.model_type,
          "mesh_shape": layouts.flat(run.mesh_shape),
          "batch_size": run.batch_size,
          "sequence_length": run.sequence_length, "packed": bool(run.packed)}


def _measure(step, chip):
  """What a core keeps, does and sends, and the time that it takes."""
  counts = counting.count(
      step.fetches, step.mesh_impl.collectives, step.microbatches)
  sizes = counting.variable_bytes(step.graph, step.mesh_impl)
  seconds = roofline.estimate(counts, chip)
  total = sum(sizes.values()) + counts.activation_bytes
  memory = chip.hbm_gib * 2**30 // pods.CORES_PER_CHIP
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
          "total_bytes": total,
          "multiply_adds": counts.multiply_adds,
          "hbm_traffic_bytes": counts.hbm_bytes,
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
      "seconds": seconds,
      "steps_per_second": 1 / seconds["step"],
      "tflops": 2e-12 * counts.multiply_adds / seconds["step"],
  }


def _fits(variables, total, memory):
  """Whether a core's memory is large enough, as far as can be said.

  XLA computes cheap results again where memory is short, so the estimate of
  what is kept is an upper one, and only too many variables are a plain no.
  """
  if total <= memory:
    return "yes"
  return "no" if variables > memory else "perhaps"


def table_4() -> list[Variant]:
  """The models of the paper's Table 4 that have a gin file."""
  found = []
  for row in attentions.TABLE_4:
    name = f"models/table4/{row.lower()}.gin"
    if os.path.exists(os.path.join(gin_files.folder(), name)):
      found.append(Variant(row, [name], [], paper=row))
  return found


def _variants(args):
  """What --attention, --compare and --table4 ask for."""
  if args.table4:
    found = table_4()
  elif args.compare:
    found = [Variant(os.path.splitext(os.path.basename(f))[0], [f], [])
             for f in args.compare]
  else:
    name = (os.path.splitext(os.path.basename(args.gin_file[-1]))[0]
            if args.gin_file else "defaults")
    found = [Variant(name, [], [])]
  chosen = [
      [f"synthesizer_stack.attention = '{a}'"] for a in args.attention]
  common = _TABLE_4_PARAMS if args.table4 else []
  return [
      Variant(v.name if not a else " ".join(
          ([v.name] if len(found) > 1 else []) + [name]),
              args.gin_file + v.files, common + a + args.gin_param, v.paper)
      for v in found for a, name in zip(
          chosen or [[]], args.attention or [""])]


def _chip(topology, args):
  """The rates of the topology's chips, with those that flags replace."""
  given = {name: getattr(args, name) for name in pods.Chip._fields
           if getattr(args, name) is not None}
  return pods.CHIPS[topology.generation]._replace(**given)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, plans, prints the tables and writes the files."""
  args = _parser().parse_args(argv)
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("plan_pod"):
    plans = _plan_all(args)
  print(report.table(plans))
  paper = report.paper_table(plans)
  if paper:
    print(f"\n{paper}")
  if args.json:
    tabular.write_json(plans, args.json)
  if args.png:
    plot.plot(plans, args.png)
  if all(p["status"] != "ok" for p in plans):
    sys.exit(f"plan_pod: {plans[0]['reason']}")


def _plan_all(args):
  """Plans every variant on every topology."""
  topologies = [pods.parse_topology(name, args.chip)
                for name in args.topology]
  variants = _variants(args)
  arguments.check_folders(args.json, args.png)
  versions = machine.versions()
  plans = []
  total = len(topologies) * len(variants) * _STAGES
  with tqdm.tqdm(total=total, desc="plan", unit="stage") as bar:
    for topology in topologies:
      for variant in variants:
        def progress(what, of=f"{variant.name} {topology.name}"):
          bar.set_postfix_str(f"{of}: {what}")
          bar.update(what != "building")
        before = bar.n
        plans.append({**plan(
            variant, topology, _chip(topology, args), args.vocabulary_size,
            args.gin_location_prefix, progress), "versions": versions})
        bar.update(before + _STAGES - bar.n)
  return plans


def _parser():
  parser = argparse.ArgumentParser(
      prog="plan_pod", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--gin_file", action="append", default=[], metavar="FILE",
                      help="as for synthesizer_mesh_transformer; repeat it")
  parser.add_argument("--gin_param", action="append", default=[],
                      metavar="BINDING", help="likewise; comes last")
  parser.add_argument("--gin_location_prefix", type=_split, default=[],
                      metavar="DIR,...", help="more folders of gin files")
  parser.add_argument(
      "--topology", type=_split, default=["2x2"], metavar="NAME,...",
      help="v2-8 ... v2-512, v3-8 ... v3-2048, or chips such as 4x4; several "
      "make a sweep (default: 2x2)")
  parser.add_argument("--attention", type=_split, default=[], metavar="A,B,...",
                      help="compare these, such as V,R,R+V")
  parser.add_argument("--compare", type=_split, default=[], metavar="FILE,...",
                      help="compare these gin files, each after --gin_file")
  parser.add_argument("--table4", action="store_true", help=(
      "the models of the paper's Table 4, beside its figures"))
  parser.add_argument("--vocabulary_size", type=int, default=32128, metavar="N",
                      help="tokens (default: %(default)s, T5's; no file "
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


def _split(text):
  return [part for part in text.split(",") if part]


if __name__ == "__main__":
  main()
