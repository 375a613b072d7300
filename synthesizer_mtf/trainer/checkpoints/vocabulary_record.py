"""Records with which vocabulary a model is trained, and compares it later.

With another vocabulary of the same size, a model decodes rubbish and trains on, and no
shape differs. So training writes the file vocabulary.json into the model's folder: the
path, the SHA-256 and the size of each vocabulary. Whoever goes on with the model is
compared with it. To go on with another vocabulary on purpose, remove the file.

Folders of older versions, and those of T5's published models, have no such file. There,
nothing is compared, and the next training writes it.
"""

import hashlib
import json
import os
from typing import Any

from absl import logging
from mesh_tensorflow.transformer import utils
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
import tensorflow.compat.v1 as tf

NAME = "vocabulary.json"
# The environment variable that names the vocabulary of our tasks.
VARIABLE = "SYNTHESIZER_MTF_VOCAB"

_BYTES = "bytes"  # As a path, it names ByT5's vocabulary in tasks/vocabulary.py.
_NOTHING = {"path": None, "sha256": None, "size": None}

# From "inputs" and "targets" to the entries of a vocabulary.
Record = dict[str, dict[str, Any]]


def describe(vocabulary: Any) -> Record:
  """Makes the record of a vocabulary, or of one for inputs and one for targets."""
  return {"inputs": _entries(utils.inputs_vocabulary(vocabulary)),
          "targets": _entries(utils.targets_vocabulary(vocabulary))}


def _entries(vocabulary):
  path = (vocabulary.sentencepiece_model_file
          if isinstance(vocabulary, seqio.SentencePieceVocabulary) else None)
  return {"path": path, "sha256": _digest(vocabulary, path),
          "size": vocabulary.vocab_size}


def _digest(vocabulary, path):
  """What the ids stand for: a digest of the model's file; None if this is not known.

  Extra ids are not part of it, as they follow the model's own ids.
  """
  if path == _BYTES or isinstance(vocabulary, seqio.ByteVocabulary):
    return _BYTES
  if path is None:
    return None
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      return hashlib.sha256(f.read()).hexdigest()
  except tf.errors.OpError:  # A class of the user's own may take it from elsewhere.
    return None


def check(model_dir: str, now: Record) -> None:
  """Raises a ValueError if a folder's model was trained with another vocabulary."""
  if difference := complete.find(model_dir) and _difference(model_dir, now):
    raise checks.Error(
        f"the model in {model_dir!r} was trained with another {difference}; give it "
        "the vocabulary of its training (our tasks take it from `synthesizer_mtf.tasks."
        "vocabulary.sentencepiece_model` or SYNTHESIZER_MTF_VOCAB), or, to go on with "
        f"the other on purpose, remove {os.path.join(model_dir, NAME)}.")


def warn_if_other(checkpoint: str, now: Record) -> None:
  """Warns if a checkpoint, or a folder's, was trained with another vocabulary."""
  folder = checkpoint if tf.io.gfile.isdir(checkpoint) else os.path.dirname(checkpoint)
  if difference := _difference(folder, now):
    logging.warning("The model of the warm start, %s, was trained with another %s; so "
                    "its embeddings stand for other pieces.", checkpoint, difference)


def write(model_dir: str, now: Record) -> None:
  """Writes the record into a folder, unless it says the same already.

  Where it is not known what the ids stand for now, earlier entries stay.
  """
  before = _read(model_dir)
  if complete.find(model_dir):
    now = {key: before.get(key, entries) if entries["sha256"] is None else entries
           for key, entries in now.items()}
  if now == before:
    return
  model_folder.write_whole(
      os.path.join(model_dir, NAME), json.dumps(now, indent=2) + "\n")


def path_of(model_dir: str) -> str | None:
  """Returns the path of the one vocabulary that a folder's record names, or "bytes".

  It is None without a record, for two vocabularies, and if the environment names a
  vocabulary, which is then compared with the record.
  """
  if os.environ.get(VARIABLE):
    return None
  paths = {entries["path"] for entries in _read(model_dir).values()}
  return paths.pop() if len(paths) == 1 else None


def _difference(folder, now):
  """Says which vocabulary differs from a folder's record; None if none does."""
  before = _read(folder)
  for key, entries in now.items():
    then = before.get(key, {})
    if None not in (then.get("sha256"), entries["sha256"]) and (
        then["sha256"] != entries["sha256"]):
      return f"vocabulary of {key}: {_shown(then)}, and now it is {_shown(entries)}"
  return None


def _shown(entries):
  if entries["sha256"] == _BYTES:
    return "bytes"
  return f"{entries['path']!r} (SHA-256 {entries['sha256'][:12]}...)"


def _read(folder):
  """Returns the record of a folder; an empty dict if there is none."""
  def entries(content):
    return {key: {**_NOTHING, **content[key]} for key in content}

  return model_folder.read_record(
      os.path.join(folder, NAME), entries, "it, and the vocabulary is not compared"
      ) or {}
