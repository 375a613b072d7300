"""Hugging Face's `tokenizer.json`, whose ids are those of our vocabulary."""

import base64
import json
import re
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from synthesizer_mtf.tasks import vocabulary

FILE = "tokenizer.json"

# The types of SentencePiece models that Hugging Face's tokenizers can have.
KINDS = ("UNIGRAM", "BPE")

_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
_BLANK = "\u2581"


def kind(pieces: vocabulary.Pieces) -> str:
  """Returns the type of a SentencePiece model, such as "UNIGRAM"."""
  spec = sentencepiece_model_pb2.ModelProto.FromString(pieces.sp_model).trainer_spec
  return spec.ModelType.Name(spec.model_type)


def text(pieces: vocabulary.Pieces) -> str | None:
  """Returns the text of `tokenizer.json` for a SentencePiece model and its sentinels.

  It differs from what Transformers makes of the model in two points. Pieces such as
  </s> and <pad> are never found in texts, as by SentencePiece. Sentinels are tokens
  that take the blank before them. None if the type of the model is not in `KINDS`.
  """
  if kind(pieces) not in KINDS:
    return None
  proto = sentencepiece_model_pb2.ModelProto.FromString(pieces.sp_model)
  unigram = kind(pieces) == "UNIGRAM"
  blanks = {"type": "Metaspace", "replacement": _BLANK, "prepend_scheme": "first",
            "split": True}
  cuts = _cuts(proto.pieces) if unigram else ""
  return json.dumps({
      "version": "1.0", "truncation": None, "padding": None,
      "added_tokens": [
          _token(id_, piece) for id_, piece in enumerate(proto.pieces)
          if _is_control(piece) or name(piece) != piece.piece
          or piece.type == _PIECE.USER_DEFINED and not unigram],
      "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto)},
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [blanks, *([{
          "type": "Split", "pattern": {"Regex": cuts}, "invert": False,
          "behavior": "MergedWithPrevious"}] if cuts else [])]},
      "post_processor": _with_end(), "decoder": blanks,
      "model": (_unigram if unigram else _bpe)(proto)}, ensure_ascii=False) + "\n"


def name(piece: Any) -> str:
  """A token's name in Hugging Face: <extra_id_0> is a piece with a blank before it."""
  if piece.type == _PIECE.USER_DEFINED and piece.piece.startswith(_BLANK):
    return piece.piece[len(_BLANK):].replace(_BLANK, " ")
  return piece.piece


def _is_control(piece):
  return piece.type in (_PIECE.CONTROL, _PIECE.UNKNOWN)


def _token(id_, piece):
  return {"id": id_, "content": name(piece), "single_word": False,
          "lstrip": name(piece) != piece.piece, "rstrip": False, "normalized": False,
          "special": _is_control(piece)}


def _normalizers(proto):
  rules = proto.normalizer_spec.precompiled_charsmap
  return [*([{"type": "Precompiled",
              "precompiled_charsmap": base64.b64encode(rules).decode()}]
            if rules else []),
          {"type": "Strip", "strip_left": False, "strip_right": True},
          {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": _BLANK}]


def _with_end():
  """A post-processor that adds </s> to each sequence."""
  end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
  first, second = ({"Sequence": {"id": id_, "type_id": 0}} for id_ in "AB")
  return {"type": "TemplateProcessing", "single": [first, end],
          "pair": [first, end, second, end],
          "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}


def _unigram(proto):
  return {"type": "Unigram", "unk_id": 2,
          "byte_fallback": proto.trainer_spec.byte_fallback,
          "vocab": [[name(piece), piece.score] for piece in proto.pieces]}


def _bpe(proto):
  """Any two pieces merge that make a piece, those of the highest score first."""
  ids = {name(piece): id_ for id_, piece in enumerate(proto.pieces)}
  merges = [(piece.score, piece.piece[:i], piece.piece[i:]) for piece in proto.pieces
            if piece.type == _PIECE.NORMAL for i in range(1, len(piece.piece))
            if {piece.piece[:i], piece.piece[i:]} <= ids.keys()]
  merges.sort(key=lambda merge: -merge[0])
  return {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "vocab": ids,
          "byte_fallback": proto.trainer_spec.byte_fallback,
          "merges": [[left, right] for _, left, right in merges]}


def _cuts(pieces):
  """A regular expression that cuts </s> and the like where no other piece spans."""
  known = "\n".join(piece.piece for piece in pieces if piece.type == _PIECE.NORMAL)
  cuts = []
  for spelled in (piece.piece for piece in pieces if _is_control(piece)):
    places = [i for i in range(1, len(spelled)) if spelled[i - 1:i + 1] not in known
              and (spelled[i - 1] in known or spelled[i] in known)]
    cuts += [f"(?<={re.escape(spelled[:i - 1])}){re.escape(spelled[i - 1])}"
             f"(?={re.escape(spelled[i:])})" for i in places[:1]]
  return "|".join(cuts)
