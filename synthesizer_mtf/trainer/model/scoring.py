"""What the files of scores need: one checkpoint, and the ids that a score sums over.

Mesh TensorFlow scores with one checkpoint, but its default is to wait for more. It
reads the ids of the targets after scoring: it finds padded examples by them,
counts their tokens and decodes them. But on CPUs and GPUs its graph has made text of
them before, if the vocabulary can do that in a graph. And its ids are others than those
that are scored: they begin with the inputs of a language model, and have no tokens
after the first end of sequence.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
from typing import Any

from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.data import vocabularies
from synthesizer_mtf.trainer.model import exporting
from synthesizer_mtf.trainer.model import pipeline
import tensorflow.compat.v1 as tf

_EOS = 1
# Names of predictions: whether a row has no padding or end; and nothing to score.
_FULL, _EMPTY = "targets_full", "targets_empty"

# The modes that score with one checkpoint.
MODES = ("score_from_strings", "score_from_dataset")

_RUN = "mesh_tensorflow.transformer.utils.run"


@gin.config.register_finalize_hook
def take_the_latest(config: gin_internals.Config) -> dict[str, Any] | None:
  """Scores with the latest checkpoint, unless gin names another."""
  run = config.get(("", _RUN), {})
  if run.get("mode") in MODES and run.get("eval_checkpoint_step") is None:
    return {f"{_RUN}.eval_checkpoint_step": -1}
  return None


@contextlib.contextmanager
def scored_ids(call: pipeline.Call, model_type: str) -> Iterator[None]:
  """A step that adds the ids that scores sum over to the predictions.

  The model type is that of `utils.run`; "lm" also scores the inputs of a task.
  """
  yield
  if call.mode != tf.estimator.ModeKeys.PREDICT or exporting.is_served():
    return
  names = ("inputs", "targets") if model_type == "lm" else ("targets",)
  ids = tf.concat([call.features[name] for name in names if name in call.features], -1)
  scored = _scored(ids)
  call.change(predictions={
      **call.spec.predictions, "targets": scored,
      _FULL: tf.logical_and(
          tf.not_equal(ids[:, -1], 0), tf.not_equal(ids[:, -1], _EOS)),
      _EMPTY: tf.logical_and(tf.not_equal(ids[:, 0], 0), tf.equal(scored[:, 0], 0))})


def checked(examples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
  """Yields predictions, and warns if a text that was scored may have been cut.

  Raises:
    ValueError: nothing of a text was scored.
  """
  length = "`" + checks.called("utils.run.sequence_length") + "`"
  first = None
  for number, example in enumerate(examples, 1):
    if example.pop(_EMPTY, False):
      raise checks.Error(
          f"text {number} of the targets has no token to score, as its input fills all "
          f"{len(example['targets'])} tokens of {length}; raise the length of the "
          "targets, or shorten the input.")
    if example.pop(_FULL, False) and first is None:
      first = number, len(example["targets"])
    yield example
  if first:
    logging.warning(
        "Text %d of the targets, and maybe others, fills all %d tokens of %s without "
        "an end of sequence: if it was cut, its score is that of its beginning.",
        *first, length)


def _scored(ids):  # <int32>[batch, length] -> the same
  """The positive ids of each row, followed by zeros; others count in no score."""
  ids = tf.maximum(ids, 0)
  order = tf.argsort(tf.cast(tf.equal(ids, 0), tf.int32), stable=True)
  return tf.gather(ids, order, batch_dims=1)


def keeping_ids(vocabulary: Any) -> Any:
  """Returns a vocabulary, or several, that leave ids as they are, except in exports."""
  return vocabularies.with_decode_tf(vocabulary, _decode_exported)


def _decode_exported(vocabulary):
  """`decode_tf`, which Mesh calls in a graph if it is there; only exports have it."""
  if not exporting.is_served():
    raise AttributeError("decode_tf")
  return vocabulary.decode_tf
