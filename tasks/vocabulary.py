"""The one SentencePiece model that every task of this package shares.

In a gin file:

  synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "/path/of/spm.model"

or in the environment, which the gin file overrides:

  SYNTHESIZER_MTF_VOCAB=/path/of/spm.model

or neither, for T5's own vocabulary, which lies in cloud storage. One of one's
own is made by `python -m synthesizer_mtf.tools.train_vocabulary`.

"bytes" in the place of a path is ByT5's vocabulary, seqio's `ByteVocabulary`. T5's
100 sentinels come after the model's ids; a vocabulary that has them already, as
those of mT5 and ByT5, needs

  synthesizer_mtf.tasks.vocabulary.extra_ids = 0
"""

import functools
import os

import gin
import sentencepiece
import seqio
import t5.data
import tensorflow.compat.v2 as tf

EXTRA_IDS = t5.data.DEFAULT_EXTRA_IDS
VARIABLE = "SYNTHESIZER_MTF_VOCAB"
PARAMETER = "synthesizer_mtf.tasks.vocabulary.sentencepiece_model"
EXTRA_IDS_PARAMETER = "synthesizer_mtf.tasks.vocabulary.extra_ids"
BYTES = "bytes"


@gin.configurable("vocabulary", module="synthesizer_mtf.tasks")
def _chosen(sentencepiece_model=None, extra_ids=EXTRA_IDS):
  """Returns (where the choice comes from, path, sentinels); gin passes both."""
  if not isinstance(extra_ids, int) or extra_ids < 0:
    raise ValueError(
        f"`{EXTRA_IDS_PARAMETER}` is {extra_ids!r} but must be a whole number of "
        "at least 0; change it.")
  if sentencepiece_model is not None:
    if not isinstance(sentencepiece_model, str):
      raise ValueError(f"`{PARAMETER}` is {sentencepiece_model!r}; {_remedy()}")
    return f"`{PARAMETER}`", sentencepiece_model, extra_ids
  if os.environ.get(VARIABLE):
    origin = f"the environment variable {VARIABLE}"
    return origin, os.environ[VARIABLE], extra_ids
  return f"T5's default for `{PARAMETER}`", t5.data.DEFAULT_SPM_PATH, extra_ids


def chosen() -> seqio.Vocabulary:
  """Returns the vocabulary that is chosen now."""
  return load(*_chosen())


class TaskVocabulary(seqio.SentencePieceVocabulary):
  """A vocabulary that is chosen at each use.

  Tasks are registered when their module is imported, which is before gin is
  parsed, so the path cannot be fixed in the constructor.
  """

  def __init__(self):
    super().__init__(sentencepiece_model_file="", extra_ids=EXTRA_IDS)

  @property
  def sentencepiece_model_file(self) -> str:
    return _chosen()[1]

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    return self._with_pieces().tokenizer

  @property
  def sp_model(self) -> bytes:
    return self._with_pieces().sp_model

  def _with_pieces(self):
    if isinstance(chosen(), seqio.ByteVocabulary):
      raise ValueError(
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

  def __eq__(self, other: object) -> bool:
    if isinstance(other, TaskVocabulary):
      return True
    _, path, extra_ids = _chosen()
    if path == BYTES:
      return other == seqio.ByteVocabulary(extra_ids)
    return other == seqio.SentencePieceVocabulary(path, extra_ids)


def features() -> dict[str, seqio.Feature]:
  """Returns the features of a task with inputs and targets, as T5's are."""
  return {
      "inputs": seqio.Feature(TaskVocabulary(), add_eos=True, required=False),
      "targets": seqio.Feature(TaskVocabulary(), add_eos=True),
  }


@functools.cache
def load(origin: str, path: str,
         extra_ids: int = EXTRA_IDS) -> seqio.Vocabulary:
  """Returns the loaded seqio vocabulary.

  Args:
    origin: what chose the path, for the message.
    path: path of a SentencePiece model, and cloud storage counts; or "bytes".
    extra_ids: the number of sentinels after its ids.

  Raises:
    ValueError: the file is missing, or not a model, or not one that T5's
      trainer can use.
  """
  if path == BYTES:
    return seqio.ByteVocabulary(extra_ids)
  loaded = seqio.SentencePieceVocabulary(path, extra_ids)
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      f.read(1)
    tokenizer = loaded.tokenizer
  except tf.errors.OpError as error:
    raise ValueError(
        f"{origin} is {path!r}, which cannot be read "
        f"({_reason(error)}); {_remedy()}") from error
  except Exception as error:  # protobuf and sentencepiece raise their own kinds
    raise ValueError(
        f"{origin} is {path!r}, which is not a SentencePiece model; "
        f"{_remedy()}") from error
  ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
  if ids != (0, 1, 2):
    raise ValueError(
        f"{origin} is {path!r}, whose ids of padding, end of sequence and "
        f"unknown are {ids}, but T5 needs (0, 1, 2); train the model with "
        "pad_id=0, eos_id=1, unk_id=2, bos_id=-1, as "
        "python -m synthesizer_mtf.tools.train_vocabulary does.")
  return loaded


def _reason(error):
  """Returns the first line of an error of a file system, without the path."""
  first = (error.message or type(error).__name__).splitlines()[0]
  return first.rpartition("; ")[2]


def _remedy():
  return (f"name a SentencePiece model that can be read here, by `{PARAMETER}` "
          f"in gin or by {VARIABLE} in the environment.")
