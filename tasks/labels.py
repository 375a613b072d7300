"""Class labels as a vocabulary: one id for each class; and tasks with such targets."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import seqio
from synthesizer_mtf.tasks import text_to_text
from t5.evaluation import metrics
import tensorflow.compat.v2 as tf


class LabelVocabulary(seqio.Vocabulary):
  """Ids 1, 2, ... for labels; 0 for padding and for anything that is no label.

  seqio's own `UnigramVocabulary` makes tensors in its constructor, which must not
  happen when a module of tasks is imported. It also cannot decode batches.
  """

  def __init__(self, labels: Sequence[str] | Callable[[], Sequence[str]]):
    """Makes a vocabulary.

    Args:
      labels: a list of strings, or a function that returns one. The function is called
        at each use.
    """
    super().__init__()
    self._labels = labels

  @property
  def labels(self) -> tuple[str, ...]:
    return tuple(self._labels() if callable(self._labels) else self._labels)

  def identity(self) -> str:
    """Returns a string that vocabularies share only if they have the same ids."""
    return f"classes {', '.join(self.labels)}"

  @property
  def eos_id(self) -> None:
    return None

  @property
  def unk_id(self) -> int:
    return self.pad_id

  @property
  def _base_vocab_size(self):
    return 1 + len(self.labels)

  def _encode(self, s):
    return [self.labels.index(s) + 1 if s in self.labels else self.unk_id]

  def _decode(self, ids):
    return ("", *self.labels)[ids[0]]

  def _encode_tf(self, s):
    matches = tf.cast(tf.equal(s, self.labels), tf.int32)
    ids = tf.range(1, self._base_vocab_size)
    return tf.reduce_sum(matches * ids, keepdims=True)

  def _decode_tf(self, ids):
    return tf.gather(("", *self.labels), ids[..., 0])

  def __eq__(self, other: object) -> bool:
    return isinstance(other, LabelVocabulary) and self.labels == other.labels


def add(
    name: str, source: str | seqio.DataSource, *read: Callable[..., tf.data.Dataset],
    classes: Sequence[str] | Callable[[], Sequence[str]], inputs: seqio.Feature,
    **kwargs: Any,
) -> None:
  """Registers a task for `EncoderClassifier`, whose target is one class.

  Args:
    name: as in `text_to_text.add`.
    source: as in `text_to_text.add`.
    *read: as in `text_to_text.add`.
    classes: the names of the classes, as in `LabelVocabulary`.
    inputs: the feature for the inputs.
    **kwargs: as in `text_to_text.add`.
  """
  targets = LabelVocabulary(classes)
  text_to_text.add(
      name, source, *read,
      postprocess_fn=lambda text, **unused_kwargs: text,
      metric_fns=[metrics.accuracy],
      output_features={
          "inputs": inputs, "targets": seqio.Feature(targets, add_eos=False)},
      **kwargs)
