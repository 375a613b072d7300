"""The one SentencePiece model that every task of this package shares.

In a gin file:

  synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "/path/of/spm.model"

or in the environment, which the gin file overrides:

  SYNTHESIZER_MTF_VOCAB=/path/of/spm.model

If neither names a model, the tasks use T5's own vocabulary, which lies in cloud
storage. `python -m synthesizer_mtf.tools.train_vocabulary` makes a vocabulary of your
own. "bytes" in place of a path is ByT5's vocabulary, seqio's `ByteVocabulary`.

Sentinels stand for the spans that span corruption removes. As in T5, they are 100 ids
after the pieces, and the first sentinel has the last id. If the model has the pieces
<extra_id_0>, <extra_id_1>, ..., these are the sentinels instead. The byte vocabulary
has no sentinels; as in ByT5, its last 100 ids stand for spans. If a text needs more
sentinels, it takes the ids up to the next multiple of 128: 28 ids with T5's 32,000
pieces. Mesh's tables have these ids, and nothing else uses them. For still more
sentinels, make the vocabulary larger, and with it the model:

  synthesizer_mtf.tasks.vocabulary.extra_ids = 256

The first 100 sentinels keep their ids.
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

SENTINEL = re.compile("\u2581?<extra_id_([0-9]+)>")
# Mesh rounds the size of its tables up to a multiple of this parameter. 128 is its
# default.
_VOCAB_DIVISOR = ("transformer.Unitransformer.vocab_divisor", 128)


@gin.configurable("vocabulary", module="synthesizer_mtf.tasks")
def _chosen(sentencepiece_model=None, extra_ids=None):
  """Returns (what gives the path, path, extra ids); gin passes the arguments."""
  if extra_ids is not None and not checks.is_whole(extra_ids, 0):
    raise checks.Error(f"`{EXTRA_IDS_PARAMETER}` is {extra_ids!r} but must be "
                       f"{checks.integer(0)}; change it.")
  if sentencepiece_model is not None:
    if not isinstance(sentencepiece_model, str):
      raise checks.Error(f"`{PARAMETER}` is {sentencepiece_model!r}; {_remedy()}")
    return f"`{PARAMETER}`", os.path.expanduser(sentencepiece_model), extra_ids
  if path := os.environ.get(VARIABLE):
    return (f"the environment variable {VARIABLE}", os.path.expanduser(path), extra_ids)
  return f"T5's default for `{PARAMETER}`", t5.data.DEFAULT_SPM_PATH, extra_ids


def chosen() -> seqio.Vocabulary:
  """Returns the vocabulary that is chosen now: `Pieces` or `Bytes`."""
  return load(*_chosen())


class Pieces(seqio.SentencePieceVocabulary):
  """A SentencePiece model, with its sentinels.

  Attributes:
    added: the number of sentinels after the model's own ids.
    sentinels: a list of the ids of <extra_id_0>, <extra_id_1>, ...
    identity: a string that differs between models.
  """

  def __init__(self, origin: str, path: str, extra_ids: int | None):
    """Loads the model; for the arguments see `load`."""
    content = _read(origin, path)
    self._tokenizer = sentencepiece.SentencePieceProcessor()
    try:
      model = sentencepiece_model_pb2.ModelProto.FromString(content)
      own = len(model.pieces)
      self._spaced = _spaced(model)
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

  def encode(self, s: str) -> list[int]:
    return super().encode(re.sub(self._spaced, r" \1", s) if self._spaced else s)

  def encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return super().encode_tf(
        tf.strings.regex_replace(s, self._spaced, r" \1") if self._spaced else s)


class Bytes(seqio.ByteVocabulary):
  """ByT5's vocabulary.

  Attributes:
    sentinels: a list of the ids that stand for spans.
    identity: a string that differs between vocabularies.
  """

  def __init__(self, extra_ids: int | None):
    """Takes the number of ids after the bytes; 0 if None."""
    super().__init__(extra_ids or 0)
    last = self.vocab_size - 1
    self.sentinels = list(range(last, last - EXTRA_IDS, -1))
    self.identity = f"bytes of UTF-8 and {self.extra_ids} more ids"


def _of_chosen(name):
  """An attribute or a method of the vocabulary that is chosen at each use."""
  return property(lambda self: getattr(chosen(), name))


class TaskVocabulary(seqio.SentencePieceVocabulary):
  """A vocabulary that is chosen at each use.

  Tasks are registered when their module is imported. gin is parsed later, so the path
  cannot be fixed in the constructor.
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

  extra_ids = _of_chosen("extra_ids")
  bos_id = _of_chosen("bos_id")
  eos_id = _of_chosen("eos_id")
  unk_id = _of_chosen("unk_id")
  vocab_size = _of_chosen("vocab_size")
  _base_vocab_size = _of_chosen("_base_vocab_size")
  encode = _of_chosen("encode")
  _decode = _of_chosen("_decode")
  encode_tf = _of_chosen("encode_tf")
  _decode_tf = _of_chosen("_decode_tf")

  def identity(self) -> str:
    """Returns a string that vocabularies share only if they have the same ids."""
    return chosen().identity

  def sentinel_ids(self) -> list[int]:
    """Returns the ids that may stand for spans, in the order of their use.

    The named sentinels come first, and then the unused ids of Mesh's tables.
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
  """Returns the features of a task with inputs and targets, as in T5."""
  return {
      "inputs": seqio.Feature(TaskVocabulary(), add_eos=True, required=False),
      "targets": seqio.Feature(TaskVocabulary(), add_eos=True),
  }


def load(origin: str, path: str, extra_ids: int | None = None) -> seqio.Vocabulary:
  """Returns `Pieces` or `Bytes`.

  Args:
    origin: the parameter or variable that gives the path, for the message.
    path: the path of a SentencePiece model, which may lie in cloud storage; or "bytes".
    extra_ids: the number of sentinels. None for those that the model has or, if it has
      none, T5's 100.

  Raises:
    ValueError: the file is missing, or not a model, or not one that T5's
      trainer can use.
  """
  local = os.path.isfile(path)  # Of others, and missing ones, there is one version.
  return _load(origin, path, extra_ids, lines.version(path) if local else None)


@functools.cache
def _load(origin, path, extra_ids, version):
  """Loads each version of a file once."""
  del version
  return Bytes(extra_ids) if path == BYTES else Pieces(origin, path, extra_ids)


def _read(origin, path):
  """Returns the bytes of a file."""
  checks.check_regular_file(origin, path)
  if reason := checks.unreachable(path):
    raise checks.Error(
        f"{origin} is {path!r}, which cannot be read ({reason}); {_remedy()}")
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

  The first 100 are numbered downwards, as seqio does for T5, and the others upwards, so
  that no id depends on the number of sentinels.

  Args:
    model: a `ModelProto`.
    which: the name of the model in messages.
    extra_ids: as in `load`.
  """
  numbers = {}
  for i, piece in enumerate(model.pieces):
    if match := SENTINEL.fullmatch(piece.piece):
      numbers[int(match[1])] = i
  built_in = len(numbers)
  if set(numbers) != set(range(built_in)):
    raise checks.Error(
        f"{which}, whose pieces <extra_id_N> are not numbered from 0 on but "
        f"{sorted(numbers)}; {_remedy()}")
  if extra_ids is None:
    extra_ids = built_in or EXTRA_IDS
  if extra_ids < built_in:
    raise checks.Error(
        f"`{EXTRA_IDS_PARAMETER}` is {extra_ids}, but {which}, which has "
        f"{built_in} built in; set it to as many or more.")
  first = [] if built_in else range(min(extra_ids, EXTRA_IDS))
  for number in (*reversed(first), *range(built_in + len(first), extra_ids)):
    numbers[number] = len(model.pieces)
    model.pieces.add(
        piece=f"\u2581<extra_id_{number}>", score=0.0,
        type=sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED)
  return [numbers[number] for number in range(extra_ids)]


def _spaced(model):
  """A regular expression for symbols whose piece has a blank before it; or None.

  Those of an imported tokenizer are such. They take the blank before them, and may lack
  one. Sentinels need it, as in T5.
  """
  names = [piece.piece[1:].replace("\u2581", " ") for piece in model.pieces
           if piece.type == piece.USER_DEFINED and piece.piece.startswith("\u2581")
           and not SENTINEL.fullmatch(piece.piece)]
  names = sorted(map(re.escape, names), key=len, reverse=True)
  return rf"\s*({'|'.join(names)})" if names else None


def _remedy():
  return (f"name a SentencePiece model that can be read here, by `{PARAMETER}` "
          f"in gin or by {VARIABLE} in the environment.")
