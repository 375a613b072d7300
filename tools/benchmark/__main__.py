"""Compares the speed and size of attentions on T5 models, in one run.

  python -m synthesizer_mtf.tools.benchmark --rows=V,R,D+V,floor \\
    --steps=20 --png=speed.png

All rows take turns: step i of each, then step i + 1. Each is compared with
mesh_tensorflow's `SelfAttention` of the same round, or with another `--reference`. The
reference always runs. Decoding has its own table, in tokens per second:

  python -m synthesizer_mtf.tools.benchmark --skip_train --skip_eval --rows=V,R \\
    --beam=1,4 --decode_batch=1,16

Other work on the machine makes the quartiles wide, so run nothing else. In the
repository, `python -m studies.peers` has the same flags, and measures T5 in PyTorch,
JAX and CTranslate2 beside these rows.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.benchmark import ratio_plot
from synthesizer_mtf.tools.benchmark import result_tables
import tqdm

_TRACED = 3  # The rounds that `--breakdown` traces.

_SIZES = {
    "inputs": "tokens of the inputs",
    "targets": "tokens of the targets, and of the decoded output",
    "batch": "examples of a training or evaluation step",
    "num_layers": "blocks of the encoder, and of the decoder",
    "d_model": "channels of the tokens",
    "num_heads": "attention heads",
    "d_kv": "channels of a head",
    "d_ff": "channels of the feed-forward layers",
    "vocabulary": "tokens of the vocabulary",
}

_STOCK = {"cross_attention": "EncDecAttention", "feed_forward": "DenseReluDense",
          "norm": "gradients of T5's norms", "vocabulary": "embeddings and loss",
          "optimizer": "updates of Adafactor"}


def benchmark(rows: list[attentions.Row], configs: list[model.Configuration],
              rounds: dict[str, tuple[int, int]], memory_repeats: int, traced: int,
              decodings: Sequence[tuple[int, int]],
              reference: str, modules: Sequence[str] = ()) -> list[dict[str, Any]]:
  """Measures rows with each configuration.

  Args:
    rows: a list of `attentions.Row`. The reference, which ratios need, is added if it
      is missing. So is the floor, which shares need, if the reference is
      `SelfAttention`.
    rounds: a dict from the wanted keys of `model.MEASURES` to (rounds of warm-up,
      rounds that count).
    memory_repeats: processes per row that measure memory; 0 for none.
    traced: rounds of training that are traced, to split the time into parts.
    decodings: pairs of (hypotheses of the search, examples at once) for decoding.
    reference: the name of the row that other rows' times are compared with.
    modules: those that processes which measure memory import.

  Returns:
    a list of dicts, one for each row, configuration and measure.
  """
  given = {row.name: row for row in rows}
  needed = [reference] + [attentions.FLOOR] * (reference == attentions.STOCK)
  rows = [attentions.find_row(n) for n in needed if n not in given]
  rows += given.values()
  state = machine.state()
  results = []
  for config in configs:
    lengths = f"{config.inputs}/{config.targets}"
    decoded = [dataclasses.replace(config, beam=beam, decode_batch=batch)
               for beam, batch in decodings]
    for measure, (warmup, repeats) in rounds.items():
      extra = traced if measure == "train" else 0
      total = len(rows) * (warmup + repeats + extra)
      for variant in decoded if measure == "decode" else [config]:
        title = f"{result_tables.title(measure, vars(variant))} {lengths}"
        with Progress(title, total) as p:
          results += measuring.measure_time(
              rows, variant, measure, warmup, repeats, progress=p, traced=extra,
              reference=reference)
    if memory_repeats:
      with Progress(f"memory {lengths}", len(rows) * memory_repeats) as p:
        results += measuring.measure_memory(
            rows, config, memory_repeats, progress=p, modules=modules)
  return [{**result, **state} for result in results]


class Progress(tqdm.tqdm):
  """A progress bar on standard error that also names the current run."""

  def __init__(self, title: str, total: int) -> None:
    super().__init__(desc=title, total=total, unit="run")

  def __call__(self, done: int, what: str) -> None:
    self.set_postfix_str(what, refresh=not done)
    self.update(done)


def main(argv: list[str] | None = None) -> None:
  """Parses flags, measures, prints the table and writes the files."""
  with arguments.command(parser("benchmark", __doc__), argv, graphs=True) as args:
    run(args)


def run(args: argparse.Namespace,
        further: Callable[[Iterable[str]], list[attentions.Row]] = lambda measures: []
        ) -> None:
  """Measures as the flags say, prints the table and writes the files.

  Args:
    args: the values of the flags.
    further: a function from the wanted measures to rows of other programs.
  """
  rows = [attentions.find_row(name) for name in args.rows]
  rounds = _rounds(args)
  rows += further(rounds)
  rows = attentions.in_precisions(rows, args.precision)
  if args.reference not in [row.name for row in rows]:
    attentions.find_row(args.reference)
  arguments.check_folders(args.json, args.csv, args.png)
  arguments.check_picture(args.png)
  results = benchmark(rows, _configurations(args), rounds,
                      memory_repeats=args.memory_repeats if args.memory else 0,
                      traced=_TRACED if args.breakdown else 0,
                      decodings=[*itertools.product(args.beam, args.decode_batch)],
                      reference=args.reference, modules=args.module_import)
  tables = [result_tables.header, result_tables.table]
  tables += [result_tables.breakdown] * args.breakdown
  print("\n\n".join(text for text in (table(results) for table in tables) if text))
  for path, write in (
      (args.json, tabular.write_json), (args.csv, result_tables.write_csv),
      (args.png, ratio_plot.plot)):
    if path:
      write(results, path)


def _configurations(args):
  names = [*_SIZES, "dropout_rate", "relative_bias", "packed",
           *(f"stock_{part}" for part in attentions.STOCK_PARTS)]
  config = model.Configuration(**{name: getattr(args, name) for name in names})
  return [dataclasses.replace(config, inputs=length)
          for length in args.lengths or [config.inputs]]


def _rounds(args):
  rounds = {"train": (args.warmup, args.steps), "eval": (args.warmup, args.steps),
            "decode": (1, args.decode_steps)}
  rounds = {measure: counts for measure, counts in rounds.items()
            if not getattr(args, f"skip_{measure}")}
  if not rounds and not args.memory:
    raise checks.Error("nothing is left to measure; leave out one of --skip_train, "
                       "--skip_eval and --skip_decode, or give --memory.")
  if args.breakdown and args.skip_train:
    raise checks.Error("--breakdown splits the time of training steps, and "
                       "--skip_train skips them; leave out one of the two flags.")
  return rounds


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
  """The flags of a command that measures rows.

  Args:
    name: the name of the command.
    doc: what its help says.
  """
  made = arguments.parser(name, doc)
  made.add_argument(
      "--rows", type=attention_words.split,
      default=list(attentions.ROWS), metavar="A,B,...",
      help=f"the rows to measure: {', '.join(attentions.ROWS)}, or any notation, a "
      "list in brackets with an entry for each block, or ENCODER/DECODER; by default "
      "all that are listed here")
  arguments.add_modules(made)
  _add_model(made)
  _add_decoding(made)
  made.add_argument("--packed", type=arguments.positive, default=0, metavar="N",
                      help="pack N examples into a row, as T5 does, in training and "
                      "evaluation (default: rows are not packed)")
  made.add_argument(
      "--lengths", type=_numbers, metavar="N,N,...",
      help="measure at each of these lengths of the inputs")
  made.add_argument(
      "--reference", default=attentions.STOCK, metavar="ROW",
      help="the row that the others are compared with (default: %(default)s)")
  made.add_argument(
      "--precision", type=_precisions, default=["float32"], metavar="A,B",
      help="the precision of the products: bfloat16, or float32,bfloat16 for each row "
      "in both (default: float32, which SelfAttention always has)")
  _add_measures(made)
  made.add_argument("--json", metavar="FILE", help="write JSON lines")
  made.add_argument("--csv", metavar="FILE", help="write CSV")
  made.add_argument(
      "--png", metavar="FILE",
      help="draw the ratios, or with --lengths how the time grows")
  return made


def _add_model(parser):
  default = model.Configuration()
  for name, text in _SIZES.items():
    parser.add_argument(f"--{name}", type=arguments.positive, metavar="N",
                        default=getattr(default, name),
                        help=f"{text} (default: %(default)s)")
  parser.add_argument("--dropout_rate", type=float, metavar="RATE",
                      default=default.dropout_rate,
                      help="T5's dropout (default: %(default)s)")
  parser.add_argument("--relative_bias", action="store_true",
                      help="T5's relative position bias instead of position embeddings")
  for part, text in _STOCK.items():
    parser.add_argument(f"--stock_{part}", action="store_true",
                        help=f"use Mesh TensorFlow's {text} in our rows as well")


def _add_decoding(parser):
  parser.add_argument(
      "--beam", type=_numbers, default=[1], metavar="N,N,...",
      help="the width of the beam search; 1 for greedy decoding (default: 1)")
  parser.add_argument(
      "--decode_batch", type=_numbers, default=[16], metavar="N,N,...",
      help="examples decoded at once (default: 16)")
  parser.add_argument("--stock_decoding", action="store_true",
                      help="decode by Mesh TensorFlow's loops in our rows as well")


def _numbers(text):
  return [arguments.positive(number) for number in text.split(",")]


def _precisions(text):
  precisions = text.split(",")
  if not {*precisions} <= {"float32", "bfloat16"}:
    raise argparse.ArgumentTypeError(
        f"{text!r} has a precision other than float32 and bfloat16; give one of "
        "them, or both with a comma between.")
  return precisions


def _add_measures(parser):
  counts = {"steps": (20, "rounds that count, in training and evaluation"),
            "warmup": (3, "rounds before them"),
            "decode_steps": (5, "rounds of decoding, after one of warm-up"),
            "memory_repeats": (3, "processes per row with --memory")}
  for name, (number, text) in counts.items():
    parser.add_argument(f"--{name}", type=arguments.positive, default=number,
                        metavar="N", help=f"{text} (default: %(default)s)")
  parser.add_argument("--breakdown", action="store_true", help=(
      "split the time of training steps into attention, feed-forward, embedding, "
      "loss, optimizer and the rest; --png draws it, too"))
  for measure in model.MEASURES:
    parser.add_argument(f"--skip_{measure}", action="store_true")
  parser.add_argument("--memory", action="store_true", help=(
      "also measure the peak memory of a training process, for each row"))


if __name__ == "__main__":
  main()
