"""The one SentencePiece model that every task of this package shares.

In a gin file:

  synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "/path/of/spm.model"

or in the environment, which the gin file overrides:

  SYNTHESIZER_MTF_VOCAB=/path/of/spm.model

or neither, for T5's own vocabulary, which lies in cloud storage. One of one's
own is made by `python -m synthesizer_mtf.tools.train_vocabulary`. "bytes" in the
place of a path is ByT5's vocabulary, seqio's `ByteVocabulary`.

Sentinels, which stand for the spans that span corruption takes out, are 100 ids
after the pieces, as T5's, the first one last; or those that the model has built
in as pieces <extra_id_0>, <extra_id_1>, ...; bytes have none, and the last 100 stand
for spans, as in ByT5. Where a text needs more, they take the
places up to the next multiple of 128, which Mesh's tables have and nothing else
uses: 28 with T5's 32,000 pieces. For more, make the vocabulary and so the model
larger:

  synthesizer_mtf.tasks.vocabulary.extra_ids = 256

The first 100 keep their ids.
"""

import functools
import hashlib
import os
import re

import gin
from google.protobuf import message
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import lines
import t5.data
import tensorflow.compat.v2 as tf

EXTRA_IDS = t5.data.DEFAULT_EXTRA_IDS
VARIABLE = "SYNTHESIZER_MTF_VOCAB"
PARAMETER = "synthesizer_mtf.tasks.vocabulary.sentencepiece_model"
EXTRA_IDS_PARAMETER = "synthesizer_mtf.tasks.vocabulary.extra_ids"
BYTES = "bytes"

_SENTINEL = re.compile("\u2581?<extra_id_([0-9]+)>")
# What Mesh rounds the size of its tables up to a multiple of, and its default.
_VOCAB_DIVISOR = ("transformer.Unitransformer.vocab_divisor", 128)


@gin.configurable("vocabulary", module="synthesizer_mtf.tasks")
def _chosen(sentencepiece_model=None, extra_ids=None):
  """Returns (where the path is from, path, extra ids); gin passes the arguments."""
  if extra_ids is not None and not checks.is_whole(extra_ids, 0):
    raise checks.Error(f"`{EXTRA_IDS_PARAMETER}` is {extra_ids!r} but must be a whole "
                       "number of at least 0; change it.")
  if sentencepiece_model is not None:
    if not isinstance(sentencepiece_model, str):
      raise checks.Error(f"`{PARAMETER}` is {sentencepiece_model!r}; {_remedy()}")
    return f"`{PARAMETER}`", sentencepiece_model, extra_ids
  if os.environ.get(VARIABLE):
    return (f"the environment variable {VARIABLE}", os.environ[VARIABLE], extra_ids)
  return f"T5's default for `{PARAMETER}`", t5.data.DEFAULT_SPM_PATH, extra_ids


def chosen() -> seqio.Vocabulary:
  """Returns the vocabulary that is chosen now: `Pieces` or `Bytes`."""
  return load(*_chosen())


class Pieces(seqio.SentencePieceVocabulary):
  """A SentencePiece model, with its sentinels.

  Attributes:
    added: how many of these come after the model's own ids.
    sentinels: the ids of <extra_id_0>, <extra_id_1>, ..., a list.
    identity: tells this model from others, a string.
  """

  def __init__(self, origin: str, path: str, extra_ids: int | None):
    """Loads the model; for the arguments see `load`."""
    content = _read(origin, path)
    self._tokenizer = sentencepiece.SentencePieceProcessor()
    try:
      model = sentencepiece_model_pb2.ModelProto.FromString(content)
      own = len(model.pieces)
      self.sentinels = _add_sentinels(model, f"{origin} is {path!r}", extra_ids)
      self._sp_model = model.SerializeToString()
      self._tokenizer.LoadFromSerializedProto(self._sp_model)
    except (message.DecodeError, RuntimeError) as error:
      raise checks.Error(
          f"{origin} is {path!r}, which is not a SentencePiece model; "
          f"{_remedy()}") from error
    _check_ids(origin, path, self._tokenizer)
    self.added = len(model.pieces) - own
    self.identity = (
        f"SentencePiece model of SHA-256 {hashlib.sha256(content).hexdigest()}")
    super().__init__(path, len(self.sentinels))

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    return self._tokenizer

  @property
  def sp_model(self) -> bytes:
    return self._sp_model


class Bytes(seqio.ByteVocabulary):
  """ByT5's vocabulary.

  Attributes:
    sentinels: the ids that stand for spans, a list.
    identity: tells this vocabulary from others, a string.
  """

  def __init__(self, extra_ids: int | None):
    """Takes the number of ids after the bytes; 0 if None."""
    super().__init__(extra_ids or 0)
    last = self.vocab_size - 1
    self.sentinels = list(range(last, last - EXTRA_IDS, -1))
    self.identity = f"bytes of UTF-8 and {self.extra_ids} more ids"


class TaskVocabulary(seqio.SentencePieceVocabulary):
  """A vocabulary that is chosen at each use.

  Tasks are registered when their module is imported, which is before gin is
  parsed, so the path cannot be fixed in the constructor.
  """

  def __init__(self):
    super().__init__("", EXTRA_IDS)

  @property
  def sentencepiece_model_file(self) -> str:
    return _chosen()[1]

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    return self._pieces().tokenizer

  @property
  def sp_model(self) -> bytes:
    return self._pieces().sp_model

  def _pieces(self):
    if isinstance(chosen(), Bytes):
      raise checks.Error(
          f"{_chosen()[0]} is {BYTES!r}, which has no pieces of words as this task "
          "needs them; choose another task, or a SentencePiece model.")
    return chosen()

  def load_model(self) -> None:
    chosen()

  @property
  def extra_ids(self) -> int:
    return chosen().extra_ids

  @property
  def bos_id(self) -> int | None:
    return chosen().bos_id

  @property
  def eos_id(self) -> int:
    return chosen().eos_id

  @property
  def unk_id(self) -> int:
    return chosen().unk_id

  @property
  def vocab_size(self) -> int:
    return chosen().vocab_size

  @property
  def _base_vocab_size(self):
    return chosen()._base_vocab_size

  def _encode(self, s):
    return chosen()._encode(s)

  def _decode(self, ids):
    return chosen()._decode(ids)

  def _encode_tf(self, s):
    return chosen()._encode_tf(s)

  def _decode_tf(self, ids):
    return chosen()._decode_tf(ids)

  def identity(self) -> str:
    """Returns what tells the ids of this vocabulary from those of others."""
    return chosen().identity

  def sentinel_ids(self) -> list[int]:
    """Returns the ids that may stand for spans, in the order of their use.

    After those that have names come the ids that are left in Mesh's tables.
    """
    divisor = gin_files.bound(*_VOCAB_DIVISOR)
    size = self.vocab_size
    return [*chosen().sentinels, *range(size, -(-size // divisor) * divisor)]

  def __eq__(self, other: object) -> bool:
    if isinstance(other, TaskVocabulary):
      return True
    path, extra_ids = _chosen()[1:]
    if path == BYTES:
      return other == seqio.ByteVocabulary(extra_ids or 0)
    return other == seqio.SentencePieceVocabulary(
        path, EXTRA_IDS if extra_ids is None else extra_ids)


def features() -> dict[str, seqio.Feature]:
  """Returns the features of a task with inputs and targets, as T5's are."""
  return {
      "inputs": seqio.Feature(TaskVocabulary(), add_eos=True, required=False),
      "targets": seqio.Feature(TaskVocabulary(), add_eos=True),
  }


@functools.cache
def load(origin: str, path: str, extra_ids: int | None = None) -> seqio.Vocabulary:
  """Returns `Pieces` or `Bytes`.

  Args:
    origin: what chose the path, for the message.
    path: path of a SentencePiece model, and cloud storage counts; or "bytes".
    extra_ids: how many sentinels there shall be; None for those that are built in
      or, without any, T5's 100.

  Raises:
    ValueError: the file is missing, or not a model, or not one that T5's
      trainer can use.
  """
  return Bytes(extra_ids) if path == BYTES else Pieces(origin, path, extra_ids)


def _read(origin, path):
  """Returns the bytes of a file."""
  checks.check_regular_file(origin, path)
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      return f.read()
  except tf.errors.OpError as error:
    raise checks.Error(
        f"{origin} is {path!r}, which cannot be read "
        f"({lines.reason(error)}); {_remedy()}") from error


def _check_ids(origin, path, tokenizer):
  ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
  if ids != (0, 1, 2):
    raise checks.Error(
        f"{origin} is {path!r}, whose ids of padding, end of sequence and "
        f"unknown are {ids}, but T5 needs (0, 1, 2); train the model with "
        "pad_id=0, eos_id=1, unk_id=2, bos_id=-1, as "
        "python -m synthesizer_mtf.tools.train_vocabulary does.")


def _add_sentinels(model, which, extra_ids):
  """Adds pieces to a model; returns the ids of all sentinels.

  The first 100 are numbered from the last one down, as seqio does it for T5, and
  others up, so that no id depends on how many there are.

  Args:
    model: a `ModelProto`.
    which: names the model in messages.
    extra_ids: as that of `load`.
  """
  found = {}
  for i, piece in enumerate(model.pieces):
    if match := _SENTINEL.fullmatch(piece.piece):
      found[int(match[1])] = i
  built_in = len(found)
  if set(found) != set(range(built_in)):
    raise checks.Error(
        f"{which}, whose pieces <extra_id_N> are not numbered from 0 on but "
        f"{sorted(found)}; {_remedy()}")
  if extra_ids is None:
    extra_ids = built_in or EXTRA_IDS
  if extra_ids < built_in:
    raise checks.Error(
        f"`{EXTRA_IDS_PARAMETER}` is {extra_ids}, but {which}, which has "
        f"{built_in} built in; set it to as many or more.")
  first = [] if built_in else range(min(extra_ids, EXTRA_IDS))
  for number in (*reversed(first), *range(built_in + len(first), extra_ids)):
    found[number] = len(model.pieces)
    model.pieces.add(
        piece=f"\u2581<extra_id_{number}>", score=0.0,
        type=sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED)
  return [found[number] for number in range(extra_ids)]


def _remedy():
  return (f"name a SentencePiece model that can be read here, by `{PARAMETER}` "
          f"in gin or by {VARIABLE} in the environment.")
