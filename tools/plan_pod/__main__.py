"""Plans a training run on a TPU pod, without a TPU.

  python -m synthesizer_mtf.tools.plan_pod \\
    --gin_file=models/table4/r+v.gin --topology=v3-32

It takes the trainer's gin files and bindings, and compiles the whole training step
(forward, backward, optimizer) for all cores of the topology, as JAX runs it. It reports
what a core keeps, computes and sends. Where libtpu is installed, the TPU's own compiler
says it, and also the time. Elsewhere XLA compiles for as many devices of the host.

  compare:   --gin_file=models/bi_v1.gin --attention=SelfAttention,V,R --topology=2x2
             --compare=models/table4/r.gin,models/table4/d.gin
  sweep:     --topology=v3-8,v3-32,v3-128 --png=sweep.png
  the paper: --table4
"""

import argparse
import itertools
import os
import pathlib
import re
import sys

from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_names
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
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf
import tqdm

# The bindings of the commands in gin/models/table4.
_TABLE_4_PARAMS = [
    "utils.run.sequence_length = {'inputs': 512, 'targets': 114}",
    "utils.run.batch_size = ('tokens_per_batch', 65536)",
]


def table_4() -> list[planning.Variant]:
  """Returns the models of the paper's Table 4."""
  return [planning.Variant(row, [f"models/table4/{row.lower()}.gin"], [], paper=row)
          for row in tables.TABLE_4]


def recipes() -> list[planning.Variant]:
  """Returns the recipes for pods, each with its first command's files and bindings."""
  found = {name: recipes_lib.commands(f"recipes/pod/{name}.gin")
           for name in _stems("recipes/pod")}
  return [planning.Variant(name, recipes_lib.values(commands[0], "gin_file"),
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
    found = [planning.Variant(pathlib.Path(f).stem, [f], []) for f in args.compare]
  else:
    name = pathlib.Path(["defaults", *args.gin_file][-1]).stem
    found = [planning.Variant(name, [], [])]
  common = _TABLE_4_PARAMS if args.table4 else []
  chosen = []  # (name, gin files, attention)
  for name in args.attention or [None]:
    chosen += every_attention() if name == "all" else [(name, [], name)]
  return [
      planning.Variant(" ".join(([v.name] if len(found) > 1 or not name else []) +
                       [name] * bool(name)),
              [*args.gin_file, *v.files, *files], [*common, *v.params, *args.gin_param],
              v.paper, attention)
      for v in found for name, files, attention in chosen]


def every_attention() -> list[tuple[str, list[str], str | None]]:
  """Returns (name, gin files, binding) of stock and of attentions with a gin file."""
  return [(attentions.STOCK, [], attentions.STOCK)] + [
      (name, [f"attention/{name}.gin"], None) for name in _stems("attention")]


def main(argv: list[str] | None = None) -> None:
  """Parses flags, plans, prints the table and writes the files."""
  args = _parser().parse_args(argv)
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("plan_pod"):
    plans, interrupted = _plan_all(args)
  print("\n\n".join(filter(None, (report.table(plans), report.paper_table(plans)))))
  tabular.write_json(plans, args.json)
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
  gin_names.import_modules(args.module_import)
  topologies = [pods.parse_topology(name, args.chip) for name in args.topology]
  variants = _variants(args)
  wanted = list(itertools.product(topologies, variants, args.mode))
  arguments.check_folders(args.json, args.png)
  for variant in variants:  # A mistake in the last one is found before hours of work.
    variant.parse([], args.gin_location_prefix)
  compiler = compiling.choose(args.compiler)
  if args.hlo:
    os.makedirs(args.hlo, exist_ok=True)
  versions = machine.versions() | compiling.versions(compiler)
  cores, plans = max(topology.cores for topology in topologies), []
  with (compiling.Worker(cores, args.module_import) as worker,
        tqdm.tqdm(total=len(wanted), desc="plan", unit="plan") as bar):
    try:
      for topology in topologies:
        worker.call(compiling.check, topology, compiler)
      for each in wanted:
        plans.append(_plan(args, compiler, *each, worker, bar) | {"versions": versions})
        bar.update()
    except KeyboardInterrupt:
      return plans, True
  return plans, False


def _plan(args, compiler, topology, variant, mode, worker, bar):
  """Plans in a process of its own, and shows that it still runs."""
  name = f"{variant.name} {topology.name}" + f" {mode}" * (mode != "train")
  bar.set_postfix_str(name)
  chip = pods.CHIPS[topology.generation]
  plan = worker.call(
      planning.plan, variant, topology,
      chip._replace(hbm_gib=args.hbm_gib) if args.hbm_gib else chip,
      args.vocabulary_size, args.gin_location_prefix, mode, compiler,
      args.hlo and os.path.join(args.hlo, re.sub(r"[^\w.+-]+", "_", name)),
      waiting=bar.refresh if sys.stderr.isatty() else lambda: None)
  return plan or planning.described(variant, topology, mode, compiler) | {
      "status": "refused", "reason": "the compiler ended; its last words are above"}


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
  parser.add_argument("--compiler", choices=compiling.COMPILERS, help=(
      "tpu is libtpu; host compiles for devices of the host, without a time (default: "
      "tpu where libtpu is installed, else host)"))
  parser.add_argument("--hlo", metavar="DIR", help=(
      "keep each program, and the compiler's result for it"))
  parser.add_argument("--vocabulary_size", type=int, default=32128, metavar="N",
                      help="the number of tokens (default: %(default)s, T5's; no file "
                      "is read)")
  chips = pods.CHIPS
  parser.add_argument("--chip", choices=sorted(chips), default="v3", help=(
      "the chips of a topology such as 2x2 (default: %(default)s)"))
  parser.add_argument("--hbm_gib", type=float, metavar="X", help=(
      "memory of a chip, GiB (default: "
      f"{', '.join(f'{name} {chip.hbm_gib}' for name, chip in chips.items())})"))
  parser.add_argument("--json", metavar="FILE", help="write JSON lines")
  parser.add_argument("--png", metavar="FILE", help="draw the plans")
  return parser


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
