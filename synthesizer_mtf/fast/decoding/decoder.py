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
from synthesizer_mtf.t5 import answer_recorder
import tensorflow.compat.v1 as tf


class Decoder(transformer.Unitransformer):
  """A `Unitransformer` that decodes by our own loops; `fast/models.py` makes it."""

  def sample_autoregressive(self, partial_sequences: mtf.Tensor,
                            **kwargs: Any) -> mtf.Tensor:
    """Samples as `Unitransformer` does, with the same gin bindings."""
    stock = super().sample_autoregressive
    if not self._can_decode(partial_sequences):
      return stock(partial_sequences, **kwargs)
    others = _bound(stock.__func__, kwargs)
    options = sampling.Options(
        **{name: others.pop(name) for name in sampling.Options._fields})
    recorder = answer_recorder.current()
    if recorder is None:
      return sampling.Sampling(
          steps.Steps(self, partial_sequences, **others), options).ids()
    if not options.temperature:
      recorder.check(1, "greedy decoding finds one answer; bind "
                     "`Bitransformer.decode.beam_size` to at least "
                     f"{recorder.number}, or a temperature.")
    several = recorder.number > 1
    ids = partial_sequences
    if several:
      ids = sampling.with_samples(ids, recorder.number)
    samples = sampling.Sampling(steps.Steps(self, ids, **others), options).answers()
    return recorder.record(
        sampling.best_first(samples) if several else sampling.alone(samples))

  def beam_search(self, inputs: mtf.Tensor, decode_length: mtf.Tensor,
                  **kwargs: Any) -> mtf.Tensor:
    """Searches as `Unitransformer` does, with gin's `beam_search.beam_search`."""
    stock = super().beam_search
    if is_stock(inputs) or not self.can_search(inputs.shape.dims[1:]):
      return stock(inputs, decode_length, **kwargs)
    others = {**_defaults(stock), **kwargs}
    alpha, bos_id = others.pop("alpha"), others.pop("bos_id")
    size, recorder = inputs.shape.dims[-2].size, answer_recorder.current()
    bound, parts = _bound(mtf.beam_search.beam_search, {}), self._parts_of_vocabulary()
    search = beam_search.Search(
        steps.Steps(self, inputs, **others), decode_length, bos_id, beams.Options(
            alpha, bound["eos_id"], bound["stop_early"],
            parts and bound["num_prefilter"] or 2 * size, parts or 1,
            recorder.number if recorder else 1))
    if recorder is not None:
      recorder.check(size, f"beam search keeps {size} answers; raise the beam size to "
                     "at least that many, or ask for fewer.")
      return recorder.record(search.answers())
    sequences, _ = self._search(search)
    return mtf.gather(sequences, mtf.constant(inputs.mesh, 0, dtype=tf.int32),
                      inputs.shape.dims[-2])

  def _search(self, search):
    """All sequences, best first, and their scores."""
    return search.sequences()

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
      splits.is_compiled(ids.mesh) and answer_recorder.current() is None)


def _defaults(function):
  return {name: parameter.default for name, parameter in inspect.signature(
      function).parameters.items() if parameter.default is not parameter.empty}


def _bound(function, kwargs):
  """The arguments with defaults of a gin configurable, by name."""
  return {**_defaults(function), **gin.get_bindings(function), **kwargs}
