"""Plans a training run on a TPU pod or on GPUs, without them.

  python -m synthesizer_mtf.tools.plan_pod \\
    --gin_file=models/table4/r+v.gin --topology=v3-32

It takes the trainer's gin files and bindings, and compiles the whole training step
(forward, backward, optimizer) for all cores of the topology, as JAX runs it. It reports
what a core keeps, computes and sends. Where libtpu is installed, the TPU's own compiler
says it, and also the time. Elsewhere, and for GPUs, XLA compiles for as many devices of
the host.

  compare:   --gin_file=models/bi_v1.gin --attention=SelfAttention,V,R --topology=2x2
             --compare=models/table4/r.gin,models/table4/d.gin
  sweep:     --topology=v3-8,v3-32,v3-128 --png=sweep.png
  GPUs:      --topology=h100:8
  the paper: --table4
  faster:    --layers=1,2
"""

import argparse
import itertools
import os
import pathlib
import re
import sys

from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import recipes as recipes_lib
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import planning
from synthesizer_mtf.tools.plan_pod import plot
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.tools.plan_pod import report
import tqdm


def table_4() -> list[planning.Variant]:
  """Returns the models of the paper's Table 4, with the bindings of their commands."""
  params = ["utils.run.sequence_length = {'inputs': 512, 'targets': 114}",
            "utils.run.batch_size = ('tokens_per_batch', 65536)"]
  return [planning.Variant(row, [f"models/table4/{row.lower()}.gin"], params, row)
          for row in tables.TABLE_4]


def recipes() -> list[planning.Variant]:
  """Returns the recipes for pods, each with its first command's files and bindings."""
  commands = {name: recipes_lib.commands(f"recipes/pod/{name}.gin")
              for name in _stems("recipes/pod")}
  return [planning.Variant(name, recipes_lib.values(first[0], "gin_file"),
                           recipes_lib.values(first[0], "gin_param"))
          for name, first in commands.items() if first]  # Others are parts.


def every_attention() -> list[tuple[str, list[str], str | None]]:
  """Returns (name, gin files, binding) of stock and of attentions with a gin file."""
  return [(attentions.STOCK, [], attentions.STOCK)] + [
      (name, [f"attention/{name}.gin"], None) for name in _stems("attention")]


def _stems(folder):
  """Returns the names of the gin files in a folder, without their ending."""
  return sorted(p.stem for p in pathlib.Path(gin_files.folder(), folder).iterdir())


def _variants(args):
  """Returns the variants for --attention, --compare, --recipes and --table4."""
  if args.table4:
    models = table_4()
  elif args.recipes:
    models = recipes()
  else:
    name = pathlib.Path(["defaults", *args.gin_file][-1]).stem
    models = [planning.Variant(pathlib.Path(f).stem, [f], [])
              for f in args.compare] or [planning.Variant(name, [], [])]
  chosen = []  # (name, gin files, attention)
  for name in args.attention or [None]:
    chosen += every_attention() if name == "all" else [(name, [], name)]
  return [
      planning.Variant(
          " ".join([v.name] * (len(models) > 1 or not name) + [name] * bool(name)),
          [*args.gin_file, *v.files, *files], [*v.params, *args.gin_param],
          v.paper, attention)
      for v in models for name, files, attention in chosen]


def main(argv: list[str] | None = None) -> None:
  """Parses flags, plans, prints the table and writes the files."""
  with arguments.command(_parser(), argv) as args:
    plans, interrupted = _plan_all(args)
    print("\n\n".join(filter(None, (report.table(plans), report.paper_table(plans)))))
    if args.png:
      plot.plot(plans, args.png)
  if interrupted:
    print("plan_pod: interrupted; the finished plans are above.",
          file=sys.stderr)
    sys.exit(130)
  if all(p["status"] != "ok" for p in plans):
    sys.exit(f"plan_pod: {plans[0]['reason']}")
  refused = [p for p in plans if p["status"] == "refused"]
  if refused:
    sys.exit(f"plan_pod: the compiler refused {len(refused)} of {len(plans)} plans, "
             "for the reasons above.")


def _plan_all(args):
  """Plans all variants on all topologies; returns plans and whether interrupted."""
  topologies = [pods.parse_topology(name, args.chip) for name in args.topology]
  wanted = [*itertools.product(topologies, _variants(args), args.mode)]
  arguments.check_folders(args.json, args.png)
  for variant in _variants(args):  # A mistake in the last one is found at once.
    variant.parse([], args.gin_location_prefix)
  compilers = [compiling.choose(args.compiler, topology) for topology in topologies]
  if args.hlo:
    os.makedirs(args.hlo, exist_ok=True)
  cores, plans = max(topology.cores for topology in topologies), []
  with (compiling.Worker(cores, args.module_import) as worker,
        tqdm.tqdm(total=len(wanted), desc="plan", unit="plan") as bar):
    try:
      for topology, compiler in zip(topologies, compilers):
        worker.call(compiling.check, topology, compiler)
      for plan in wanted:
        plans.append(_plan(args, *plan, worker, bar))
        tabular.write_json(plans, args.json)  # The next one may take an hour.
        bar.update()
    except KeyboardInterrupt:
      return plans, True
  return plans, False


def _plan(args, topology, variant, mode, worker, bar):
  """Plans in a process of its own, and shows that it still runs."""
  name = f"{variant.name} {topology.name}" + f" {mode}" * (mode != "train")
  bar.set_postfix_str(name)
  options = planning.Options(
      mode, args.compiler, args.layers, args.vocabulary_size, args.hbm_gib,
      args.gin_location_prefix,
      args.hlo and os.path.join(args.hlo, re.sub(r"[^\w.+-]+", "_", name)))
  plan = worker.call(planning.plan, variant, topology, options,
                     waiting=bar.refresh if sys.stderr.isatty() else lambda: None)
  plan = plan or planning.described(variant, topology, options) | {
      "status": "refused", "reason": "the compiler ended; its last words are above"}
  return plan | {"versions": machine.versions() | compiling.versions(plan["compiler"])}


def _parser():
  parser = arguments.parser("plan_pod", __doc__)
  arguments.add_gin(parser, "as for synthesizer_mesh_transformer; repeat it",
                    "likewise; comes last")
  add, chips = parser.add_argument, pods.CHIPS
  add("--gin_location_prefix", type=_split, default=[], metavar="DIR,...",
      help="more folders of gin files")
  add("--topology", type=_split, default=["2x2"], metavar="NAME,...",
      help="v2-8 ... v2-512, v3-8 ... v3-2048, chips such as 4x4 or v5e:4x4, or GPUs "
      "such as h100:8; several make a sweep (default: 2x2)")
  add("--attention", type=_split, default=[], metavar="A,B,...",
      help="compare these, such as V,R,R+V; SelfAttention is stock's, "
      "Synthesizer:random is the authors', and all stands for all with a file in "
      "gin/attention")
  add("--compare", type=_split, default=[], metavar="FILE,...",
      help="compare these gin files, each after --gin_file")
  add("--table4", action="store_true",
      help="plan the models of the paper's Table 4, and show its figures beside")
  add("--recipes", action="store_true",
      help="plan the recipes for pods, each with the model that its file names")
  add("--mode", type=_modes, default=["train"], metavar="MODE,...",
      help="train, a training step; eval, the loss alone; infer, a whole decoding "
      "(default: train)")
  add("--layers", type=_layers, default=(), metavar="FEW,MORE",
      help="compile with these numbers of blocks, and extend the figures in a straight "
      "line to the model's num_layers; all blocks of a stack have to be alike")
  add("--compiler", choices=compiling.COMPILERS,
      help="tpu is libtpu; host compiles for devices of the host, without a time "
      "(default: tpu for TPUs where libtpu is installed, else host)")
  add("--hlo", metavar="DIR",
      help="keep each program, and the compiler's result for it")
  add("--vocabulary_size", type=int, default=32128, metavar="N",
      help="the number of tokens (default: %(default)s, T5's; no file is read)")
  add("--chip", choices=sorted(chips), default="v3",
      help="the chips of a topology such as 2x2 (default: %(default)s)")
  add("--hbm_gib", type=float, metavar="X", help="memory of a chip, GiB (default: "
      f"{', '.join(f'{name} {chip.hbm_gib}' for name, chip in chips.items())})")
  add("--json", metavar="FILE", help="write JSON lines")
  add("--png", metavar="FILE", help="draw the plans")
  return parser


def _modes(text):
  modes = _split(text)
  for mode in modes:
    if mode not in ("train", "eval", "infer"):
      raise argparse.ArgumentTypeError(
          f"{mode!r} is not a mode; use some of train, eval, infer")
  return modes


def _layers(text):
  numbers = [arguments.positive(part) for part in _split(text)]
  if len(numbers) != 2 or numbers[0] >= numbers[1]:
    raise argparse.ArgumentTypeError(
        f"{text!r} is not two numbers of blocks, the smaller one first, such as 1,2")
  return numbers


def _split(text):
  return [part for part in text.split(",") if part]


if __name__ == "__main__":
  main()
