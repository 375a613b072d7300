"""Logs which share of a task's pieces its SentencePiece vocabulary does not know.

T5's vocabulary lacks many characters, such as { and ő. All of them are one id, and they
vanish from what a model writes. Most vocabularies also join blanks, tabs and line
breaks, and write some characters as others (NFKC: "№ 5" becomes "No 5"), so that no
output equals such a target. None of these stops a training or an evaluation, so the log
says so.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import re
import time
from typing import NamedTuple

from absl import logging
import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.data import data_checks
import tensorflow.compat.v1 as tf
import tensorflow_datasets as tfds

_TEXTS = 256  # Enough to see a share of 1 in 10,000 pieces, in less than a second.
_AT_ONCE = 32  # Texts of one run of a session.
_SECONDS = 10  # For data far away.
_SHOWN = 5  # The most characters that the line names.
_LONGEST = 40  # The characters that the line shows of a target.
_JOINED = re.compile(r"\s\s|[\t\n\r]")


class Unkept(NamedTuple):
  """What the first texts of a task have that the vocabulary does not keep.

  Attributes:
    texts: the number of texts read.
    pieces: the number of their pieces.
    unknown: how many of these are unknown.
    characters: some unknown characters, the most frequent first.
    joined: how many texts have blanks or line breaks that the vocabulary joins.
    targets: the number of targets among the texts.
    changed: how many targets the vocabulary writes with other characters.
    change: the first of these, and how the vocabulary writes it.
  """
  texts: int = 0
  pieces: int = 0
  unknown: int = 0
  characters: Sequence[str] = ()
  joined: int = 0
  targets: int = 0
  changed: int = 0
  change: tuple[str, str] | None = None

  def sentence(self, name: str) -> str | None:
    """Says what the vocabulary of a task does not keep; None if it keeps all."""
    said = []
    if self.unknown:
      such = ", ".join(map(repr, self.characters))
      said.append(f"{self.unknown / self.pieces:.2%} of the pieces are unknown to the "
                  f"vocabulary{such and f', such as {such}'}")
    if self.joined:
      said.append(f"{self.joined / self.texts:.1%} of the texts have several blanks, "
                  "or line breaks, that the vocabulary joins to one blank")
    sentence = (
        f"In the first {self.texts} texts of {name!r}, {', and '.join(said)}. To "
        "keep them, replace them in the data, or train a vocabulary of your own "
        "(python -m synthesizer_mtf.tools.train_vocabulary)." if said else "")
    if self.change:
      before, after = (text[:_LONGEST] for text in self.change)
      sentence += (
          f"{' ' * bool(said)}The vocabulary writes {self.changed} of the first "
          f"{self.targets} targets of {name!r} with other characters, such as "
          f"{before!r} as {after!r}: no output equals them, and metrics of exact "
          "matches count them as wrong. Write them so in the data, by "
          "unicodedata.normalize('NFKC', text).")
    return sentence or None


def log(name: str, split: str = "train") -> None:
  """Logs what the vocabulary of a task or mixture does not keep, before it is used.

  A run that reads a cache does not need the data itself.

  Raises:
    ValueError: the data cannot be read. To try again later may take as long.
  """
  if any(gin_files.bound(f"mesh_{run}_dataset_fn.use_cached", False)
         for run in ("train", "eval")):
    return
  try:
    unkept = find(data_checks.subtasks(name), split)
  except checks.Error:
    raise
  except Exception as error:  # Training reads the same data, and says what is wrong.
    logging.debug("Unknown pieces are not counted: %s", error)
    return
  if sentence := unkept.sentence(name):
    (logging.warning if unkept.unknown or unkept.changed else logging.info)(
        "%s", sentence)


def find(tasks: Sequence[seqio.Task], split: str, most: int = _TEXTS) -> Unkept:
  """Reads the first texts of tasks, `most` of all together, in the order of the data.

  Only features with a SentencePiece vocabulary count, and tasks that have the split.
  """
  counts, characters = collections.Counter(), collections.Counter()
  change = None
  tasks = [task for task in tasks if split in task.splits]
  for task in tasks:
    for key, vocabulary, ids, text in _texts(task, split, -(-most // len(tasks))):
      unknown = int(np.sum(ids == vocabulary.unk_id))
      if key == "targets" and task.metric_fns:
        written = vocabulary.decode(ids.tolist())
        is_changed = not unknown and written.split() != text.split()
        counts.update(targets=1, changed=is_changed)
        change = change or ((text, written) if is_changed else None)
      counts.update(texts=1, pieces=len(ids), unknown=unknown,
                    joined=bool(_JOINED.search(text.strip())) and _joins(vocabulary))
      if unknown:
        characters.update({c: n for c, n in collections.Counter(text).items()
                           if vocabulary.unk_id in vocabulary.encode(c)})
  most_frequent = [c for c, _ in characters.most_common(_SHOWN)]
  return Unkept(characters=most_frequent, change=change, **counts)


def _texts(
    task, split, most) -> Iterator[tuple[str, seqio.Vocabulary, np.ndarray, str]]:
  """Yields (key, vocabulary, ids, text) of the features of a task's first examples."""
  vocabularies = {
      key: feature.vocabulary for key, feature in task.output_features.items()
      if isinstance(feature.vocabulary, seqio.SentencePieceVocabulary)}
  if not vocabularies:
    return
  end = time.monotonic() + _SECONDS
  with tf.Graph().as_default():
    data = task.source.get_dataset(split=split, shuffle=False)
    # Up to the cache, as T5's objectives remove the texts after it.
    data = task.preprocess_precache(data.take(most), seed=0).take(most)
    keys = [key for key in vocabularies if _is_tokenized(data.element_spec, key)]
    if not keys:
      return
    data = data.map(lambda example: {
        key: (tf.cast(example[key], tf.int64), example[_text_of(key)]) for key in keys})
    padding = {key: (np.int64(-1), "") for key in keys}
    for batch in tfds.as_numpy(data.padded_batch(_AT_ONCE, padding_values=padding)):
      for key, (ids, texts) in batch.items():
        for row, text in zip(ids, texts):
          yield key, vocabularies[key], row[row >= 0], text.decode("utf-8", "replace")
      if time.monotonic() > end:
        return


def _text_of(key):
  """The feature in which seqio's tokenizer keeps the text of another."""
  return f"{key}_pretokenized"


def _is_tokenized(spec, key):
  """Whether examples have a text beside its ids."""
  ids, text = spec.get(key), spec.get(_text_of(key))
  return (isinstance(ids, tf.TensorSpec) and isinstance(text, tf.TensorSpec) and
          ids.shape.rank == 1 and ids.dtype.is_integer and
          text.shape.rank == 0 and text.dtype == tf.string)


def _joins(vocabulary):
  return vocabulary.decode(vocabulary.encode("a  a")) != "a  a"
