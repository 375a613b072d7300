r"""Measures what the attention of a trained Transformer is worth, and replaces it.

  python -m studies.calibration.worth --model_dir=V --to=R,T,FR --curve=FOLDER

--curve measures on held-out text, and draws, how constant each head is, by how much the
log-perplexity grows if it is replaced alone, and if more and more of them are. --to can
name several words of `synthesizer_mtf.tools.calibrate`, and two more:

  --to=D           logits that each token predicts, fitted to V's by least squares
  --to=FD          D's with factors, which take more passes over the data

--orders=cost,divergence,trained adds an order that takes training: one weight for each
head, as in PAPA, while the model stays as it is.

--budget=0.01 chooses layers whose replacement costs at most 1% of the log-perplexity,
prints their gin list and its speed, and writes this model to --output. With --output
alone, the command does what `calibrate` does.
"""

import argparse
from collections.abc import Sequence
import functools
import math
import os
from typing import Any

from studies.calibration import budget
from studies.calibration import dense
from studies.calibration import drawing
from studies.calibration import factorized_dense
from studies.calibration import graphs
from studies.calibration import heads
from studies.calibration import held_out
from studies.calibration import interpolation
from studies.calibration import speed
from studies.calibration import trained_order
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.calibrate import __main__ as calibrate
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import targets
from synthesizer_mtf.tools.calibrate import writing
from synthesizer_mtf.tools.plot_attention import figures

for _module in (dense, factorized_dense):
  fitting.FURTHER.update(dict.fromkeys(_module.NAMES, _module.fit))


def run(args: argparse.Namespace) -> None:
  """Measures or calibrates a model, as the flags say.

  Raises:
    ValueError: a flag does not fit the model, or the folder is not empty. In both cases
      nothing is read and nothing is written.
  """
  words = attention_words.split(args.to)
  _check(args, words)
  if args.curve or args.budget is not None:
    worth(args, words)
  else:
    calibrate.run(args, graphs.Graph)


def _check(args, words):
  """Raises a ValueError for flags that do not fit together."""
  evaluates = args.curve or args.budget is not None
  if not (evaluates or args.output):
    raise checks.Error("worth writes nothing; give --output=DIR for a model, or "
                       "--curve=FOLDER or --budget=0.01 for what it is worth.")
  if evaluates and args.heads:
    raise checks.Error("--heads is for a model in --output; --curve replaces all heads "
                       "in turn, and --budget whole layers, so leave it out.")
  if args.output and args.budget is None and len(words) > 1:
    raise checks.Error(f"--output holds one model, but --to is {args.to!r}; give one "
                       "word, or --budget, which chooses among them.")
  if args.json and not evaluates:
    raise checks.Error("--json holds what --curve and --budget find; give one of them.")
  if not args.curve and (args.orders or args.order_steps):
    raise checks.Error("--orders and --order_steps are for --curve; give it a folder.")
  if args.order_steps and "trained" not in (args.orders or ()):
    raise checks.Error(
        f"--order_steps is {args.order_steps}, but no order is trained; add "
        "--orders=cost,divergence,trained.")
  if args.output:
    folders.check(args.output)
  arguments.check_folders(args.json)
  if args.curve and os.path.exists(args.curve) and not os.path.isdir(args.curve):
    raise checks.Error(f"--curve is {args.curve!r}, which is a file; name a folder.")


def worth(args: argparse.Namespace, words: Sequence[str]) -> None:
  """Measures what the attention is worth, as --curve and --budget say.

  Args:
    args: the values of the flags.
    words: the words of --to.
  """
  model = calibrate.open_model(args, graphs.Graph)
  layers = model.graph.layers
  chosen = {word: blocks.choose(word, layers, args.layers) for word in words}
  mixtures = held_out.parts([*chosen.values()])
  data = graphs.Data(args.task, args.split, args.batch_size)
  orders = args.orders or heads.UNTRAINED
  kind, differentiated = (
      (interpolation.Notation, trained_order.variables(layers, mixtures))
      if "trained" in orders else (str, []))
  mixed = calibrate.bind(
      model, {name: kind("+".join(members)) for name, members in mixtures.items()},
      True, functools.partial(graphs.Graph, differentiated=differentiated))
  calibrate.say_reading(args, model)
  text = held_out.HeldOut(mixed, layers, mixtures, [*data.batches(
      args.held_out, "Held-out text")])
  fits: dict[str, fitting.Fit] = {}
  for word in words:
    known = fits[words[0]].means if fits else None
    fits[word] = fitting.fit(model.graph, lambda: model.data.batches(args.batches),
                             chosen[word], mixed.shapes, known)
  text.restore(model.path, [fitting.variables(each) for each in fits.values()])
  found: list[dict[str, Any]] = []
  if args.curve:
    trained = {word: trained_order.train(
        mixed, layers, mixtures, chosen[word], model.data.batches(
            args.order_steps or trained_order.STEPS, f"Training {word}'s order"))
               for word in words if "trained" in orders}
    found += _curve(args, model, text, chosen, fits, trained, orders)
  kept = chosen[words[0]]
  if args.budget is not None:
    kept = budget.choose(text, [*chosen.values()], args.budget)
    cost = text.cost(text.heads(kept), text.second)
    found.append({"kind": "budget", "budget": args.budget, "layers": kept,
                  **cost._asdict()})
  if args.json:
    tabular.write_json(found, args.json)
  if args.budget is None and not args.output:
    return
  calibrate.configure(args)
  bias = bool(model.graph.biases())
  if args.budget is not None:
    _say_budget(args, layers, kept, cost)
  if kept and args.output:
    every = {pair: each.replacements[pair[0]] for word, each in fits.items()
             for pair in chosen[word].items()}
    made = fits[words[0]]._replace(
        replacements={name: every[name, target] for name, target in kept.items()})
    writing.write(model.path, args.output, calibrate.bind(model, kept),
                  fitting.variables(made))
    print("\n".join(["", *calibrate.notes(made, model.graph.biases())]))
    calibrate.say_written(args, model, speed.word(layers, kept))
  if kept and args.budget is not None:
    _say_speed(layers, kept, bias)


def _curve(args, model, text, chosen, fits, trained, orders):
  """Measures heads and curves, prints and draws them; returns rows for JSON."""
  made = [*fits.values()]
  constant = {name: layer.logits for fit in made
              for name, layer in fit.replacements.items() if "R" in layer.variables}
  constant.update((name, targets.pair_logits(mean))
                  for name, mean in made[0].means.items() if name not in constant)
  words = [*chosen]
  found = heads.measure(text, means.gather(
      map(model.graph.sums, text.batches), model.graph.layers), constant, chosen,
                        trained)
  points = heads.curve(text, found, chosen, orders)
  print(heads.table(found, words))
  print(f"\n{heads.curve_table(points)}")
  os.makedirs(args.curve, exist_ok=True)
  picture, _ = figures.save(drawing.draw(found, points, words), args.curve, "curve")
  print(f"\nThe picture is in {picture}, and as SVG beside it.")
  return heads.rows(found, points)


def _say_budget(args, layers, kept, cost):
  if not kept:
    print(f"\nNo layer can be replaced at a cost of at most {args.budget:.2%}; V "
          "stays, and no model is written.")
    return
  print(f"\nReplaced: {len(kept)} of {len(layers)} layers, chosen to cost at most "
        f"{args.budget:.2%} on half of the\nheld-out text. On the other half they cost "
        f"{cost.cost:+.2%} ± {cost.error:.2%}; the log-perplexity is\n"
        f"{cost.log_perplexity:.4f} nats per token. The lines for gin:\n")
  print("\n".join(speed.gin_lines(layers, kept)))


def _say_speed(layers, kept, bias):
  sizes = speed.sizes(layers)
  if sizes is None:
    print("\nThe benchmark has no model of these sizes, so no speed is measured.")
  else:
    print(f"\n{speed.table(['V', speed.word(layers, kept)], sizes, bias)}")


def _parser():
  parser = calibrate.parser(
      "studies.calibration.worth", __doc__, needs_output=False)
  add = parser.add_argument
  add("--curve", metavar="FOLDER",
      help="measure what the heads of V are worth, and draw it there")
  add("--orders", type=_orders, metavar="A,B",
      help="what --curve sorts the heads by, some of cost, divergence and trained, "
      f"which takes training (default: {','.join(heads.UNTRAINED)})")
  add("--order_steps", type=arguments.positive, metavar="N",
      help="the batches that the order `trained` is trained on, from the first ones of "
      f"the training split (default: {trained_order.STEPS})")
  add("--budget", type=_share, metavar="SHARE",
      help="replace the layers that together cost at most this share of log-perplexity")
  add("--held_out", type=_two, default=16, metavar="N",
      help="batches of held-out text, for --curve and --budget (default: %(default)s)")
  add("--split", default="validation", metavar="SPLIT",
      help="the task's split with held-out text (default: %(default)s)")
  add("--json", metavar="FILE", help="write what --curve and --budget find")
  return parser


def _orders(text):
  names = [*dict.fromkeys(text.split(","))]
  for name in names:
    if name not in heads.ORDERS:
      raise argparse.ArgumentTypeError(
          f"{name!r} is not an order; name some of {', '.join(heads.ORDERS)}")
  return names


def _share(text):
  try:
    share = float(text)
  except ValueError:
    raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
  if not 0 <= share < math.inf:
    raise argparse.ArgumentTypeError(
        f"{text} is not at least 0; 0.01 is 1% of the log-perplexity")
  return share


def _two(text):
  number = arguments.positive(text)
  if number < 2:
    raise argparse.ArgumentTypeError(
        f"{text} is not at least 2: one half chooses, and the other reports")
  return number


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the folders."""
  with arguments.command(_parser(), argv, graphs=True) as args:
    run(args)


if __name__ == "__main__":
  main()
