"""Several answers to each input, with their scores, in files and exported models.

`synthesizer_answers.number` asks for them in modes `infer` and `export_infer`. Mode
`infer` then writes a line of JSON for each input:

  {"inputs": "one", "outputs": ["1", "eins"], "scores": [-0.1, -2.4], "lengths": [2, 3]}

A score is the sum of the log-probabilities of the output's tokens, in nats; a length is
their number. Both include the end of sequence. Beams are in the order of beam search,
samples and classes in that of the scores.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
import json
from typing import Any

from absl import logging
import gin
from mesh_tensorflow.transformer import utils
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.t5 import answer_recorder
from synthesizer_mtf.trainer.data import vocabularies
from synthesizer_mtf.trainer.model import pipeline
import tensorflow.compat.v1 as tf

_SELECTOR = "synthesizer_mtf.synthesizer_answers"
_INFER = "mesh_tensorflow.transformer.utils.infer_model"
_MODES = ("infer", "export_infer", "export")
_ASKED: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "asked", default=None)


@gin.configurable("synthesizer_answers", module="synthesizer_mtf")
def decode(estimator: tf.estimator.Estimator, vocabulary: Any,
           number: int | None = None,
           decode_fn: Callable[..., Any] = utils.decode_from_file,
           **kwargs: Any) -> None:
  """Decodes as `decode_fn` does, with several answers to each input.

  `infer_model.decode_fn` is this function if gin binds `number`.

  Args:
    estimator: a `CarefulEstimator`.
    vocabulary: a vocabulary, or a tuple of those of the inputs and the targets.
    number: the number of answers to each input, at least 1; None for one text without
      a score.
    decode_fn: the function for `infer_model.decode_fn` that reads the inputs.
    **kwargs: other arguments of `decode_fn`.

  Raises:
    ValueError: number is not a positive integer, or the decoder finds fewer answers.
  """
  if number is None:
    decode_fn(estimator, vocabulary=vocabulary, **kwargs)
    return
  with asking(number):
    decode_fn(_Lines(estimator, utils.targets_vocabulary(vocabulary)),
              vocabulary=vocabulary, **kwargs)


@contextlib.contextmanager
def asking(number: int | None) -> Iterator[None]:
  """Makes models decode so many answers within a `with` block; None changes nothing."""
  if number is not None:
    checks.check_whole(answer_recorder.PARAMETER, number)
  before = _ASKED.set(number)
  try:
    yield
  finally:
    _ASKED.reset(before)


def asked() -> int | None:
  """The number of answers that the current block asks for; None outside of one."""
  return _ASKED.get()


def bound() -> int | None:
  """The number of answers that gin binds, or None."""
  return gin_files.bound(answer_recorder.PARAMETER, None)


@gin.config.register_finalize_hook
def bind_decoding(config: gin_internals.Config) -> dict[str, Any] | None:
  """Makes mode `infer` decode by `synthesizer_answers`, if it has a number."""
  given = config.get(("", _SELECTOR), {})
  before = config.get(("", _INFER), {}).get("decode_fn")
  if given.get("number") is None or _SELECTOR in repr(before):
    return None
  bindings = {f"{_INFER}.decode_fn": gin.config.ConfigurableReference(
      _SELECTOR, evaluate=False)}
  if before is not None:
    bindings[f"{_SELECTOR}.decode_fn"] = before
  return bindings


def warn_of_unused(mode: str) -> None:
  """Warns if gin asks for answers in a mode of `utils.run` that gives none."""
  if bound() is not None and mode not in _MODES:
    logging.warning("`%s` is %r, but counts in modes %s only, not in %r.",
                    answer_recorder.PARAMETER, bound(), " and ".join(_MODES[:2]), mode)


@contextlib.contextmanager
def with_scores(call: pipeline.Call) -> Iterator[None]:
  """A step that adds "scores" and "lengths" to the predictions, within `asking`."""
  number = asked()
  if call.mode != tf.estimator.ModeKeys.PREDICT or number is None:
    yield
    return
  size = call.features.get("predict_batch_size")  # Mesh's model function removes it.
  with answer_recorder.recording(number) as recorder:
    yield
  if not recorder.tensors:
    raise checks.Error(
        f"`{answer_recorder.PARAMETER}` is {number}, but this model does not decode by "
        "our own loops (ensembles, TPUs and meshes that split a layer do not), and "
        "other loops give one text without a score; leave it out.")
  more = {name: tensor if size is None else tensor[:size]
          for name, tensor in recorder.tensors.items()}
  predictions = {**call.spec.predictions, **more}
  call.change(predictions=predictions, export_outputs={
      tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
          tf.estimator.export.PredictOutput(predictions)})


def decoding_rows(vocabulary: Any) -> Any:
  """Returns a vocabulary, or several, whose `decode_tf` takes several answers, too."""
  return vocabularies.with_decode_tf(vocabulary, _decode_rows)


def _decode_rows(vocabulary):
  """A `decode_tf` that also takes ids with more than two dimensions."""
  decode_matrix = vocabulary.decode_tf

  def decode_tf(ids):  # <int32>[..., length] -> <string>[...]
    if ids.shape.rank <= 2:
      return decode_matrix(ids)
    rows = tf.reshape(ids, [-1, ids.shape[-1]])
    return tf.reshape(decode_matrix(rows), ids.shape[:-1])

  return decode_tf


class _Lines:
  """An estimator whose outputs are lines of JSON."""

  def __init__(self, estimator, vocabulary):
    self._estimator = estimator
    self._vocabulary = vocabulary

  def predict(self, *args, **kwargs):
    for example in self._estimator.predict(*args, **kwargs):
      line = json.dumps(several(example, self._vocabulary), ensure_ascii=False)
      yield {**example, "outputs": line.encode()}


def several(example: Mapping[str, Any], vocabulary: Any) -> dict[str, Any]:
  """What a line of the file says of a prediction that `with_scores` has made."""
  shown = {"outputs": [_read(output, vocabulary) for output in example["outputs"]],
           "scores": [round(float(score), 6) for score in example["scores"]],
           "lengths": example["lengths"].tolist()}
  if isinstance(example["inputs"], bytes):
    shown = {"inputs": example["inputs"].decode("utf-8", "replace"), **shown}
  return shown


def text(example: Mapping[str, Any], vocabulary: Any) -> str:
  """The text of a prediction, by the vocabulary of the targets if it is ids."""
  return _read(example["outputs"], vocabulary)


def _read(output, vocabulary):
  if isinstance(output, np.ndarray):
    output = vocabulary.decode([int(x) for x in output])
  return output.decode("utf-8", "replace") if isinstance(output, bytes) else output
