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
  --to=[R,R,V]     an entry for each block; V keeps the dot products
  --to=R/V         the encoder's, then the decoder's

R, Fix and T are the constant attentions with the least mean KL divergence from V's.
T5's relative position bias stays in the model; it is subtracted from what it is added
to. With --heads=0,3 only these heads change, in a mixture such as R+V in which each
head is wholly one or the other. New variables have the dtype of the old ones: T5's
bfloat16 keeps 8 bits of a logit, and a float32 model has R's to the last digits.

In the repository, `python -m studies.calibration.worth` has the same flags. It also
fits D and FD, and measures what the attention is worth, by --curve and --budget.
"""

import argparse
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.tools.calibrate import attention_bindings
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import reading
from synthesizer_mtf.tools.calibrate import targets
from synthesizer_mtf.tools.calibrate import writing
from synthesizer_mtf.trainer.checkpoints import complete


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


def open_model(args: argparse.Namespace,
               make: type[reading.Graph] = reading.Graph) -> Model:
  """Fills gin with the model's configuration, and builds it; reads no data.

  Args:
    args: the values of the flags.
    make: the class of the graph.

  Raises:
    ValueError: there is no such model, or the checkpoint is of another one.
  """
  path, step = configure(args)
  data = reading.Data(args.task, "train", args.batch_size)
  graph = make(data.spec)
  graph.restore(path)
  return Model(path, step, data, graph)


def configure(args: argparse.Namespace) -> tuple[str, int]:
  """Fills gin with the model's configuration; returns (checkpoint, its step)."""
  path, step = trained_model.configure(args.model_dir, args)
  complete.check(path)
  attention_bindings.take_the_place_of_stock()
  return path, step


def run(args: argparse.Namespace, make: type[reading.Graph] = reading.Graph) -> None:
  """Calibrates a model, as the flags say.

  Args:
    args: the values of the flags.
    make: the class of the graph of the model with V.

  Raises:
    ValueError: a flag does not fit the model, or the folder is not empty. In both cases
      nothing is read and nothing is written.
  """
  words = attention_words.split(args.to)
  if len(words) > 1:
    raise checks.Error(
        f"--output holds one model, but --to is {args.to!r}; give one word.")
  folders.check(args.output)
  model = open_model(args, make)
  graph = model.graph
  chosen = blocks.choose(args.to, graph.layers, args.layers)
  blocks.check_heads(args.heads, graph.layers, chosen)
  mixed = bool(args.heads)
  new = bind(model, {name: f"{notation}+V" if mixed else notation
                      for name, notation in chosen.items()}, mixed)
  say_reading(args, model)
  made = fitting.fit(
      graph, lambda: model.data.batches(args.batches), chosen, new.shapes)
  writing.write(model.path, args.output, new, fitting.variables(
      made, dict.fromkeys(chosen, args.heads) if mixed else None))
  print(table(made, chosen))
  for line in notes(made, graph.biases()):
    print(line)
  say_written(args, model, args.to)


def bind(model: Model, notations: Mapping[str, str], mixed: bool = False,
         make: Callable[..., reading.Graph] = reading.Graph) -> reading.Graph:
  """Binds the attention of layers; returns the graph of the new model."""
  layers = model.graph.layers
  attention_bindings.choose(
      blocks.entries(layers, notations), blocks.lengths(layers), mixed)
  return make(model.data.spec, False)


def say_reading(args: argparse.Namespace, model: Model) -> None:
  """Prints what is read, and how much of it is cut."""
  print(f"Reading {args.batches} batches of {args.batch_size} rows of "
        f"{model.data.name}.")
  cut = model.data.cut(args.batches * args.batch_size)
  if cut:
    print(cut)


def say_written(args: argparse.Namespace, model: Model, word: str) -> None:
  """Prints which model --output has."""
  print(f"{args.output} has the model of step {model.step} with {word}.")


def table(made: fitting.Fit, chosen: dict[str, str]) -> str:
  """Returns a table of the heads: how much of each one's attention is constant."""
  lines = [["layer", "head", "to", "mean entropy", "divergence"]]
  for name, notation in chosen.items():
    mean, logits = made.means[name], made.replacements[name].logits
    if logits is None:
      continue
    entropy, divergence = mean.entropy(), mean.divergence(logits)
    lines += [[name, str(head), notation, f"{entropy[head]:.3f}",
               f"{max(divergence[head], 0):.3f}"] for head in range(len(entropy))]
  return (f"{tabular.markdown(lines)}\n\n"
          "mean entropy: of V's attentions, in nats. divergence: the mean KL "
          "divergence of V's\n  attentions from the one that takes their place; 0 if "
          "V's do not depend on the text.")


def notes(made: fitting.Fit, biases: Mapping[str, Any]) -> list[str]:
  """Returns sentences about what the table leaves out."""
  lines = []
  for name, replacement in made.replacements.items():
    pairs = made.means[name].pairs
    can = np.ones_like(pairs) if made.layers[name].sees_later else np.tri(len(pairs))
    never = int(((pairs == 0) * can).sum())
    if replacement.logits is not None and never:
      lines.append(
          f"{name}: no text has {never} of the {int(can.sum())} pairs of positions; "
          f"their logit is {targets.FLOOR:.3f}, the log of a weight of 1e-9.")
    lines += [f"{name}: {note}." for note in replacement.notes]
  if any(name in biases for name in made.replacements):
    lines.append("T5's relative position bias stays in the model; it is subtracted "
                 "from the new logits.")
  return lines


def parser(name: str, doc: str | None, needs_output: bool) -> argparse.ArgumentParser:
  """The flags of `calibrate`.

  Args:
    name: the name of the command.
    doc: what its help says.
    needs_output: whether --output is required.
  """
  made = arguments.parser(name, doc)
  add = made.add_argument
  add("--to", required=True, metavar="R", help="what takes the place of V")
  add("--output", required=needs_output, metavar="DIR",
      help="a new folder, for the model")
  add("--layers", type=lambda text: text.split(","), default=[], metavar="A,B",
      help="change only these, as encoder/0,decoder/ (default: all)")
  add("--heads", type=_heads, default=[], metavar="N,M",
      help="change only these heads (default: all)")
  add("--model_dir", required=True, metavar="V", help="the folder of the trained model")
  add("--task", metavar="TASK", help="a task or mixture (default: the model's)")
  add("--batches", type=arguments.positive, default=100, metavar="N",
      help="how many batches to read (default: %(default)s)")
  add("--batch_size", type=arguments.positive, default=8, metavar="N",
      help="the rows of a batch (default: %(default)s)")
  trained_model.add_flags(made)
  return made


def _heads(text):
  return [arguments.not_negative(head) for head in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the folder."""
  flags = parser("calibrate", __doc__, needs_output=True)
  with arguments.command(flags, argv, graphs=True) as args:
    run(args)


if __name__ == "__main__":
  main()
