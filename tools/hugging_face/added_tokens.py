"""Tokens that Hugging Face's tokenizers add to a SentencePiece model."""

import os
import re
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.hugging_face import config
from synthesizer_mtf.tools.hugging_face import fast_tokenizer

_BLANK = "\u2581"
_FILES = ("added_tokens.json", "special_tokens_map.json", "tokenizer.json")


def model(folder: str, settings: dict[str, Any], pieces: vocabulary.Pieces) -> tuple[
    bytes | None, tuple[str, ...]]:
  """Returns a SentencePiece model with the added tokens, and their names.

  A token becomes a piece with a blank before it, as T5's sentinels are, since Hugging
  Face's T5 drops the blank before an added token. `vocabulary.Pieces` finds it without
  one, too.

  Args:
    folder: a folder of Hugging Face.
    settings: what its `tokenizer_config.json` says.
    pieces: its SentencePiece model, with our sentinels.

  Returns:
    (None, ()) if the model has all tokens already, with the same ids.

  Raises:
    ValueError: SentencePiece cannot have the tokens with their ids.
  """
  files = {name: config.read_json(os.path.join(folder, name)) for name in _FILES
           if os.path.exists(os.path.join(folder, name))}
  ids = _sentinels(settings, pieces) | _ids(files, settings)
  proto = sentencepiece_model_pb2.ModelProto.FromString(pieces.sp_model)
  ours = {fast_tokenizer.name(piece): id_ for id_, piece in enumerate(proto.pieces)}
  lost = [name for name in _named(files, settings)
          if name not in ids and name not in ours]
  if lost:
    raise checks.Error(
        f"{folder!r} names the tokens {_list(lost)}, but no file gives their ids; save "
        "its tokenizer again with save_pretrained.")
  # A word of the model that is also an added token is cut in another way.
  words = {id_ for id_, piece in enumerate(proto.pieces) if piece.type == piece.NORMAL}
  others = {id_: name for name, id_ in ids.items()
            if ours.get(name) != id_ or id_ in words}
  if not others:
    return None, ()
  del proto.pieces[len(proto.pieces) - pieces.added:]
  own, taken = len(proto.pieces), {piece.piece for piece in proto.pieces}
  after = sorted((id_, name) for name, id_ in ids.items() if id_ >= own)
  if any(id_ < own or _BLANK + name in taken for id_, name in others.items()) or (
      [id_ for id_, _ in after] != list(range(own, own + len(after)))):
    raise checks.Error(
        f"{folder!r} adds the tokens {_list(others.values())} to its vocabulary, but "
        f"they are no new words with the ids after the {own} pieces of spiece.model, "
        "one by one; such a vocabulary cannot be imported.")
  for _, name in after:
    proto.pieces.add(
        piece=_BLANK + name.strip().replace(" ", _BLANK), score=0.0,
        type=sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED)
  return proto.SerializeToString(), tuple(
      name for _, name in after if not vocabulary.SENTINEL.fullmatch(name))


def _list(names):
  return ", ".join(map(repr, sorted(names)))


def _sentinels(settings, pieces):
  """The ids of T5Tokenizer's sentinels, if they are not pieces of the model."""
  extra = settings.get("extra_ids", pieces.added)
  own = len(sentencepiece_model_pb2.ModelProto.FromString(pieces.sp_model).pieces)
  last = own - pieces.added + extra - 1
  return {f"<extra_id_{i}>": last - i for i in range(extra)} if pieces.added else {}


def _ids(files, settings):
  """The ids of all tokens that the files of a tokenizer list, by name."""
  listed = settings.get("added_tokens_decoder", {})
  ids = {token["content"]: int(id_) for id_, token in listed.items()}
  for token in files.get("tokenizer.json", {}).get("added_tokens", []):
    ids[token["content"]] = token["id"]
  return {**files.get("added_tokens.json", {}), **ids}


def _named(files, settings):
  """The names of all special tokens."""
  for file in (files.get("special_tokens_map.json", {}), settings):
    for key, value in file.items():
      if re.fullmatch(r"(additional|extra)_special_tokens|\w+_token", key):
        values = value.values() if isinstance(value, dict) and (
            "content" not in value) else value if isinstance(value, list) else [value]
        for token in values:
          name = token.get("content") if isinstance(token, dict) else token
          if isinstance(name, str):
            yield name
