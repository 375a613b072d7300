"""Beam search, with the results of Mesh TensorFlow's beam search.

In Mesh TensorFlow, the longest input of a batch limits the sequences of all its
examples. Within `searching_alone`, each example has a search of its own.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast.decoding import beams
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import steps
from synthesizer_mtf.t5 import answers
import tensorflow.compat.v1 as tf

_HORIZON: contextvars.ContextVar[mtf.Tensor | None] = contextvars.ContextVar(
    "horizon", default=None)


class Arguments(NamedTuple):
  """Arguments of Mesh TensorFlow's `beam_search.beam_search`.

  Attributes:
    decode_length: <int32>[], the length of the longest sequence.
    bos_id: the token before the first one.
    options: a `beams.Options`.
  """
  decode_length: mtf.Tensor
  bos_id: int
  options: beams.Options


@contextlib.contextmanager
def searching_alone(horizon: mtf.Tensor) -> Iterator[None]:
  """Makes searches within a `with` block end for each example by itself.

  The search of an example ends once no live sequence can become an answer. It looks as
  far as `horizon`: a longer sequence goes on only while its score, so far, is better
  than that of the answers.

  Args:
    horizon: <int32>[batch], the number of tokens of each example.
  """
  before = _HORIZON.set(horizon)
  try:
    yield
  finally:
    _HORIZON.reset(before)


def search(decoder: steps.Steps,
           arguments: Arguments) -> tuple[mtf.Tensor, mtf.Tensor]:
  """Searches for the best sequences.

  Args:
    decoder: the `Steps` of the model, with ids <int32>[batch, beam, length] of 0.
    arguments: an `Arguments`.

  Returns:
    the sequences <int32>[batch, beam, length], best first, and their scores
    <float32>[batch, beam].
  """
  found = _Search(decoder, arguments).run()
  any_ended = mtf.reduce_any(found.flags, reduced_dim=decoder.batch_dims[-1])
  return (mtf.where(any_ended, found.finished, found.sequences),
          mtf.where(any_ended, found.scores, found.log_probs))


def search_for_answers(decoder: steps.Steps, arguments: Arguments) -> answers.Answers:
  """Searches for as many sequences as `options.answers`.

  Args:
    decoder: as for `search`.
    arguments: an `Arguments`.

  Returns:
    the best ones, with dimensions [batch, beam, length] and [batch, beam], where beam
    is the number of answers.
  """
  searching = _Search(decoder, arguments)
  return answers.Answers(*BestOperation(
      arguments.options, searching.run(), searching.longest).outputs)


class _Search:
  """The loops of one search."""

  def __init__(self, decoder, arguments):
    self.decoder = decoder
    self.arguments = arguments
    self.horizon = _HORIZON.get()
    self.longest = mtf.minimum(arguments.decode_length, decoder.length.size)

  def run(self):
    """The `beams.Beams` at the end of the search."""
    states = [mtf.zeros_like(state) for state in self.decoder.first_part(
        caches.FirstPartContext)]
    mesh, (batch, beam) = self.decoder.ids.mesh, self.decoder.batch_dims
    token = mtf.constant(
        mesh, self.arguments.bos_id, self.decoder.batch_dims, tf.int32)
    carried = [mtf.zeros(mesh, [], tf.int32), token, *self._start(batch, beam)]
    ancestors = mtf.zeros(
        mesh, [batch, beam, mtf.Dimension("memory_length", self.decoder.length.size)],
        tf.int32)
    _, _, *others = steps.in_blocks(
        self._block, self.decoder.length, carried, [ancestors, *states])
    return beams.Beams(*others)

  def _start(self, batch, beam):
    """The first beam, without tokens; the others do not exist yet."""
    ids = self.decoder.ids
    dims = [batch, beam]
    worst = mtf.constant(ids.mesh, -mtf.beam_search.INF, dims, tf.float32)
    number = mtf.broadcast(mtf.range(ids.mesh, beam, tf.int32), dims)
    return beams.Beams(
        sequences=ids, finished=ids, scores=worst, parents=number,
        log_probs=worst * mtf.to_float(mtf.not_equal(number, 0)),
        flags=mtf.constant(ids.mesh, False, dims, tf.bool),
        settled=mtf.constant(ids.mesh, False, [batch], tf.bool))

  def _block(self, block, carried, states):
    end = mtf.minimum(self.longest, block.size)

    def go_on(position, token, *others):
      del token
      settled = beams.Beams(*others[:len(beams.Beams._fields)]).settled
      return mtf.logical_and(mtf.less(position, end), mtf.logical_not(
          mtf.reduce_all(settled)))

    def body(position, token, *others):
      count = len(beams.Beams._fields)
      found, ancestors = beams.Beams(*others[:count]), others[count]
      ancestors = caches.add_ancestors(ancestors, found.parents, position)
      states = [s if caches.has_memory_beam(s) else
                caches.reorder(s, found.parents) for s in others[count + 1:]]
      logits, states = self.decoder.step(position, token, states, block, ancestors)
      token, *grown = GrowOperation(
          self.arguments.options, found, _whole(logits), position,
          self.longest, self.horizon).outputs
      return [position + 1, token, *grown, ancestors, *states]

    # `reorder` makes writable copies of the other states.
    states = [caches.own(s) if caches.has_memory_beam(s) else s
              for s in states]
    return loops.while_loop(go_on, body, [*carried, *states])


def _whole(logits):
  """<float32>[batch, beam, vocabulary], with an unsplit vocabulary."""
  vocab = logits.shape.dims[-1]
  return mtf.to_float(
      mtf.rename_dimension(logits, vocab.name, "whole_vocabulary"))


class GrowOperation(mtf.Operation):
  """See `beams.grow`. The first output is the new tokens; the new `Beams` follow.

  Only `batch` can be split.
  """

  def __init__(self, options: beams.Options, found: beams.Beams,
               logits: mtf.Tensor, position: mtf.Tensor, longest: mtf.Tensor,
               horizon: mtf.Tensor | None = None):
    horizons = [] if horizon is None else [horizon]
    super().__init__([logits, position, longest, *found, *horizons], name="beams")
    self._options = options
    self._outputs = [mtf.Tensor(self, x.shape, x.dtype)
                     for x in (found.parents, *found)]

  def lower(self, lowering: mtf.Lowering) -> None:
    def grow(logits, position, longest, *others):
      count = len(beams.Beams._fields)
      found = beams.grow(self._options, beams.Beams(*others[:count]), logits, position,
                         longest, *others[count:])
      return found.sequences[..., position], *found

    splits.require_whole(
        lowering, self, [d for t in self.inputs for d in t.shape.dims[1:]],
        splits.NAME_A_LAYOUT)
    outputs = lowering.mesh_impl(self).slicewise(
        grow, *[lowering.tensors[x] for x in self.inputs])
    for output, laid_out in zip(self.outputs, outputs):
      lowering.set_tensor_lowering(output, laid_out)


class BestOperation(mtf.Operation):
  """See `beams.best`. Only `batch` can be split."""

  def __init__(self, options: beams.Options, found: beams.Beams, longest: mtf.Tensor):
    super().__init__([longest, *found], name="best")
    self._options = options
    batch, beam, length = found.sequences.shape.dims
    dims = [batch, mtf.Dimension(beam.name, options.answers)]
    self._outputs = [mtf.Tensor(self, mtf.Shape(shape), dtype) for shape, dtype in (
        ([*dims, length], tf.int32), (dims, tf.float32), (dims, tf.int32))]

  def lower(self, lowering: mtf.Lowering) -> None:
    def best(longest, *found):
      return beams.best(self._options, beams.Beams(*found), longest)

    outputs = lowering.mesh_impl(self).slicewise(
        best, *[lowering.tensors[x] for x in self.inputs])
    for output, laid_out in zip(self.outputs, outputs):
      lowering.set_tensor_lowering(output, laid_out)
