"""T5's decoders with loops of our own.

Up to rounding, the results are those of Mesh TensorFlow's `sample_autoregressive` and
`beam_search`. TPUs, JAX without several answers, and ensembles still use Mesh
TensorFlow's loops.
"""

import inspect
from typing import Any

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast.decoding import beam_search
from synthesizer_mtf.fast.decoding import beams
from synthesizer_mtf.fast.decoding import sampling
from synthesizer_mtf.fast.decoding import steps
from synthesizer_mtf.t5 import answers
import tensorflow.compat.v1 as tf


class Decoder(transformer.Unitransformer):
  """A `Unitransformer` that decodes by our own loops; `fast/models.py` makes it."""

  def sample_autoregressive(self, partial_sequences: mtf.Tensor,
                            **kwargs: Any) -> mtf.Tensor:
    """Samples as `Unitransformer` does, with the same gin bindings."""
    stock = super().sample_autoregressive
    if not self._can_decode(partial_sequences):
      return stock(partial_sequences, **kwargs)
    options, others = _split(
        _bound(stock.__func__, kwargs), sampling.Options)
    recorder = answers.recorder()
    if recorder is None:
      return sampling.sample(
          steps.Steps(self, partial_sequences, **others), options)
    return recorder.record(self._samples(
        recorder.number, partial_sequences, options, others))

  def _samples(self, number, ids, options, others):
    """Several samples of each row, as `answers.Answers`."""
    answers.check_samples(number, options.temperature)
    if number == 1:
      return answers.alone(sampling.sample_with_scores(
          steps.Steps(self, ids, **others), options))
    ids = answers.with_samples(ids, number)
    return answers.best_first(sampling.sample_with_scores(
        steps.Steps(self, ids, **others), options))

  def beam_search(self, inputs: mtf.Tensor, decode_length: mtf.Tensor,
                  **kwargs: Any) -> mtf.Tensor:
    """Searches as `Unitransformer` does, with gin's `beam_search.beam_search`."""
    stock = super().beam_search
    if is_stock(inputs) or not self.can_search(inputs.shape.dims[1:]):
      return stock(inputs, decode_length, **kwargs)
    arguments = {**_defaults(stock), **kwargs}
    alpha, bos_id = arguments.pop("alpha"), arguments.pop("bos_id")
    recorder = answers.recorder()
    if recorder is not None:
      answers.check_beams(recorder.number, inputs.shape.dims[-2].size)
      return recorder.record(beam_search.search_for_answers(*self._of_search(
          inputs, decode_length, alpha, bos_id, arguments, recorder.number)))
    found, _ = self._search(inputs, decode_length, alpha, bos_id, arguments)
    return mtf.gather(found, mtf.constant(inputs.mesh, 0, dtype=tf.int32),
                      inputs.shape.dims[-2])

  def _search(self, *arguments):
    """All beams, best first, and their scores."""
    return beam_search.search(*self._of_search(*arguments))

  def _of_search(self, ids, decode_length, alpha, bos_id, others, number=1):
    """The arguments of the functions of `beam_search`."""
    bound = _bound(mtf.beam_search.beam_search, {})
    parts = self._parts_of_vocabulary()
    options = beams.Options(
        alpha, bound["eos_id"], bound["stop_early"],
        parts and bound["num_prefilter"] or 2 * ids.shape.dims[-2].size, parts or 1,
        number)
    return (steps.Steps(self, ids, **others),
            beam_search.Arguments(decode_length, bos_id, options))

  def _parts_of_vocabulary(self):
    """The number of parts of the vocabulary on the mesh; None without a mesh."""
    if self.layout is None or self.mesh_shape is None:
      return None
    return mtf.tensor_dim_to_mesh_dim_size(
        self.layout, self.mesh_shape, self.output_vocab_dim)

  def _can_decode(self, ids):
    """Whether our own loops can decode these ids."""
    return not is_stock(ids) and self._has_whole(ids.shape.dims[1:])

  def can_search(self, dims: list[mtf.Dimension]) -> bool:
    """Whether our own beam search has these dimensions of ids: beam and length."""
    return not self.input_full_attention and self._has_whole(dims)

  def _has_whole(self, dims):
    """Whether each processor holds the dimensions of ids that follow `batch`."""
    dims = [*dims, mtf.Dimension("memory_length", dims[-1].size)]
    return self.autoregressive and not self.ensemble_dim and all(
        splits.is_whole(self, dim) for dim in dims)


def is_stock(ids: mtf.Tensor) -> bool:
  """Whether Mesh TensorFlow's loop decodes, as on XLA, except for several answers."""
  return splits.is_on_tpu(ids.mesh) or (
      splits.is_compiled(ids.mesh) and answers.recorder() is None)


def _defaults(function):
  return {name: parameter.default for name, parameter in inspect.signature(
      function).parameters.items() if parameter.default is not parameter.empty}


def _bound(function, kwargs):
  """The arguments with defaults of a gin configurable, by name."""
  return {**_defaults(function), **gin.get_bindings(function), **kwargs}


def _split(arguments, options):
  """An instance of `options`, and the remaining arguments."""
  chosen = {name: arguments.pop(name) for name in options._fields}
  return options(**chosen), arguments
