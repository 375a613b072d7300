r"""Converts a model that was trained with Mesh TensorFlow's own `Synthesizer`.

  python -m synthesizer_mtf.tools.from_mesh_tensorflow THEIR_MODEL_DIR --output=DIR

DIR gets the last checkpoint, or that of --step, and an operative_config.gin, and then
trains, evaluates and decodes as any model of this package: it has the same logits. All
modes are converted: random, dense_minus, factorized, random_plus, dense_plus, and both
with alpha. What Adafactor had collected is left out, so training that continues begins
with an empty memory of gradients.

Theirs differs from the paper in packed rows: it numbers rows and columns from the
beginning of the row, not of the example, and so does the converted model. And its
`factorized` weighs keys alone, whatever the query (docs/from_mesh_tensorflow.md).
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
import tensorflow.compat.v1 as tf
import tqdm

_CONFIG = "operative_config.gin"
_LAYER = re.compile(r"^(.*/)?Synthesizer/")
_ATTENTION = re.compile(
    r"^(?:.*/)?(\w+)/(block_\d+/layer_\d+)/(Synthesizer|SelfAttention)/")
# A binding of their layer, with its scopes.
_BINDING = re.compile(r"^((?:\w+/)*)(?:\w+\.)*Synthesizer\.(\w+)\s*=\s*(.+)$", re.M)
# Their parameters that ours have under the same name, with their defaults.
_SAME = {"num_heads": "8", "key_value_size": "128", "dropout_rate": "0.0",
         "relative_attention_type": "None", "relative_attention_num_buckets": "32"}
# Their parameters that ours do not have, with the values that change nothing.
_WITHOUT = {"num_memory_heads": ("0",), "attention_kwargs": ("None", "{}"),
            "attention_func": ("None",), "fold_scaling_into_initializer": ("True",)}
# The parameter with the longest sequence, for each part, and what else it needs.
_PARTS = {"R": ["RandomLogits.max_length = {length}"],
          "FR": ["FactorizedRandomLogits.max_length = {length}",
                 "FactorizedRandomLogits.rank = 1"],
          "D": ["DenseLogits.max_length = {length}", "DenseLogits.share_query = True",
                "DenseLogits.share_heads = True"]}


def notation(names: Collection[str]) -> str:
  """Returns the notation of a layer, from its names of variables, such as "kv"."""
  part = "R" if "R" in names else "FR" if "R1" in names else "D"
  return part + ("+V" if "k" in names else "")


def convert(theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Converts the variables of one layer.

  Args:
    theirs: a dict from their names, such as "R" or "pi/kernel", to values.

  Returns:
    a dict from our names to values, all in the dtype of `o`.
  """
  ours = {name: value for name, value in theirs.items()
          if name not in ("kv", "R", "R1", "R2", "pi/kernel", "alpha")}
  if "kv" in theirs:
    ours["v"] = theirs["kv"]
  if "R" in theirs:  # [length, heads, memory_length]
    ours["R"] = theirs["R"].transpose(1, 0, 2)
  if "R1" in theirs:  # Both are [rank, heads, memory_length]: only keys count.
    ours["R2"] = (theirs["R1"] * theirs["R2"]).sum(axis=0)[:, :, np.newaxis]
    ours["R1"] = np.ones_like(ours["R2"])
  if "pi/kernel" in theirs:
    ours["W2"] = theirs["pi/kernel"]
  if "alpha" in theirs:  # sigmoid(alpha) weighs the synthesized part.
    ours["alpha"] = np.concatenate([theirs["alpha"], np.zeros_like(theirs["alpha"])])
  # Theirs keeps pi/kernel in float32, whatever the dtype of variables is.
  return {name: value.astype(theirs["o"].dtype) for name, value in ours.items()}


def config(text: str, layers: Mapping[str, Sequence[str]], lengths: Mapping[str, int],
           with_alpha: bool) -> str:
  """Returns a gin file for the converted model: theirs, and our bindings after it.

  Args:
    text: their operative_config.gin.
    layers: for each stack the notations of its attention layers, "" for a layer that
      is no `Synthesizer`.
    lengths: the table length of each part, such as {"R": 512}.
    with_alpha: whether the mixtures have weights.

  Raises:
    ValueError: their layer has an option that ours lacks.
  """
  given = [(scopes, name, value.split("#")[0].strip())
           for scopes, name, value in _BINDING.findall(text)]
  for scopes, name, value in given:
    if value not in _WITHOUT.get(name, (value,)):
      raise checks.Error(
          f"`{scopes}Synthesizer.{name}` is {value} in {_CONFIG}, which this package "
          "does not have: the model cannot be converted.")
  lines = [f"SyntheticAttention.{name} = {value}" for name, value in _SAME.items()]
  lines += [f"{scopes}SyntheticAttention.{name} = {value}"
            for scopes, name, value in given if name in _SAME]
  lines.append("SyntheticAttention.positions = 'row'")
  for part, length in sorted(lengths.items()):
    lines += [line.format(length=length) for line in _PARTS[part]]
  if any("+" in name for stack in layers.values() for name in stack):
    lines.append(f"Mixture.weights = '{'per_layer' if with_alpha else 'sum'}'")
  for stack, notations in layers.items():
    shown = [repr(name) if name else "@SelfAttention" for name in notations]
    value = shown[0] if len(set(shown)) == 1 else f"[{', '.join(shown)}]"
    lines.append(f"{stack}/synthesizer_stack.attention = {value}")
  return f"{text.rstrip()}\n\n# Takes the place of Synthesizer.\n" + "".join(
      f"{line}\n" for line in lines)


class _Model:
  """A checkpoint of theirs, layer by layer."""

  def __init__(self, path):
    self._path = path
    self._reader = tf.train.load_checkpoint(path)
    self._shapes = self._reader.get_variable_to_shape_map()
    self.names = sorted(name for name in self._shapes
                        if not optimizer_slots.is_slot(name, self._shapes))
    self.layers = {}  # From a prefix to the names of its layer.
    for name in self.names:
      place = _LAYER.match(name)
      if place:
        self.layers.setdefault(place[0], []).append(name)
    if not self.layers:
      raise checks.Error(
          f"{path!r} has no variables of Mesh TensorFlow's Synthesizer, "
          ".../Synthesizer/...; name a model that was trained with it.")

  def shapes(self):
    """Shapes of the variables of each layer, by their names in the layer."""
    return {prefix: {name[len(prefix):]: self._shapes[name] for name in names}
            for prefix, names in self.layers.items()}

  def variables(self) -> Iterator[tuple[str, np.ndarray]]:
    """Yields our names and values, a layer at a time."""
    for prefix in tqdm.tqdm(sorted(self.layers), desc="layers", disable=None):
      place = prefix.removesuffix("Synthesizer/") + "SyntheticAttention/"
      ours = convert({name[len(prefix):]: self._reader.get_tensor(name)
                      for name in self.layers[prefix]})
      yield from ((place + name, value) for name, value in ours.items())
    inside = set().union(*self.layers.values())
    for name in self.names:
      if name not in inside:
        yield name, np.asarray(self._reader.get_tensor(name))

  def stacks(self):
    """For each stack its notations in order, "" for SelfAttention."""
    shapes = self.shapes()
    stacks_: dict[str, dict[str, str]] = {}
    for name in self.names:
      match = _ATTENTION.match(name)
      if match:
        stacks_.setdefault(match[1], {})[match[2]] = (
            notation(shapes[match[0]]) if match[3] == "Synthesizer" else "")
    return {stack: [layers[place] for place in sorted(layers)]
            for stack, layers in stacks_.items() if any(layers.values())}

  def lengths(self):
    """The table length of each part."""
    lengths_ = {}
    for shapes in self.shapes().values():
      for name, part in (("R", "R"), ("R1", "FR"), ("pi/kernel", "D")):
        if name in shapes:
          lengths_[part] = shapes[name][-1]
    return lengths_

  @property
  def with_alpha(self):
    """Whether the mixtures have weights; theirs have them in all layers, or in none."""
    answers = {"alpha" in shapes for shapes in self.shapes().values() if "k" in shapes}
    if len(answers) > 1:
      raise checks.Error(
          f"{self._path!r} has mixtures with alpha and mixtures without it, which one "
          "`Mixture.weights` cannot say: the model cannot be converted.")
    return answers == {True}


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the folder."""
  with arguments.command(_parser(), argv) as args:
    notations = run(args.model_dir, args.output, args.step)
    shown = ", ".join(f"{stack} {'/'.join(dict.fromkeys(filter(None, layers)))}"
                      for stack, layers in notations.items())
    print(f"{args.output} has the model ({shown}) and {_CONFIG}.")


def run(model_dir: str, output: str, step: int | None = None) -> dict[str, list[str]]:
  """Converts a model.

  Args:
    model_dir: their folder, with checkpoints and operative_config.gin.
    output: a folder that is new or empty.
    step: the step of the checkpoint; None for the last.

  Returns:
    the notations of the attention layers of each stack.

  Raises:
    ValueError: the folder has no such model, or `output` is not empty.
  """
  folders.check(output)
  with checks.calling({"--model_dir": "THEIR_MODEL_DIR"}):
    path = trained_model.find_checkpoint(model_dir, step)
  complete.check(path)
  gin_file = os.path.join(model_dir, _CONFIG)
  if not tf.io.gfile.exists(gin_file):
    raise checks.Error(
        f"{model_dir!r} has no {_CONFIG}, which says what the model is; bring it "
        "there.")
  model = _Model(path)
  with tf.io.gfile.GFile(gin_file) as file:
    text = config(file.read(), model.stacks(), model.lengths(), model.with_alpha)
  with folders.new(output) as folder:
    checkpoint_writer.write(str(folder), os.path.basename(path), model.variables())
    (folder / _CONFIG).write_text(text, encoding="utf-8")
    record = os.path.join(model_dir, vocabulary_record.NAME)
    if tf.io.gfile.exists(record):
      tf.io.gfile.copy(record, str(folder / vocabulary_record.NAME))
  return model.stacks()


def _parser():
  parser = arguments.parser("from_mesh_tensorflow", __doc__)
  parser.add_argument("model_dir", metavar="THEIR_MODEL_DIR",
                      help="a model that t5_mesh_transformer trained with Synthesizer")
  parser.add_argument("--output", required=True, metavar="DIR",
                      help="the folder to write, which is new or empty")
  parser.add_argument("--step", type=arguments.not_negative, metavar="N",
                      help="the step of the checkpoint (default: the last)")
  return parser


if __name__ == "__main__":
  main()
