"""Converts a checkpoint of Mesh TensorFlow to a Hugging Face folder."""

import pathlib
import re
import shutil

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import card
from synthesizer_mtf.tools.hugging_face import config
from synthesizer_mtf.tools.hugging_face import tokenizers
from synthesizer_mtf.tools.hugging_face import trained
from synthesizer_mtf.tools.hugging_face import weights
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.checkpoints import warm_start_plan
import tensorflow.compat.v1 as tf

_STEP = "global_step"

# The files that compute a model in PyTorch.
_PYTORCH = pathlib.Path(__file__).with_name("pytorch")

# Names of dtypes in safetensors.
DTYPES = {"float32": "F32", "bfloat16": "BF16"}


def run(path: str, step: int, output: str, dtype: str | None = None,
        leave_out: str | None = None) -> list[str]:
  """Exports the model that gin describes.

  Args:
    path: the path of the model's checkpoint.
    step: the step of the model's checkpoint.
    output: the folder to write, which is new or empty.
    dtype: the dtype of the weights, a key of `DTYPES`; that of the checkpoint if None.
    leave_out: a regular expression for variables that Hugging Face's model does not
      have and does not need; None to raise an error for such variables.

  Returns:
    notes on the folder, a list of sentences.

  Raises:
    ValueError: PyTorch cannot compute the model, or the folder cannot be written. In
      both cases nothing is written.
  """
  folders.check(output)

  def is_left_out(name):
    return bool(leave_out and re.search(leave_out, name))

  arch, blocks = trained.read(path, step, is_left_out)
  is_t5 = arch.classifier is None and all(
      layer.is_t5 and (layer.heads, layer.d_kv) == (arch.heads, arch.d_kv)
      for layer in blocks.values())
  tokens = tokenizers.trained()
  tokens.check(path, arch.vocab_size)
  reader = tf.train.load_checkpoint(path)
  shapes = reader.get_variable_to_shape_map()
  table = architecture.weights(arch, blocks, is_t5)
  sources = _sources(path, table, shapes)
  _check_rest(path, shapes, sources, blocks, is_left_out)
  dtype = dtype or _dtype(reader, sources)

  def read(name):
    weight = by_name[name]
    return weight.turned(_read(path, reader, sources[weight.mesh]))

  by_name = {weight.hugging_face: weight for weight in table}
  with folders.new(output) as new:
    weights.write(
        new / weights.SAFETENSORS,
        {name: weight.their_shape for name, weight in sorted(by_name.items())},
        DTYPES[dtype], read)
    tokens.export(new)
    (new / config.FILE).write_text(
        config.text(arch, blocks, is_t5, dtype, tokens.path is None))
    if arch.decoder_layers:
      (new / config.GENERATION).write_text(config.generation())
    if not is_t5:
      for file in sorted(_PYTORCH.glob("*_synthesizer.py")):
        shutil.copyfile(file, new / file.name)
    (new / card.FILE).write_text(card.text(arch, blocks, is_t5, step))
  return tokens.notes() + _notes(blocks)


def _notes(blocks):
  if any(layer.final is not None and not layer.is_t5 for layer in blocks.values()):
    return ["`Mixture.final_weights` have become learned weights, alpha, which start "
            "there."]
  return []


def _read(path, reader, name):
  """Returns the value of a variable, <float32>."""
  try:
    value = np.asarray(reader.get_tensor(name), np.float32)
  except tf.errors.OpError as error:
    raise checks.Error(f"{path!r} has {name!r} damaged; bring the files back."
                       ) from error
  weights.check_finite(path, name, value)
  return value


def _sources(path, table, shapes):
  """Returns a dict from names of Mesh's variables to those in the checkpoint."""
  norms = {warm_start_plan.norm_key(name): name for name in sorted(shapes)}
  sources = {}
  for weight in table:
    name = weight.mesh if weight.mesh in shapes else norms.get(weight.mesh)
    if name is None:
      raise checks.Error(
          f"{path!r} has no variable {weight.mesh!r}, which the model that gin "
          "describes has; give the gin files that it was trained with.")
    if tuple(shapes[name]) != weight.shape:
      raise checks.Error(
          f"{path!r} has {name!r} in the shape {shapes[name]}, but the model that "
          f"gin describes needs {list(weight.shape)}; give the gin files that it was "
          "trained with.")
    sources[weight.mesh] = name
  return sources


def _check_rest(path, shapes, sources, blocks, is_left_out):
  """Raises a ValueError if the export would drop a variable that has an effect."""
  scopes = [f"{stack}/block_{block:03d}/layer_000/{layer.scope}/"
            for (stack, block), layer in blocks.items() if layer.drops]
  used = set(sources.values())
  endings = optimizer_slots.learned(
      shapes, {name: shapes[name] for name in used},
      gin_files.bound("utils.run.optimizer", None))
  rest = [name for name in sorted(shapes)
          if name not in used and name != _STEP and
          not optimizer_slots.is_slot(name, shapes, endings) and
          not is_left_out(name)]
  # Variables of a mixture's parts with weight 0 have no effect. A second relative
  # position bias has an effect.
  lost = [name for name in rest if name.endswith("relative_attention_bias") or
          not name.startswith(tuple(scopes))]
  if lost:
    raise checks.Error(
        f"{path!r} has {len(lost)} variables that the exported model does not "
        f"have, such as {lost[0]!r}; leave them out with --leave_out, a regular "
        "expression, if the model is whole without them.")


def _dtype(reader, sources):
  """Returns the dtype of the checkpoint's variables."""
  dtypes = reader.get_variable_to_dtype_map()
  only_bfloat16 = {dtypes[name] for name in sources.values()} == {tf.bfloat16}
  return "bfloat16" if only_bfloat16 else "float32"
