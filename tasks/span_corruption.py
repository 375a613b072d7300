"""T5's pre-training objective: the model predicts spans that were removed from a text.

Gin binds the share of the tokens to remove, and the mean length of the spans. The
defaults are T5's:

  synthesizer_mtf.tasks.span_corruption.noise_density = 0.15
  synthesizer_mtf.tasks.span_corruption.mean_noise_span_length = 3.0
"""

from collections.abc import Mapping

import gin
import numpy as np
import seqio
from synthesizer_mtf import checks
from t5.data import preprocessors
import tensorflow.compat.v2 as tf

_NAME = "synthesizer_mtf.tasks.span_corruption"

# T5 numbers sentinels from the last id of a vocabulary down, even if the vocabulary has
# fewer sentinels. With a vocabulary of this size, none of these ids is a word.
_LAST = 2 ** 30
_FAR = seqio.Feature(seqio.PassThroughVocabulary(_LAST + 1))


@gin.configurable(module="synthesizer_mtf.tasks")
def span_corruption(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature], noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
) -> tf.data.Dataset:
  """Applies T5's `span_corruption`, with sentinels that are never words.

  Args:
    dataset: a tf.data.Dataset of "targets", <int32>[length], documents.
    sequence_length: the lengths of "inputs" and "targets".
    output_features: the features of both, with a `TaskVocabulary`.
    noise_density: the share of the tokens to remove.
    mean_noise_span_length: the number of tokens of a span on average.

  Returns:
    a tf.data.Dataset of "inputs" and "targets", <int32>[length].

  Raises:
    ValueError: a parameter is wrong, or the vocabulary has too few sentinels.
  """
  _check(noise_density, mean_noise_span_length)
  ids = output_features["targets"].vocabulary.sentinel_ids()
  needed = sentinels_needed(
      sequence_length["inputs"], noise_density, mean_noise_span_length)
  if needed > len(ids):
    raise checks.Error(
        f"span corruption of {sequence_length['inputs']} inputs takes out {needed} "
        f"spans, and each needs a sentinel, but the vocabulary has {len(ids)}; raise "
        f"`{_NAME}.mean_noise_span_length`, which is {mean_noise_span_length}, lower "
        f"`{_NAME}.noise_density`, which is {noise_density}, or give a model that is "
        "trained from scratch more by "
        f"`synthesizer_mtf.tasks.vocabulary.extra_ids` = {needed}.")
  dataset = preprocessors.span_corruption(
      dataset, sequence_length, dict.fromkeys(output_features, _FAR),
      noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  table = tf.constant(ids, tf.int32)

  def number(tokens):
    index = _LAST - tokens
    is_sentinel = index < _LAST // 2
    return tf.where(
        is_sentinel, tf.gather(table, tf.where(is_sentinel, index, 0)), tokens)

  return dataset.map(
      lambda example: {name: number(each) for name, each in example.items()},
      num_parallel_calls=tf.data.AUTOTUNE)


def sentinels_needed(inputs_length: int, noise_density: float,
                     mean_noise_span_length: float) -> int:
  """Returns how many spans T5 removes from a text for inputs of this length."""
  tokens, _ = preprocessors.random_spans_helper(
      inputs_length=inputs_length, noise_density=noise_density,
      mean_noise_span_length=mean_noise_span_length,
      extra_tokens_per_span_inputs=1, extra_tokens_per_span_targets=1)
  # T5 rounds in float32, and rounds halves to even.
  noise = np.clip(np.round(np.float32(tokens) * np.float32(noise_density)),
                  1, max(tokens, 2) - 1)
  return max(1, int(np.round(noise / np.float32(mean_noise_span_length))))


def _check(noise_density, mean_noise_span_length):
  if not _is_number(noise_density) or not 0 < noise_density < 1:
    raise checks.Error(f"`{_NAME}.noise_density` is {noise_density!r} but must be a "
                       "number between 0 and 1; change it.")
  if not _is_number(mean_noise_span_length) or mean_noise_span_length < 1:
    raise checks.Error(
        f"`{_NAME}.mean_noise_span_length` is {mean_noise_span_length!r} but must "
        "be a number of tokens, 1 or more; change it.")


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)
