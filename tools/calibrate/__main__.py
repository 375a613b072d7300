r"""Replaces the attention of a trained Transformer by its average over a task's texts.

  python -m synthesizer_mtf.tools.calibrate --model_dir=V --to=R --output=DIR

It reads the task's training split with the model in V, whose self-attention has dot
products, and averages the attention of each head of each layer. DIR gets a model whose
attention is that average: a checkpoint and an operative_config.gin, which train,
evaluate and decode as any model. All other variables stay the same, bit for bit.

  --to=R           logits for each pair of positions: the log of the mean weight
  --to=Fix         the same, never trained
  --to=T           logits by the distance between query and key
  --to=FR          R of low rank, `FactorizedRandomLogits.rank`
  --to=D           logits that each token predicts, fitted to V's by least squares
  --to=FD          D's with factors, which take more passes over the data
  --to=[R,R,V]     an entry for each block; V keeps the dot products
  --to=R/V         the encoder's, then the decoder's

R, Fix and T are the constant attentions with the least mean KL divergence from V's.
T5's relative position bias stays in the model; it is subtracted from what it is added
to. With --heads=0,3 only these heads change, in a mixture such as R+V in which each
head is wholly one or the other. New variables have the dtype of the old ones: T5's
bfloat16 keeps 8 bits of a logit, and a float32 model has R's to the last digits.

What is the attention worth? --curve=FOLDER measures on held-out text, and draws, how
constant each head is, by how much the log-perplexity grows if it is replaced alone, and
if more and more of them are. --to can name several words:

  python -m synthesizer_mtf.tools.calibrate --model_dir=V --to=R,T,FR --curve=FOLDER

--orders=cost,divergence,trained adds an order that takes training: one weight for each
head, as in PAPA, while the model stays as it is.

--budget=0.01 chooses layers whose replacement costs at most 1% of the log-perplexity,
prints their gin list and its speed, and writes this model to --output.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
from typing import Any
from typing import NamedTuple

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import budget
from synthesizer_mtf.tools.calibrate import drawing
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import heads
from synthesizer_mtf.tools.calibrate import held_out
from synthesizer_mtf.tools.calibrate import interpolation
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import settings
from synthesizer_mtf.tools.calibrate import speed
from synthesizer_mtf.tools.calibrate import targets
from synthesizer_mtf.tools.calibrate import trained_order
from synthesizer_mtf.tools.calibrate import writing
from synthesizer_mtf.tools.plot_attention import figures
from synthesizer_mtf.trainer.checkpoints import checkpoints
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v1 as tf


class Model(NamedTuple):
  """A trained model with V, and the data to read.

  Attributes:
    path: the path of its checkpoint.
    step: the step of its checkpoint.
    data: the task's training split.
    graph: the model, with the variables of the checkpoint.
  """
  path: str
  step: int
  data: reading.Data
  graph: reading.Graph


def open_model(args: argparse.Namespace) -> Model:
  """Fills gin with the model's configuration, and builds it; reads no data.

  Args:
    args: the values of the flags of `add_model`.

  Raises:
    ValueError: there is no such model, or the checkpoint is of another one.
  """
  path, step = _configure(args)
  data = reading.Data(args.task, "train", args.batch_size)
  graph = reading.Graph(data.spec)
  graph.restore(path)
  return Model(path, step, data, graph)


def _configure(args):
  path, step = trained_model.configure(args.model_dir, args)
  checkpoints.check(path)
  settings.take_the_place_of_stock()
  return path, step


def run(args: argparse.Namespace) -> None:
  """Calibrates a model, as the flags say.

  Args:
    args: the values of the flags.

  Raises:
    ValueError: a flag does not fit the model, or the folder is not empty. In both cases
      nothing is read and nothing is written.
  """
  words = attention_words.split(args.to)
  _check(args, words)
  if args.curve or args.budget is not None:
    return worth(args, words)
  model = open_model(args)
  graph = model.graph
  chosen = blocks.choose(args.to, graph.layers, args.layers)
  blocks.check_heads(args.heads, graph.layers, chosen)
  mixed = bool(args.heads)
  new = _bind(model, {name: f"{notation}+V" if mixed else notation
                      for name, notation in chosen.items()}, mixed)
  _say_reading(args, model)
  made = fitting.fit(
      graph, lambda: model.data.batches(args.batches), chosen, new.shapes)
  writing.write(model.path, args.output, new, fitting.variables(
      made, dict.fromkeys(chosen, args.heads) if mixed else None))
  print(table(made, chosen))
  for line in notes(made, graph.biases()):
    print(line)
  _say_written(args, model, args.to)


def _check(args, words):
  """Raises a ValueError for flags that do not fit together."""
  evaluates = args.curve or args.budget is not None
  if not (evaluates or args.output):
    raise checks.Error("calibrate writes nothing; give --output=DIR for a model, or "
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


def _bind(model, notations, mixed=False, differentiated=()):
  """Binds the attention of layers; returns the `reading.Graph` of the new model."""
  layers = model.graph.layers
  settings.choose(blocks.entries(layers, notations), blocks.lengths(layers), mixed)
  return reading.Graph(model.data.spec, False, differentiated)


def _say_reading(args, model):
  print(f"Reading {args.batches} batches of {args.batch_size} rows of "
        f"{model.data.name}.")
  cut = model.data.cut(args.batches * args.batch_size)
  if cut:
    print(cut)


def _say_written(args, model, word):
  print(f"{args.output} has the model of step {model.step} with {word}.")


def worth(args: argparse.Namespace, words: Sequence[str]) -> None:
  """Measures what the attention is worth, as --curve and --budget say.

  Args:
    args: the values of the flags.
    words: the words of --to.
  """
  model = open_model(args)
  layers = model.graph.layers
  chosen = {word: blocks.choose(word, layers, args.layers) for word in words}
  mixtures = held_out.parts([*chosen.values()])
  data = reading.Data(args.task, args.split, args.batch_size, once=True)
  orders = args.orders or heads.UNTRAINED
  kind, differentiated = (
      (interpolation.Notation, trained_order.variables(layers, mixtures))
      if "trained" in orders else (str, []))
  mixed = _bind(model, {name: kind("+".join(each)) for name, each in mixtures.items()},
                True, differentiated)
  _say_reading(args, model)
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
  _configure(args)
  bias = bool(model.graph.biases())
  if args.budget is not None:
    _say_budget(args, layers, kept, cost)
  if kept and args.output:
    every = {pair: each.found[pair[0]] for word, each in fits.items()
             for pair in chosen[word].items()}
    made = fits[words[0]]._replace(
        found={name: every[name, target] for name, target in kept.items()})
    writing.write(model.path, args.output, _bind(model, kept), fitting.variables(made))
    print("\n".join(["", *notes(made, model.graph.biases())]))
    _say_written(args, model, speed.word(layers, kept))
  if kept and args.budget is not None:
    _say_speed(layers, kept, bias)


def _curve(args, model, text, chosen, fits, trained, orders):
  """Measures heads and curves, prints and draws them; returns rows for JSON."""
  made = [*fits.values()]
  constant = {name: each.logits for fit in made for name, each in fit.found.items()
              if "R" in each.variables}
  constant.update((name, targets.of_pairs(each)) for name, each in made[0].means.items()
                  if name not in constant)
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


def table(made: fitting.Fit, chosen: dict[str, str]) -> str:
  """Returns a table of the heads: how much of each one's attention is constant."""
  lines = [["layer", "head", "to", "mean entropy", "divergence"]]
  for name, notation in chosen.items():
    found, logits = made.means[name], made.found[name].logits
    if logits is None:
      continue
    entropy, divergence = found.entropy(), found.divergence(logits)
    lines += [[name, str(head), notation, f"{entropy[head]:.3f}",
               f"{max(divergence[head], 0):.3f}"] for head in range(len(entropy))]
  return (f"{tabular.markdown(lines)}\n\n"
          "mean entropy: of V's attentions, in nats. divergence: the mean KL "
          "divergence of V's\n  attentions from the one that takes their place; 0 if "
          "V's do not depend on the text.")


def notes(made: fitting.Fit, biases: Mapping[str, Any]) -> list[str]:
  """Returns sentences about what the table leaves out."""
  lines = []
  for name, found in made.found.items():
    pairs = made.means[name].pairs
    can = np.ones_like(pairs) if made.layers[name].sees_later else np.tri(len(pairs))
    never = int(((pairs == 0) * can).sum())
    if found.logits is not None and never:
      lines.append(
          f"{name}: no text has {never} of the {int(can.sum())} pairs of positions; "
          f"their logit is {targets.FLOOR:.3f}, the log of a weight of 1e-9.")
    lines += [f"{name}: {note}." for note in found.notes]
  if any(name in biases for name in made.found):
    lines.append("T5's relative position bias stays in the model; it is subtracted "
                 "from the new logits.")
  return lines


def _parser():
  parser = argparse.ArgumentParser(
      prog="calibrate", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--to", required=True, metavar="R", help="what takes the place of V")
  add("--output", metavar="DIR", help="a new folder, for the model")
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
  add("--layers", type=lambda text: text.split(","), default=[], metavar="A,B",
      help="change only these, as encoder/0,decoder/ (default: all)")
  add("--heads", type=_heads, default=[], metavar="N,M",
      help="change only these heads (default: all)")
  add_model(parser)
  return parser


def add_model(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that say which model is read, and on what."""
  add = parser.add_argument
  add("--model_dir", required=True, metavar="V", help="the folder of the trained model")
  add("--task", metavar="TASK", help="a task or mixture (default: the model's)")
  add("--batches", type=arguments.positive, default=100, metavar="N",
      help="how many batches to read (default: %(default)s)")
  add("--batch_size", type=arguments.positive, default=8, metavar="N",
      help="the rows of a batch (default: %(default)s)")
  trained_model.add_flags(parser)


def _heads(text):
  return [arguments.not_negative(each) for each in text.split(",")]


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
  """Reads the flags and writes the folder."""
  args = _parser().parse_args(argv)
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("calibrate"):
    run(args)


if __name__ == "__main__":
  main()
