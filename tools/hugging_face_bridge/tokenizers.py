"""Vocabularies on both sides: SentencePiece's model, or the bytes of ByT5."""

import os
import shutil
from typing import Any
from typing import NamedTuple

from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.hugging_face_bridge import config

SPIECE = "spiece.model"
_CONFIG = "tokenizer_config.json"

# How sentinels are written in models that hold them as pieces, as mT5's does.
_SENTINELS = ("<extra_id_0>", "▁<extra_id_0>")


class Tokenizer(NamedTuple):
  """A vocabulary.

  Attributes:
    path: of SentencePiece's model; None for bytes.
    extra_ids: the number of sentinels after the model's own ids.
    size: the number of ids, with sentinels.
  """
  path: str | None
  extra_ids: int
  size: int

  def bindings(self, folder: str) -> list[str]:
    """What chooses it in gin, once it lies in `folder`."""
    lines = [f"{vocabulary.PARAMETER} = {self._place(folder)!r}"]
    if self.extra_ids != vocabulary.EXTRA_IDS:
      lines.append(f"{vocabulary.EXTRA_IDS_PARAMETER} = {self.extra_ids}")
    return lines

  def _place(self, folder):
    return os.path.join(folder, SPIECE) if self.path else vocabulary.BYTES

  def copy(self, folder: str) -> None:
    """Copies SentencePiece's model into a folder."""
    if self.path:
      shutil.copyfile(self.path, os.path.join(folder, SPIECE))


def read(folder: str, settings: dict[str, Any]) -> Tokenizer:
  """The vocabulary of a folder of Hugging Face.

  Args:
    folder: its path.
    settings: its `config.json`.

  Raises:
    ValueError: there is none, or not one that T5 can use.
  """
  path = os.path.join(folder, _CONFIG)
  more = config.read_json(path) if os.path.exists(path) else {}
  name = more.get("tokenizer_class") or settings.get("tokenizer_class") or ""
  if name.startswith("ByT5"):
    # ByT5's sentinels are the last bytes.
    return Tokenizer(None, 0, vocabulary.load(path, vocabulary.BYTES, 0).vocab_size)
  path = os.path.join(folder, SPIECE)
  if not os.path.exists(path):
    raise ValueError(
        f"{folder!r} has no {SPIECE}, the SentencePiece model, and no "
        f"{_CONFIG} that names ByT5Tokenizer; bring it there.")
  return of_model(path)


def of_model(path: str) -> Tokenizer:
  """The vocabulary of a SentencePiece model, with T5's sentinels."""
  pieces = vocabulary.load("the vocabulary", path, 0).tokenizer
  own = any(pieces.piece_to_id(s) != pieces.unk_id() for s in _SENTINELS)
  extra = 0 if own else vocabulary.EXTRA_IDS
  return Tokenizer(path, extra, pieces.vocab_size() + extra)
