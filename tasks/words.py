"""A fixed list of words as a vocabulary: one id for each word between spaces."""

from synthesizer_mtf.tasks import labels
import tensorflow.compat.v2 as tf


class WordVocabulary(labels.LabelVocabulary):
  """Ids 1, 2, ... for words, in the order of the list; 0 for padding."""

  def identity(self) -> str:
    """Returns a string that vocabularies share only if they have the same ids."""
    return f"words {' '.join(self.labels)}"

  def _encode(self, s):
    encode = super()._encode
    return [word_id for word in s.split() for word_id in encode(word)]

  def _decode(self, ids):
    decode = super()._decode
    return " ".join(filter(None, (decode([i]) for i in ids)))

  def _encode_tf(self, s):
    words = tf.strings.split(s)
    found = tf.cast(tf.equal(words[:, tf.newaxis], self.labels), tf.int32)
    return tf.linalg.matvec(found, tf.range(1, self._base_vocab_size))

  def _decode_tf(self, ids):
    words = tf.gather(("", *self.labels), ids)
    return tf.strings.strip(tf.strings.reduce_join(words, -1, separator=" "))
