"""Limits on the length of decodes, in greedy decoding, sampling and beam search.

In Mesh TensorFlow, greedy decoding continues to the length of the inputs in
`utils.run.sequence_length`, or to `max_decode_length`. Beam search stops earlier if
`decode_length_multiplier` times the longest input of a batch plus
`decode_length_constant` is less; only beam search reads these two parameters. So the
texts that share a batch would decide what a text may become. Our own beam search looks
as far as this sum for the text itself, and goes on while what has not ended has the
better score. The length of the targets counts in training only. But inputs and decodes
of a language model share the sum of both lengths. These limits hold unless
`synthesizer_decode_length.tokens` is bound. If the tables of the decoder are shorter,
they limit the decodes. The log says which limit holds, and how many outputs reach it.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.layer import SyntheticAttention
from synthesizer_mtf.fast.decoding import beam_search
from synthesizer_mtf.fast.decoding import decoder
from synthesizer_mtf.t5 import classifier
import tensorflow.compat.v1 as tf

_PARAMETER = "synthesizer_decode_length.tokens"
SHARED = "synthesizer_shared_length.enabled"
_RUN = "mesh_tensorflow.transformer.utils.run"
_DECODING = ("infer", "export_infer", "export")  # Modes.
_ROOM = "Bitransformer.decode.max_decode_length"
_BEAMS = "Bitransformer.decode.beam_size"


@gin.configurable("synthesizer_decode_length", module="synthesizer_mtf")
def bound(tokens: int | None = None) -> int | None:
  """The most tokens to decode for an example, including its end of sequence.

  Args:
    tokens: None for the limits of T5's and Mesh's own parameters.

  Raises:
    ValueError: it is not a positive integer.
  """
  if tokens is not None:
    checks.check_whole(_PARAMETER, tokens)
  return tokens


@gin.configurable("synthesizer_shared_length", module="synthesizer_mtf")
def is_shared(enabled: bool = False) -> bool:
  """Whether inputs and decodes of a language model share the length of the targets.

  Args:
    enabled: False gives them the sum of both lengths, as Mesh TensorFlow does. True is
      bound if `utils.run.sequence_length` has only that of the targets.

  Raises:
    ValueError: enabled is not a boolean.
  """
  checks.check_boolean(SHARED, enabled)
  return enabled


def sharing(model_type: str | None, lengths: Any) -> Mapping[str, int] | None:
  """The lengths for decoding with a language model that has no length of inputs.

  `model_type` and `lengths` are those of `utils.run`. The lengths of both are returned,
  to be shared; None for other models, and if both are given.
  """
  if model_type != "lm" or not isinstance(lengths, Mapping) or (
      "inputs" in lengths or "targets" not in lengths):
    return None
  prime = gin_files.bound("mesh_inference_dataset_fn.priming_sequence_length", None)
  reads_task = gin_files.bound("infer_model.decode_fn", None) is (
      utils.decode_from_dataset)
  return {**lengths, "inputs": prime if reads_task and prime else lengths["targets"]}


@gin.config.register_finalize_hook
def share_length(config: gin_internals.Config) -> dict[str, Any] | None:
  """Lets a language model whose inputs have no length decode, in the command."""
  run = config.get(("", _RUN), {})
  lengths = sharing(run.get("model_type"), run.get("sequence_length"))
  if lengths is None or run.get("mode") not in _DECODING:
    return None
  return {f"{_RUN}.sequence_length": lengths, SHARED: True}


def predict_fn(model: Any, given: Callable[..., mtf.Tensor] | None, scores: bool,
               room: int = 0) -> Callable[..., mtf.Tensor] | None:
  """A function for `utils.run.predict_fn` that decodes to the limits that hold.

  Args:
    model: the model that decodes.
    given: the binding of `utils.run.predict_fn`, or None. It is returned if nothing is
      decoded.
    scores: whether given targets are scored instead.
    room: the length of the targets, by which a language model exceeds its inputs.

  Raises:
    ValueError: given is bound, and so is `tokens`, or that is not a positive integer.
  """
  tokens = bound()
  if scores or isinstance(model, classifier.EncoderClassifier):
    return given
  if given is not None and tokens is not None:
    raise checks.Error(
        f"`utils.run.predict_fn` is bound, which decodes in its own way, and "
        f"`{_PARAMETER}` is {tokens}; leave out one of them.")

  def decoding(model, features, variable_dtype):
    if given is not None:
      ids = given(model=model, features=features, variable_dtype=variable_dtype)
    else:
      ids = _decoded(model, features["inputs"], variable_dtype, tokens, room)
    _note_ends(ids)
    return ids

  return decoding


def _decoded(model, inputs, variable_dtype, tokens, room):
  """Decodes ids <int32>[batch, length]; a language model continues them."""
  if isinstance(model, transformer.Unitransformer):
    *_, dim = inputs.shape.dims
    room = max(room - dim.size, 0) if is_shared() else tokens or room
    return model.sample_autoregressive(
        mtf.pad(inputs, [0, room], dim.name) if room else inputs,
        max_steps=tokens, variable_dtype=variable_dtype, remove_partial_sequences=True)
  if tokens is None:
    return _within_limits(model, inputs, variable_dtype)
  return model.decode(
      inputs, variable_dtype=variable_dtype, max_decode_length=tokens,
      decode_length_multiplier=0.0, decode_length_constant=tokens)


def _room():
  return gin_files.bound(_ROOM, None)


def _beam_limits():
  """The number of beams, and the multiplier and the constant of their limit."""
  return (gin_files.bound(_BEAMS, 1), *(
      gin_files.bound(f"Bitransformer.decode.decode_length_{name}", default)
      for name, default in (("multiplier", 1.5), ("constant", 10))))


def depends_on_batch(model: Any, given: Callable[..., mtf.Tensor] | None,
                length: int | None) -> bool:
  """Whether the limit of a text depends on the batch that it is decoded in.

  It does in Mesh TensorFlow's beam search, and may in a function that somebody else
  has given. Such texts keep the batches of their data. The model is not on a TPU, and
  `length` is that of the inputs, if it is known.
  """
  beams, *_ = _beam_limits()
  if given is not None or isinstance(
      model, (transformer.Unitransformer, classifier.EncoderClassifier)):
    return given is not None
  return beams != 1 and bound() is None and not _searches_alone(
      model, beams, _room() or length or 0)


def _searches_alone(model, beams, length):
  """Whether our own beam search decodes, which knows no limit of a batch."""
  model = _whole(model)
  is_stock = getattr(type(model), "decode", None) is transformer.Bitransformer.decode
  return is_stock and isinstance(model.decoder, decoder.Decoder) and (
      model.decoder.can_search(
          [mtf.Dimension("beam", beams), mtf.Dimension("length", length)]))


def _whole(model):
  """The model that decodes: a teacher's student."""
  return model.student if isinstance(model, transformer.StudentTeacher) else model


def _within_limits(model, inputs, variable_dtype):
  """Decodes ids <int32>[batch, length] to Mesh's limits, but none of the batch."""
  *_, dim = inputs.shape.dims
  beams, multiplier, constant = _beam_limits()
  length = _room() or dim.size
  most, _ = _table_limit(model)
  arguments: dict[str, Any] = {"variable_dtype": variable_dtype}
  if most is not None and most < length:
    arguments["max_decode_length"] = length = most
  if beams == 1 or decoder.is_stock(inputs) or not _searches_alone(
      model, beams, length):
    return model.decode(inputs, **arguments)
  own = mtf.reduce_sum(mtf.to_float(mtf.not_equal(inputs, 0)), reduced_dim=dim)
  with beam_search.searching_alone(mtf.cast(own * multiplier + constant, tf.int32)):
    return model.decode(inputs, **arguments, decode_length_multiplier=0.0,
                        decode_length_constant=int(multiplier * dim.size + constant))


def _table_limit(model):
  """The length of the decoder's shortest table, and the parameter that sets it.

  Both are None without tables, or if they repeat.
  """
  model = _whole(model)
  if not isinstance(model, transformer.Bitransformer):
    return None, None
  tables = [function for layer in model.decoder.layer_stack.layers
            if isinstance(layer, SyntheticAttention)
            for function in layer.mixture.synthesizers
            if isinstance(function, base.LengthTables) and not function.tile_length]
  return min(((table.max_length, table.parameter("max_length")) for table in tables),
             default=(None, None))


# The tensors that tell whether each output has an end of sequence.
_ENDS: contextvars.ContextVar[list[tf.Tensor] | None] = contextvars.ContextVar(
    "ends", default=None)
REACHED = "outputs_at_the_limit"  # The name of a prediction.


def _note_ends(ids):
  """Notes which ids <int32>[batch, ..., length] have an end, once they are lowered."""
  ends = _ENDS.get()
  if ends is None or not ids.dtype.is_integer:
    return
  end = gin_files.bound("clean_decodes.eos_id", 1)
  has_end = mtf.reduce_any(mtf.equal(ids, end), reduced_dim=ids.shape.dims[-1])
  intermediates.CaptureOperation(
      [mtf.anonymize(has_end)], lambda tensor, is_tpu: ends.append(tensor),
      on_tpu=False)


@contextlib.contextmanager
def _noting_ends():
  before = _ENDS.set([])
  try:
    yield _ENDS.get()
  finally:
    _ENDS.reset(before)


@contextlib.contextmanager
def logged_limit(call: Any, model: Any, sequence_length: Mapping[str, int]
                 ) -> Iterator[None]:
  """A step that logs the length of the longest decodes, and notes who reaches it.

  The call is a `pipeline.Call`; the lengths are those of "inputs" and "targets".
  """
  if call.mode != tf.estimator.ModeKeys.PREDICT or isinstance(
      model, classifier.EncoderClassifier):
    yield
    return
  _check_beams(model)
  logging.info(_sentence(model, sequence_length))
  is_exported = "predict_batch_size" in call.features  # Mesh's function removes it.
  with _noting_ends() as ends:
    yield
  if ends and not is_exported:
    call.change(predictions={
        **call.spec.predictions, REACHED: tf.logical_not(ends[-1])})


def counted(examples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
  """Yields predictions, and logs how many outputs have reached the limit."""
  reached = total = 0
  for example in examples:
    at_limit = example.pop(REACHED, ())
    reached, total = reached + np.sum(at_limit), total + np.size(at_limit)
    yield example
  if reached:
    logging.warning(
        "%d of %d outputs ended at the limit of their length, without an end of "
        "sequence; `%s` sets another limit.", reached, total, _PARAMETER)


def _check_beams(model):
  """Checks that there are as many tokens as beams; Mesh would search for long."""
  model, (beams, *_) = _whole(model), _beam_limits()
  if not isinstance(model, transformer.Bitransformer) or not checks.is_whole(beams):
    return
  size = model.decoder.output_vocab_dim.size
  if beams > size:
    raise checks.Error(
        f"`{checks.called(_BEAMS)}` is {beams}, but the vocabulary has {size} tokens; "
        "4 beams are usual.")


def _sentence(model, sequence_length):
  tokens, room = bound(), _room()
  if tokens is not None:
    other = f" `{_ROOM}`, which is {room}, has no effect." * (room is not None)
    return f"Decodes have at most {tokens} tokens, by `{_PARAMETER}`.{other}"
  if isinstance(model, transformer.Unitransformer):
    total, source = sequence_length["targets"], "the length of the targets"
    if not is_shared():
      total += sequence_length["inputs"]
      source = "the sum of `utils.run.sequence_length`"
    return (f"Inputs and decodes have at most {total} tokens together, {source}; "
            f"`{_PARAMETER}` bounds decodes alone.")
  length, source = ((sequence_length["inputs"], "the length of the inputs")
                    if room is None else (room, f"`{_ROOM}`"))
  most, parameter = _table_limit(model)
  if most is not None and most < length:
    return (f"Decodes have at most {most} tokens, by `{parameter}` in the decoder, "
            f"which is less than {length}, {source}.")
  return (f"Decodes have at most {length} tokens, by {source}"
          f"{_further_limit(model, length)}; `{_PARAMETER}` sets another bound.")


def _further_limit(model, length):
  """The further limit of beam search, in words; "" if decoding is greedy."""
  beams, multiplier, constant = _beam_limits()
  if beams == 1:
    return ""
  if _searches_alone(model, beams, length):
    return (f". Beam search looks {multiplier} times the length of the text, plus "
            f"{constant}, ahead, and further while the best has not ended")
  return f", and {multiplier} times the longest input of a batch, plus {constant}"
