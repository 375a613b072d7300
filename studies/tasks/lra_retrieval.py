"""Pairs of papers of Long Range Arena (arXiv:2011.04006, section 2.2.3), as bytes.

The texts are those of the ACL Anthology Network, which may not be redistributed. Put
your files new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv
into one folder. Gin names this folder. If gin does not, the environment does:

  synthesizer_mtf.tasks.lra_retrieval.directory = "/data/aan"
  SYNTHESIZER_MTF_LRA_RETRIEVAL

A line holds a label (0 or 1, or 0.0 or 1.0), the names of two papers and their texts,
separated by tabs. `DualEncoderClassifier` reads both texts: each of them takes one half
of `utils.run.sequence_length`.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools

import gin
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import labels
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import text_source
import tensorflow.compat.v2 as tf

_NAME = "synth_lra_retrieval"
_PARAMETER = "synthesizer_mtf.tasks.lra_retrieval.directory"
_VARIABLE = "SYNTHESIZER_MTF_LRA_RETRIEVAL"
_FILE_NAMES = {"train": "new_aan_pairs.train.tsv",
               "validation": "new_aan_pairs.eval.tsv",
               "test": "new_aan_pairs.test.tsv"}
_COLUMNS = 5
_CLASSES = ("0", "1")
_TEXTS = ("first", "second")
_BYTES = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)


@gin.configurable("lra_retrieval", module="synthesizer_mtf.tasks")
def _chosen_directory(directory=None):
  """Returns the folder that gin binds."""
  return directory


class PaperFiles(text_source.FilesDataSource):
  """The TSV files."""
  features = (*_TEXTS, "targets")

  def files(self, split: str) -> tuple[str, Sequence[str]]:
    """See the base class."""
    return text_source.chosen_file(
        _PARAMETER, _VARIABLE, _chosen_directory(), "Long Range Arena's release",
        _FILE_NAMES[split])

  def parse(self, lines: lines_lib.Lines) -> Iterator[tuple[str, str, str]]:
    """Yields (text, text, "0" or "1"); see the base class for what is raised."""
    for row in lines:
      columns = row.split("\t")
      if len(columns) != _COLUMNS or not all(columns[-2:]):
        raise lines.error(
            f"{len(columns)} columns, but a label, two names and two texts are needed, "
            "with tabs between; add the texts to the release's names, or fetch the "
            "file again if it is cut off.")
      label = columns[0].removesuffix(".0")
      if label not in _CLASSES:
        raise lines.error(f"the label is {columns[0][:20]!r} but must be 0 or 1; "
                          "correct the line.")
      yield columns[3], columns[4], label


@seqio.map_over_dataset
def _tokenize(row):
  """Turns both texts into bytes, and the label into an id."""
  ids = {name: _BYTES.vocabulary.encode_tf(row[name]) for name in _TEXTS}
  return {**ids, "targets_pretokenized": row["targets"],
          "targets": labels.LabelVocabulary(_CLASSES).encode_tf(row["targets"])}


def _join(dataset: tf.data.Dataset,
          sequence_length: Mapping[str, int | None] | None) -> tf.data.Dataset:
  """Puts each text into its half of the inputs, cut or padded.

  Args:
    dataset: a tf.data.Dataset of `_tokenize`'s examples.
    sequence_length: a dict from feature to its length. Without one, both texts get the
      length of the longer text.
  """
  length = (sequence_length or {}).get("inputs")
  if length is not None and (length < 2 or length % 2):
    raise checks.Error(
        f"`utils.run.sequence_length` gives the inputs of {_NAME} {length} ids, but "
        "they are two texts of the same length; make it even.")
  if length is not None:
    dataset = cut_examples.report(
        dataset, dict.fromkeys(_TEXTS, length // 2), dict.fromkeys(_TEXTS, _BYTES),
        _NAME)
  return dataset.map(functools.partial(_joined, length=length),
                     num_parallel_calls=tf.data.AUTOTUNE)


def _joined(row, length):
  texts = [row.pop(name) for name in _TEXTS]
  half = length // 2 if length else tf.reduce_max([tf.size(text) for text in texts])
  texts = [tf.pad(text[:half], [[0, half - tf.size(text[:half])]]) for text in texts]
  return {**row, "inputs": tf.concat(texts, 0)}


labels.add(
    _NAME, PaperFiles(),
    preprocessors=[_tokenize, seqio.CacheDatasetPlaceholder(), _join],
    classes=_CLASSES, inputs=_BYTES,
    shuffle_buffer_size=None)  # The source shuffles.
