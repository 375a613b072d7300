"""A preprocessor that reports how many examples exceed their sequence length."""

from collections.abc import Mapping
import sys

import seqio
from synthesizer_mtf import checks
import tensorflow.compat.v2 as tf


def report(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int | None] | None,
    output_features: Mapping[str, seqio.Feature],
    task: str = "the task",
) -> tf.data.Dataset:
  """Counts the examples that `append_eos_after_trim` is about to cut.

  seqio itself cuts without a message. The count, over all passes through the data,
  goes to standard error when it reaches 1, 10, 100, ...

  Args:
    dataset: a tf.data.Dataset of tokenized examples.
    sequence_length: a dict from feature to its length, or None for no limit.
    output_features: a dict from feature to `seqio.Feature`.
    task: the name of the task, which `task.Task` passes.

  Returns:
    a tf.data.Dataset of the same examples.
  """
  limits = sequence_length or {}
  room = {name: limit - int(feature.add_eos)
          for name, feature in output_features.items()
          if (limit := limits.get(name)) is not None}
  if not room:
    return dataset

  def count(state, example):
    seen, cut = state
    sizes = [tf.size(example[name]) > room[name]
             for name in room if name in example]
    is_cut = tf.reduce_any(sizes)
    seen, cut = seen + 1, cut + tf.cast(is_cut, tf.int64)
    tf.cond(is_cut & tf.reduce_any(tf.equal(cut, _TENS)),
            lambda: _print(task, cut, seen, sequence_length), tf.no_op)
    return (seen, cut), example

  zero = tf.constant(0, tf.int64)
  return dataset.scan((zero, zero), count)


_TENS = [10 ** power for power in range(18)]


def _print(task, cut, seen, sequence_length):
  return tf.print(
      "Cut to sequence_length", str(dict(sequence_length)) + ":", cut, "of",
      seen, f"examples of {task} so far; raise "
      f"`{checks.called('utils.run.sequence_length')}` to keep all.",
      output_stream=sys.stderr)
