"""Vocabularies on both sides: SentencePiece's model, or the bytes of ByT5."""

import json
import os
import pathlib
from typing import Any
from typing import NamedTuple

from mesh_tensorflow.transformer import utils
from sentencepiece import sentencepiece_model_pb2
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.hugging_face_bridge import config
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf

SPIECE = "spiece.model"
CONFIG = "tokenizer_config.json"

# The number of sentinels of ByT5Tokenizer.
BYTE_SENTINELS = 125


class Tokenizer(NamedTuple):
  """A vocabulary.

  Attributes:
    path: the path of SentencePiece's model; None for bytes.
    extra_ids: the number of sentinels after the model's own ids.
    size: the number of ids, including sentinels.
  """
  path: str | None
  extra_ids: int
  size: int

  def bindings(self, folder: str) -> list[str]:
    """Returns the gin bindings for this vocabulary, once it is in `folder`."""
    place = os.path.join(folder, SPIECE) if self.path else vocabulary.BYTES
    lines = [f"{vocabulary.PARAMETER} = {place!r}"]
    if self.path and (
        self.extra_ids != vocabulary.load("the vocabulary", self.path).added):
      lines.append(f"{vocabulary.EXTRA_IDS_PARAMETER} = {self.extra_ids}")
    return lines

  def copy(self, folder: pathlib.Path) -> None:
    """Copies SentencePiece's model into a folder."""
    if self.path:
      tf.io.gfile.copy(self.path, str(folder / SPIECE))

  def check(self, place: str, rows: int) -> None:
    """Raises a ValueError if an embedding has fewer rows than this vocabulary."""
    if self.size > rows:
      raise checks.Error(
          f"{place!r} has a vocabulary of {self.size} ids, sentinels included, but "
          f"an embedding of {rows} rows; bring the vocabulary that the model was "
          "trained with.")

  def notes(self) -> list[str]:
    """Returns notes on its use with Hugging Face; each is a sentence."""
    if not self.path:
      return []
    model = sentencepiece_model_pb2.ModelProto()
    with tf.io.gfile.GFile(self.path, "rb") as f:
      model.ParseFromString(f.read())
    spec = model.trainer_spec
    if spec.model_type == spec.UNIGRAM:
      return []
    kind = spec.ModelType.Name(spec.model_type)
    return [f"The vocabulary is of the type {kind}. Transformers 5 reads it as "
            "UNIGRAM and cuts texts differently; encode texts with sentencepiece, "
            "or with Transformers 4."]

  def config(self) -> str:
    """Returns the text of Hugging Face's `tokenizer_config.json`."""
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    name = "T5Tokenizer" if self.path else "ByT5Tokenizer"
    # ByT5Tokenizer's sentinels fill up the embedding; they occur in no text.
    extra_ids = self.extra_ids if self.path else BYTE_SENTINELS
    return json.dumps({"tokenizer_class": name, "extra_ids": extra_ids, **special},
                      indent=2) + "\n"


def trained() -> Tokenizer:
  """Returns the vocabulary that gin, or the environment, chooses for a trained model.

  Raises:
    ValueError: Hugging Face's tokenizers of T5 cannot have this vocabulary.
  """
  task = gin_files.bound("get_vocabulary.mixture_or_task_name", None)
  found = (mesh_transformer.get_vocabulary(task) if task
           else vocabulary.TaskVocabulary())
  targets = utils.targets_vocabulary(found)
  found = utils.inputs_vocabulary(found)
  if targets != found and not isinstance(targets, labels.LabelVocabulary):
    raise checks.Error(
        f"the task {task!r} has one vocabulary for inputs and another for targets, "
        "but Hugging Face's T5 has one; such a model cannot be exported.")
  if isinstance(found, vocabulary.TaskVocabulary):
    found = vocabulary.chosen()
  if isinstance(found, seqio.ByteVocabulary):
    return Tokenizer(None, found.extra_ids, found.vocab_size)
  if not isinstance(found, seqio.SentencePieceVocabulary):
    raise checks.Error(
        f"the task {task!r} has the vocabulary {found}, but only SentencePiece's "
        "and bytes can be exported; name one with --gin_param=\"get_vocabulary."
        f"mixture_or_task_name = None\" and `{vocabulary.PARAMETER}`.")
  return _of_pieces(vocabulary.load(
      "the vocabulary", found.sentencepiece_model_file, found.extra_ids))


def _of_pieces(pieces):
  if pieces.added > vocabulary.EXTRA_IDS:
    raise checks.Error(
        f"the vocabulary {pieces.sentencepiece_model_file!r} has {pieces.added} "
        f"sentinels after its pieces, but those beyond T5's {vocabulary.EXTRA_IDS} "
        "have other ids in Hugging Face's T5Tokenizer than here; such a model cannot "
        "be exported.")
  return Tokenizer(
      pieces.sentencepiece_model_file, pieces.added, pieces.vocab_size)


def read(folder: str, settings: dict[str, Any]) -> Tokenizer:
  """Returns the vocabulary of a Hugging Face folder.

  Raises:
    ValueError: the folder has no vocabulary, or one that T5 cannot use.
  """
  path = os.path.join(folder, CONFIG)
  more = config.read_json(path) if os.path.exists(path) else {}
  name = more.get("tokenizer_class") or settings.get("tokenizer_class") or ""
  if name.startswith("ByT5"):
    # ByT5's sentinels are the last bytes.
    return Tokenizer(None, 0, vocabulary.load(path, vocabulary.BYTES).vocab_size)
  path = os.path.join(folder, SPIECE)
  if not os.path.exists(path):
    raise checks.Error(
        f"{folder!r} has no {SPIECE}, the SentencePiece model, and no "
        f"{CONFIG} that names ByT5Tokenizer; copy it from the model that this one "
        "was trained from, as Transformers 5 writes none.")
  pieces, extra = vocabulary.load("the vocabulary", path), more.get("extra_ids")
  if extra is not None and pieces.added not in (0, extra):
    pieces = vocabulary.load("the vocabulary", path, extra)
  return _of_pieces(pieces)
