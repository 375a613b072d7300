"""T5's pre-training objective: the model predicts spans that were removed from a text.

Gin binds the share of the tokens to remove, and the mean length of the spans. The
defaults are T5's:

  synthesizer_mtf.tasks.span_corruption.noise_density = 0.15
  synthesizer_mtf.tasks.span_corruption.mean_noise_span_length = 3.0

T5's own gin files of this objective, objectives/span*.gin, have the same effect. Those
of other objectives are refused.
"""

from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from t5.data import preprocessors
import tensorflow.compat.v2 as tf

_NAME = "synthesizer_mtf.tasks.span_corruption"

# T5 numbers sentinels from the last id of a vocabulary down, even if the vocabulary has
# fewer sentinels. With a vocabulary of this size, none of these ids is a word.
_LAST = 2 ** 30
_T5 = "t5.data.preprocessors."
# T5's span corruption, as objectives/span.gin spells it: functions of `_T5`.
_SPANS = {
    "unsupervised.preprocessors": [
        "select_random_chunk", "reduce_concat_tokens", "split_tokens", "denoise"],
    "denoise.noise_mask_fn": "random_spans_noise_mask",
    "denoise.inputs_fn": "noise_span_to_unique_sentinel",
    "denoise.targets_fn": "nonnoise_span_to_unique_sentinel"}
# Our parameters, their names in T5's gin files, and the defaults there.
_SAME = {
    "noise_density": ("denoise.noise_density", gin.REQUIRED),
    "mean_noise_span_length": ("random_spans_noise_mask.mean_noise_span_length", 3.0)}

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
    ValueError: a parameter is wrong, the vocabulary has too few sentinels, or gin names
      another objective of T5's.
  """
  noise_density, mean_noise_span_length = _checked(
      noise_density, mean_noise_span_length)
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
      lambda example: {name: number(feature) for name, feature in example.items()},
      num_parallel_calls=tf.data.AUTOTUNE)


def bound_spans() -> tuple[float, float]:
  """The `noise_density` and the `mean_noise_span_length` that gin has for the task.

  Raises:
    ValueError: as `span_corruption` does for them.
  """
  return _checked(*(gin_files.bound(f"{_NAME}.{name}", gin_internals.default(
      _NAME, name)) for name in _SAME))


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


@gin.config.register_finalize_hook
def bind_as_t5(config: gin_internals.Config) -> dict[str, Any]:
  """Binds our parameters as T5's objectives/span*.gin bind T5's, if they are not bound.
  """
  ours = config.get(("", _NAME), {})
  return {f"{_NAME}.{name}": value for name, value in (_of_t5(config) or {}).items()
          if name not in ours}


def _of_t5(config):
  """Our parameters by T5's objective: {} if gin has none, None if it is another."""
  if _value(config, "unsupervised.preprocessors") is None:
    return {}
  if any(_names(_value(config, name)) != names for name, names in _SPANS.items()):
    return None
  return {name: _value(config, theirs, default)
          for name, (theirs, default) in _SAME.items()}


def _value(config, name, default=None):
  selector, _, parameter = name.rpartition(".")
  return config.get(("", _T5 + selector), {}).get(parameter, default)


def _names(value):
  """The names of T5's functions that a value of gin refers to."""
  if isinstance(value, (list, tuple)):
    return [*map(_names, value)]
  if gin_internals.is_reference(value):
    is_scoped = "/" in value.scoped_selector
    return None if is_scoped else value.configurable.selector.removeprefix(_T5)
  return getattr(value, "__name__", None)


def _as_t5(**values):
  """Our parameters; T5's, if gin is not finalized and binds T5's alone.

  Raises:
    ValueError: gin names another objective, or two values.
  """
  of_t5 = _of_t5(gin_internals.bindings())
  if of_t5 is None:
    raise checks.Error(
        "gin binds T5's `preprocessors.unsupervised`, as T5's objectives/*.gin do, to "
        "another objective than span corruption, but this task is span corruption, and "
        f"does not read it. Leave it out, and bind `{_NAME}.noise_density` and "
        f"`{_NAME}.mean_noise_span_length`; for another objective choose a task that "
        "reads it, as T5's c4_v220_unsupervised does, or synth_text_lm for a language "
        "model.")
  ours = gin_internals.bindings().get(("", _NAME), {})
  for name, value in values.items() if of_t5 else ():
    theirs = gin_files.bound(_T5 + _SAME[name][0], _SAME[name][1])
    if name in ours and theirs != value:
      raise checks.Error(
          f"`{_NAME}.{name}` is {value!r}, but T5's `preprocessors.{_SAME[name][0]}` "
          f"is {theirs!r}, and both are bound; leave one out, or make them equal.")
    values[name] = theirs
  return values.values()


def _checked(noise_density, mean_noise_span_length):
  """The two, as T5's gin files change them if gin is not finalized."""
  noise_density, mean_noise_span_length = _as_t5(
      noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  if not _is_number(noise_density) or not 0 < noise_density < 1:
    raise checks.Error(f"`{_NAME}.noise_density` is {noise_density!r} but must be a "
                       "number between 0 and 1; change it.")
  if not _is_number(mean_noise_span_length) or mean_noise_span_length < 1:
    raise checks.Error(
        f"`{_NAME}.mean_noise_span_length` is {mean_noise_span_length!r} but must "
        "be a number of tokens, 1 or more; change it.")
  return noise_density, mean_noise_span_length


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)
