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

With --heads=0,3 only these heads change, in a mixture such as R+V in which each head is
wholly one or the other. T5's relative position bias stays in the model; the tables are
the logits less this bias.
"""

import argparse
from collections.abc import Sequence

from synthesizer_mtf.tools import arguments
from synthesizer_mtf.tools import trained_model
from synthesizer_mtf.tools.calibration import blocks
from synthesizer_mtf.tools.calibration import means
from synthesizer_mtf.tools.calibration import reading
from synthesizer_mtf.tools.calibration import settings
from synthesizer_mtf.tools.calibration import targets
from synthesizer_mtf.tools.calibration import writing
from synthesizer_mtf.tools.hugging_face_bridge import folders
from synthesizer_mtf.tools.runs import tabular
from synthesizer_mtf.trainer import checkpoints
from synthesizer_mtf.trainer import messages
import tensorflow.compat.v1 as tf


def run(args: argparse.Namespace) -> None:
  """Calibrates a model, as the flags say.

  Args:
    args: the values of the flags.

  Raises:
    ValueError: a flag does not fit the model, or the folder is not empty. In both cases
      nothing is read and nothing is written.
  """
  folders.check(args.output)
  path, step = trained_model.configure(args.model_dir, args)
  checkpoints.check(path)
  settings.take_the_place_of_stock()
  data = reading.Data(args.task, "train", args.batch_size)
  graph = reading.Graph(data.spec)
  chosen = blocks.choose(args.to, graph.layers, args.layers)
  blocks.check_heads(args.heads, graph.layers, chosen)
  graph.restore(path)
  biases = graph.biases()
  mixed = bool(args.heads)
  settings.choose(blocks.entries(graph.layers, {
      name: f"{notation}+V" if mixed else notation
      for name, notation in chosen.items()}), blocks.lengths(graph.layers), mixed)
  new = reading.Graph(data.spec, summed=False)
  print(f"Reading {args.batches} batches of {args.batch_size} rows of {data.name}.")
  found = means.gather(map(graph.sums, data.batches(args.batches)), graph.layers)
  made = targets.variables(graph.layers, chosen, found, biases, new.shapes)
  variables = {name: value for each in made.values()
               for name, value in each.variables.items()}
  if mixed:
    for name in chosen:
      layer = graph.layers[name]
      variables[f"{layer.place}alpha"] = targets.alpha(
          [head in args.heads for head in range(layer.heads)])
  writing.write(path, args.output, new.shapes, variables)
  print(table(found, made, chosen))
  _say(found, biases, chosen)
  print(f"{args.output} has the model of step {step} with {args.to}.")


def table(found: dict[str, means.Means], made: dict[str, targets.Found],
          chosen: dict[str, str]) -> str:
  """Returns a table of the heads: how much of each one's attention is constant."""
  lines = [["layer", "head", "to", "entropy of the mean", "mean entropy", "divergence"]]
  for name, notation in chosen.items():
    logits = made[name].logits
    if logits is None:
      continue
    constant, single = found[name].divergence(logits), found[name].entropy()
    for head in range(len(single)):
      lines.append([name, str(head), notation,
                    f"{constant[head] + single[head]:.3f}", f"{single[head]:.3f}",
                    f"{constant[head]:.3f}"])
  return tabular.markdown(lines)


def _say(found, biases, chosen):
  """Prints what the tables leave out."""
  for name in chosen:
    never = int((found[name].pairs == 0).sum())
    print(f"{name}: {never} of {found[name].pairs.size} pairs of positions were never "
          f"seen; their logit is {targets.FLOOR:.3f}, as of a weight of 1e-9.")
  if biases:
    print("T5's relative position bias stays in the model, and is subtracted from the "
          "tables.")


def _parser():
  parser = argparse.ArgumentParser(
      prog="calibrate", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--model_dir", required=True, metavar="V", help="the folder of the trained model")
  add("--to", required=True, metavar="R", help="what takes the place of V")
  add("--output", required=True, metavar="DIR", help="a new folder, for the result")
  add("--layers", type=lambda text: text.split(","), default=[], metavar="A,B",
      help="change only these, as encoder/0,decoder (default: all)")
  add("--heads", type=_heads, default=[], metavar="N,M",
      help="change only these heads (default: all)")
  add("--task", metavar="TASK", help="a task or mixture (default: the model's)")
  add("--batches", type=arguments.positive, default=100, metavar="N",
      help="how many batches to read (default: %(default)s)")
  add("--batch_size", type=arguments.positive, default=8, metavar="N",
      help="the rows of a batch (default: %(default)s)")
  trained_model.add_flags(parser)
  return parser


def _heads(text):
  return [arguments.not_negative(each) for each in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the folder."""
  args = _parser().parse_args(argv)
  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  with messages.ending("calibrate"):
    run(args)


if __name__ == "__main__":
  main()
