"""Limits on the length of decodes, in greedy decoding, sampling and beam search.

In Mesh TensorFlow, greedy decoding continues to the length of the inputs in
`utils.run.sequence_length`, or to `max_decode_length`. Beam search stops earlier if
`decode_length_multiplier` times the longest input of a batch plus
`decode_length_constant` is less; only beam search reads these two parameters. The
length of the targets counts in training only. But inputs and decodes of a language
model share the sum of both lengths. These limits hold unless
`synthesizer_decode_length.tokens` is bound. If the tables of the decoder are shorter,
they limit the decodes. The log says which limit holds.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.layer import SyntheticAttention
from synthesizer_mtf.t5 import classifier
import tensorflow.compat.v1 as tf

_PARAMETER = "synthesizer_decode_length.tokens"
_ROOM = "Bitransformer.decode.max_decode_length"
_BEAMS = "Bitransformer.decode.beam_size"


@gin.configurable("synthesizer_decode_length", module="synthesizer_mtf")
def bound(tokens: int | None = None) -> int | None:
  """The most tokens to decode for an example, including its end of sequence.

  Args:
    tokens: an integer; None for the limits of T5's and Mesh's own parameters.

  Returns:
    tokens.

  Raises:
    ValueError: it is not a positive integer.
  """
  if tokens is not None:
    checks.check_whole(_PARAMETER, tokens)
  return tokens


def predict_fn(model: Any, given: Callable[..., mtf.Tensor] | None, scores: bool,
               length: int | None = None) -> Callable[..., mtf.Tensor] | None:
  """A function for `utils.run.predict_fn` that decodes the bound number of tokens.

  Args:
    model: the model that decodes.
    given: the binding of `utils.run.predict_fn`, or None.
    scores: whether given targets are scored instead.
    length: the length of the inputs, if it is known.

  Returns:
    given, if nothing is bound and the decoder's tables are long enough, or nothing is
    decoded; else a function of the same arguments.

  Raises:
    ValueError: both are bound, or tokens is not a positive integer.
  """
  tokens = bound()
  if scores or isinstance(model, classifier.EncoderClassifier):
    return given
  if tokens is None:
    most, _ = _of_tables(model)
    if given is not None or most is None or most >= (_room() or length or 0):
      return given
    return lambda model, features, variable_dtype: model.decode(
        features["inputs"], variable_dtype=variable_dtype, max_decode_length=most)
  if given is not None:
    raise checks.Error(
        f"`utils.run.predict_fn` is bound, which decodes in its own way, and "
        f"`{_PARAMETER}` is {tokens}; leave out one of them.")
  return lambda model, features, variable_dtype: _decoded(
      model, features["inputs"], variable_dtype, tokens)


def _room():
  return gin_files.bound(_ROOM, None)


def _of_tables(model):
  """The length of the decoder's shortest table, and the parameter that sets it.

  Both are None without tables, or if they repeat.
  """
  if not isinstance(model, transformer.Bitransformer):
    return None, None
  functions = [each for layer in model.decoder.layer_stack.layers
               if isinstance(layer, SyntheticAttention)
               for each in layer.mixture.synthesizers]
  return min(((each.max_length, each.parameter("max_length")) for each in functions
              if isinstance(each, base.LengthTables) and not each.tile_length),
             default=(None, None))


def _decoded(model, inputs, variable_dtype, tokens):
  """Decodes ids <int32>[batch, length] as Mesh does, but limited to `tokens`.

  A language model continues its inputs.
  """
  if isinstance(model, transformer.Unitransformer):
    return model.sample_autoregressive(
        mtf.pad(inputs, [0, tokens], inputs.shape.dims[-1].name), max_steps=tokens,
        variable_dtype=variable_dtype, remove_partial_sequences=True)
  return model.decode(
      inputs, variable_dtype=variable_dtype, max_decode_length=tokens,
      decode_length_multiplier=0.0, decode_length_constant=tokens)


def with_logged_limit(model_fn: Callable[..., Any], model: Any,
                      sequence_length: Mapping[str, int]) -> Callable[..., Any]:
  """Makes an Estimator's `model_fn` log the longest decodes.

  Args:
    model_fn: the result of `utils.tpu_estimator_model_fn`.
    model: the model that decodes.
    sequence_length: a dict with the lengths of "inputs" and "targets".
  """
  def telling(features, labels, mode, params=None, config=None):
    if mode == tf.estimator.ModeKeys.PREDICT and not isinstance(
        model, classifier.EncoderClassifier):
      _check_beams(model)
      logging.info(_sentence(model, sequence_length))
    return model_fn(features, labels, mode, params, config)

  return telling


def _check_beams(model):
  """Checks that there are as many tokens as beams; Mesh would search for long."""
  beams = gin_files.bound(_BEAMS, 1)
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
    total = sequence_length["inputs"] + sequence_length["targets"]
    return (f"Inputs and decodes have at most {total} tokens together, the sum of "
            f"`utils.run.sequence_length`; `{_PARAMETER}` bounds decodes alone.")
  length, source = ((sequence_length["inputs"], "the length of the inputs")
                    if room is None else (room, f"`{_ROOM}`"))
  most, parameter = _of_tables(model)
  if most is not None and most < length:
    return (f"Decodes have at most {most} tokens, by `{parameter}` in the decoder, "
            f"which is less than {length}, {source}.")
  return (f"Decodes have at most {length} tokens, by {source}{_of_beam_search()}; "
          f"`{_PARAMETER}` sets another bound.")


def _of_beam_search():
  """The further limit of beam search, in words; "" if decoding is greedy."""
  if gin_files.bound("Bitransformer.decode.beam_size", 1) == 1:
    return ""
  multiplier, constant = (
      gin_files.bound(f"Bitransformer.decode.decode_length_{name}", default)
      for name, default in (("multiplier", 1.5), ("constant", 10)))
  return f", and {multiplier} times the longest input of a batch, plus {constant}"
