"""Converts a Hugging Face folder to a checkpoint of Mesh TensorFlow."""

from collections.abc import Iterable
from collections.abc import Iterator
import hashlib
import json
import os

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.base import folders
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import attention
from synthesizer_mtf.tools.hugging_face import config
from synthesizer_mtf.tools.hugging_face import model_gin
from synthesizer_mtf.tools.hugging_face import tokenizers
from synthesizer_mtf.tools.hugging_face import weights
import tqdm

# The file that says where an imported model came from.
ORIGIN = "hugging_face.json"

_CHECKPOINT = "model.ckpt-0"
_COMMAND = "python -m synthesizer_mtf.tools.hugging_face import"


def run(folder: str, output: str,
        ignored: Iterable[str] = ()) -> list[str]:
  """Imports a model.

  Args:
    folder: the folder that Hugging Face's save_pretrained wrote.
    output: the folder to write, which is new or empty.
    ignored: unknown keys of `config.json` that do not matter.

  Returns:
    notes on what was left out or changed, a list of sentences.

  Raises:
    ValueError: `folder` does not hold a T5 model that Mesh TensorFlow can compute, or
      `output` cannot be written. In both cases nothing is written.
  """
  folders.check(output)
  settings = config.read(folder, ignored)
  tensors = weights.find(folder)
  notes = _resolve_copies(folder, settings, tensors)
  arch = config.to_architecture(folder, settings)
  tokens = tokenizers.read(folder, settings)
  tokens.check(folder, arch.vocab_size)
  blocks = attention.read_config(settings, arch.stacks)
  is_ours = settings["model_type"] == attention.SYNTHESIZER
  table = architecture.weights(arch, blocks, is_t5=not is_ours)
  _check(folder, table, tensors)
  dtype = _dtype(tensors)
  with folders.new(output) as new:
    checkpoint_writer.write(str(new), _CHECKPOINT, _values(table, tensors, dtype))
    tokens.copy(new)
    place = os.path.abspath(output)
    (new / folders.OPERATIVE).write_text(
        model_gin.operative(arch, blocks, dtype, tokens, place), encoding="utf-8")
    if arch.decoder_layers and not is_ours:
      (new / model_gin.STOCK).write_text(model_gin.stock(arch, dtype, tokens))
    (new / ORIGIN).write_text(_origin(folder, settings, tensors, dtype, notes))
  return notes + tokens.notes()


def _resolve_copies(folder, settings, tensors):
  """Removes copies of the embedding from `tensors`; returns notes.

  Afterwards `tensors` has `architecture.EMBEDDING`. It has `architecture.HEAD` only if
  the output layer is a weight of its own.
  """
  notes = []
  if tensors.pop(architecture.UNUSED, None):
    notes.append(f"{architecture.UNUSED} is left out: no model has it.")
  names = [name for name in (architecture.EMBEDDING, *architecture.EMBEDDING_COPIES)
           if name in tensors]
  if not names:
    return notes
  first, *copies = names
  for name in copies:
    _check_same(name, first, tensors)
    del tensors[name]
  tensors[architecture.EMBEDDING] = tensors.pop(first)
  if config.is_tied(settings):
    if architecture.HEAD in tensors:
      _check_same(architecture.HEAD, architecture.EMBEDDING, tensors)
      del tensors[architecture.HEAD]
  elif settings["tie_word_embeddings"] and architecture.HEAD not in tensors:
    # Transformers 5 also ties the output layer of T5 1.1, but does not scale it.
    tensors[architecture.HEAD] = tensors[architecture.EMBEDDING]
    notes.append(f"{architecture.HEAD} is a copy of {architecture.EMBEDDING}, which "
                 "Mesh TensorFlow would scale.")
  return notes


def _check_same(name, other, tensors):
  """Raises a ValueError unless two tensors are equal."""
  same = tensors[name].shape == tensors[other].shape and np.array_equal(
      tensors[name].read(), tensors[other].read())
  if not same:
    raise checks.Error(
        f"{tensors[name].file!r} has {name!r}, which must equal {other!r} in this "
        "model but does not; bring the file back, or correct tie_word_embeddings in "
        f"{config.FILE}.")


def _check(folder, table, tensors):
  """Raises a ValueError unless the weights are those of the table."""
  known = {weight.hugging_face for weight in table}
  missing = [w.hugging_face for w in table if w.hugging_face not in tensors]
  if missing:
    raise checks.Error(
        f"{folder!r} lacks {len(missing)} of the model's {len(table)} tensors, "
        f"such as {missing[0]!r}; bring the files of weights that belong to this "
        f"{config.FILE}.")
  extra = sorted(set(tensors) - known)
  if extra:
    raise checks.Error(
        f"{tensors[extra[0]].file!r} has {len(extra)} tensors that the model of "
        f"{config.FILE} does not have, such as {extra[0]!r}; such a model cannot "
        "be imported.")
  for weight in table:
    tensor = tensors[weight.hugging_face]
    if tensor.shape != weight.their_shape:
      raise checks.Error(
          f"{tensor.file!r} has {weight.hugging_face!r} in the shape "
          f"{list(tensor.shape)}, but {config.FILE} says {list(weight.their_shape)}; "
          "bring the files that belong together.")
    if tensor.dtype not in weights.DTYPES:
      raise checks.Error(
          f"{tensor.file!r} has {weight.hugging_face!r} as {tensor.dtype}, but "
          f"only {', '.join(weights.DTYPES)} can be imported; save the model in "
          "one of these.")


def _dtype(tensors):
  """Returns a dtype for the checkpoint that represents all weights exactly."""
  only_bfloat16 = {tensor.dtype for tensor in tensors.values()} == {"BF16"}
  return "bfloat16" if only_bfloat16 else "float32"


def _values(table, tensors, dtype) -> Iterator[tuple[str, np.ndarray | np.int64]]:
  """Yields (name, value) of Mesh's variables, without those of an optimizer."""
  yield "global_step", np.int64(0)
  target = weights.DTYPES[{"bfloat16": "BF16", "float32": "F32"}[dtype]]
  for weight in tqdm.tqdm(table, "Importing", unit=" weights"):
    tensor = tensors[weight.hugging_face]
    value = tensor.read()
    weights.check_finite(tensor.file, weight.hugging_face, value)
    yield weight.mesh, np.ascontiguousarray(weight.turned(value), dtype=target)


def _origin(folder, settings, tensors, dtype, notes):
  """Returns the text of the file that says where a model came from."""
  files = sorted({tensor.file for tensor in tensors.values()})
  origin = {
      "made_by": _COMMAND, "folder": os.path.abspath(folder),
      "files": {os.path.basename(file): {
          "bytes": os.path.getsize(file), "sha256": _sha256(file)}
                for file in files},
      "checkpoint": _CHECKPOINT, "dtype": dtype, "notes": notes,
      config.FILE: settings}
  return json.dumps(origin, indent=2) + "\n"


def _sha256(file):
  digest = hashlib.sha256()
  with open(file, "rb") as f:
    while part := f.read(2**20):
      digest.update(part)
  return digest.hexdigest()
