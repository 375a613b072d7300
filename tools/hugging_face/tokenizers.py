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
from synthesizer_mtf.tools.hugging_face import added_tokens
from synthesizer_mtf.tools.hugging_face import config
from synthesizer_mtf.tools.hugging_face import fast_tokenizer
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
    size: the number of ids, including sentinels.
    pieces: the vocabulary itself; None for bytes.
    model: SentencePiece's model, if it is not that of `path`, since it holds tokens
      that Hugging Face's tokenizer adds; else None.
    added: the names of these tokens.
  """
  path: str | None
  size: int
  pieces: vocabulary.Pieces | None = None
  model: bytes | None = None
  added: tuple[str, ...] = ()

  def bindings(self, folder: str) -> list[str]:
    """Returns the gin bindings for this vocabulary, once it is in `folder`."""
    place = os.path.join(folder, SPIECE) if self.path else vocabulary.BYTES
    lines = [f"{vocabulary.PARAMETER} = {place!r}"]
    if not self.path or not self.pieces:
      return lines
    # A rewritten model holds its sentinels, if there are any.
    sentinels = self.pieces.sentinels
    default = (sentinels or range(vocabulary.EXTRA_IDS)) if self.model else (
        vocabulary.load("the vocabulary", self.path).sentinels)
    if len(sentinels) != len(default):
      lines.append(f"{vocabulary.EXTRA_IDS_PARAMETER} = {len(sentinels)}")
    return lines

  def copy(self, folder: pathlib.Path) -> None:
    """Writes SentencePiece's model into a folder."""
    if self.model is not None:
      (folder / SPIECE).write_bytes(self.model)
    elif self.path:
      tf.io.gfile.copy(self.path, str(folder / SPIECE))

  def export(self, folder: pathlib.Path) -> None:
    """Writes the files that Hugging Face's tokenizers read into a folder."""
    self.copy(folder)
    fast = self.pieces and fast_tokenizer.text(self.pieces)
    if fast:
      (folder / fast_tokenizer.FILE).write_text(fast, encoding="utf-8")
    name = "PreTrainedTokenizerFast" if fast else (
        "T5Tokenizer" if self.path else "ByT5Tokenizer")
    (folder / CONFIG).write_text(json.dumps({
        "tokenizer_class": name, "clean_up_tokenization_spaces": False,
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
        # ByT5Tokenizer's sentinels fill up the embedding; they occur in no text.
        "extra_ids": self.pieces.added if self.pieces else BYTE_SENTINELS,
        "model_input_names": ["input_ids", "attention_mask"],
        # A text's "</s>" is not the end of a sequence.
        "split_special_tokens": True}, indent=2) + "\n")

  def check(self, place: str, rows: int) -> None:
    """Raises a ValueError if an embedding has fewer rows than this vocabulary."""
    if self.size > rows:
      raise checks.Error(
          f"{place!r} has a vocabulary of {self.size} ids, sentinels "
          f"{'and ' + ', '.join(map(repr, self.added)) + ' ' if self.added else ''}"
          f"included, but an embedding of {rows} rows; bring the vocabulary that the "
          "model was trained with.")

  def notes(self) -> list[str]:
    """Returns notes on its use with Hugging Face; each is a sentence."""
    if self.added:
      return [f"The tokenizer's added tokens {', '.join(map(repr, self.added))} are "
              f"pieces of {SPIECE} now, with their ids."]
    if not self.pieces or fast_tokenizer.kind(self.pieces) in fast_tokenizer.KINDS:
      return []
    return [f"The vocabulary is of the type {fast_tokenizer.kind(self.pieces)}, which "
            "Hugging Face's tokenizers read as UNIGRAM and cut texts differently; "
            "encode texts with sentencepiece."]


def trained() -> Tokenizer:
  """Returns the vocabulary that gin, or the environment, chooses for a trained model.

  Raises:
    ValueError: Hugging Face's tokenizers of T5 cannot have this vocabulary.
  """
  task = gin_files.bound("get_vocabulary.mixture_or_task_name", None)
  chosen = (mesh_transformer.get_vocabulary(task) if task
            else vocabulary.TaskVocabulary())
  targets, inputs = utils.targets_vocabulary(chosen), utils.inputs_vocabulary(chosen)
  if targets != inputs and not isinstance(targets, labels.LabelVocabulary):
    raise checks.Error(
        f"the task {task!r} has one vocabulary for inputs and another for targets, "
        "but Hugging Face's T5 has one; such a model cannot be exported.")
  if isinstance(inputs, vocabulary.TaskVocabulary):
    inputs = vocabulary.chosen()
  if isinstance(inputs, seqio.ByteVocabulary):
    return Tokenizer(None, inputs.vocab_size)
  if not isinstance(inputs, seqio.SentencePieceVocabulary):
    raise checks.Error(
        f"the task {task!r} has the vocabulary {inputs}, but only SentencePiece's "
        "and bytes can be exported; name one with --gin_param=\"get_vocabulary."
        f"mixture_or_task_name = None\" and `{vocabulary.PARAMETER}`.")
  path = inputs.sentencepiece_model_file
  pieces = vocabulary.load("the vocabulary", path, inputs.extra_ids)
  return Tokenizer(path, pieces.vocab_size, pieces)


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
    return Tokenizer(None, vocabulary.load(path, vocabulary.BYTES).vocab_size)
  path = os.path.join(folder, SPIECE)
  if not os.path.exists(path):
    raise checks.Error(
        f"{folder!r} has no {SPIECE}, the SentencePiece model, and no "
        f"{CONFIG} that names ByT5Tokenizer; copy it from the model that this one "
        "was trained from, as Transformers 5 writes none.")
  pieces, extra = vocabulary.load("the vocabulary", path), more.get("extra_ids")
  if extra is not None and pieces.added not in (0, extra):
    pieces = vocabulary.load("the vocabulary", path, extra)
  model, added = added_tokens.model(folder, more, pieces)
  if model is None:
    return Tokenizer(path, pieces.vocab_size, pieces)
  size = len(sentencepiece_model_pb2.ModelProto.FromString(model).pieces)
  return Tokenizer(path, size, pieces, model, added)
