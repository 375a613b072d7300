"""The one SentencePiece model that every task of this package shares.

In a gin file:

  synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "/path/of/spm.model"

or in the environment, which the gin file overrides:

  SYNTHESIZER_MTF_VOCAB=/path/of/spm.model

or neither, for T5's own vocabulary, which lies in cloud storage. One of one's
own is made by `python -m synthesizer_mtf.tools.train_vocabulary`.
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


@gin.configurable("vocabulary", module="synthesizer_mtf.tasks")
def _chosen(sentencepiece_model=None):
  """Returns (where the choice comes from, path); gin passes the argument."""
  if sentencepiece_model is not None:
    if not isinstance(sentencepiece_model, str):
      raise ValueError(f"`{PARAMETER}` is {sentencepiece_model!r}; {_remedy()}")
    return f"`{PARAMETER}`", sentencepiece_model
  if os.environ.get(VARIABLE):
    return f"the environment variable {VARIABLE}", os.environ[VARIABLE]
  return f"T5's default for `{PARAMETER}`", t5.data.DEFAULT_SPM_PATH


class TaskVocabulary(seqio.SentencePieceVocabulary):
  """A SentencePiece vocabulary whose file is chosen at each use.

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
    return _load(*_chosen()).tokenizer

  @property
  def sp_model(self) -> bytes:
    return _load(*_chosen()).sp_model

  def load_model(self) -> None:
    _load(*_chosen())

  def __eq__(self, other: object) -> bool:
    if isinstance(other, TaskVocabulary):
      return True
    return other == seqio.SentencePieceVocabulary(_chosen()[1], EXTRA_IDS)


def features() -> dict[str, seqio.Feature]:
  """Returns the features of a task with inputs and targets, as T5's are."""
  return {
      "inputs": seqio.Feature(TaskVocabulary(), add_eos=True, required=False),
      "targets": seqio.Feature(TaskVocabulary(), add_eos=True),
  }


@functools.cache
def _load(origin, path):
  """Returns the loaded seqio vocabulary.

  Args:
    origin: what chose the path, for the message.
    path: path of a SentencePiece model; cloud storage counts.

  Raises:
    ValueError: the file is missing, or not a model, or not one that T5's
      trainer can use.
  """
  loaded = seqio.SentencePieceVocabulary(path, EXTRA_IDS)
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
