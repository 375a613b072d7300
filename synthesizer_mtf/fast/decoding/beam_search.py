"""Beam search, with the results of Mesh TensorFlow's beam search.

In Mesh TensorFlow, the longest input of a batch limits the sequences of all its
examples. Within `searching_alone`, each example has a search of its own.
"""

from collections.abc import Iterator
import contextlib
import contextvars

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast.decoding import beams
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
from synthesizer_mtf.fast.decoding import steps
from synthesizer_mtf.t5.answer_recorder import Answers
import tensorflow.compat.v1 as tf

_HORIZON: contextvars.ContextVar[mtf.Tensor | None] = contextvars.ContextVar(
    "horizon", default=None)
_COUNT = len(beams.Beams._fields)


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


class Search:
  """The loops of one search."""

  def __init__(self, decoder: steps.Steps, decode_length: mtf.Tensor, bos_id: int,
               options: beams.Options):
    """Declares the search.

    Args:
      decoder: the `Steps` of the model, with ids <int32>[batch, beam, length] of 0.
      decode_length: <int32>[], the length of the longest sequence.
      bos_id: the token before the first one.
      options: how to search.
    """
    self._decoder = decoder
    self._longest = mtf.minimum(decode_length, decoder.length.size)
    self._bos_id = bos_id
    self._options = options
    horizon = _HORIZON.get()
    self._horizons = [] if horizon is None else [horizon]

  def sequences(self) -> tuple[mtf.Tensor, mtf.Tensor]:
    """All sequences <int32>[batch, beam, length], best first, and their scores
    <float32>[batch, beam]."""
    last = self._run()
    any_ended = mtf.reduce_any(last.flags, reduced_dim=last.flags.shape.dims[-1])
    return (mtf.where(any_ended, last.finished, last.sequences),
            mtf.where(any_ended, last.scores, last.log_probs))

  def answers(self) -> Answers:
    """The `options.answers` best sequences."""
    last = self._run()
    batch, beam, length = last.sequences.shape.dims
    dims = [batch, mtf.Dimension(beam.name, self._options.answers)]

    def best(longest, *state):
      return beams.best(self._options, beams.Beams(*state), longest)

    return Answers(*splits.slicewise(
        best, [self._longest, *last], [[*dims, length], dims, dims],
        [tf.int32, tf.float32, tf.int32], splittable_dims=[batch], grad_function=0,
        name="best", remedy=splits.NAME_A_LAYOUT))

  def _run(self):
    """The `beams.Beams` at the end of the search."""
    decoder = self._decoder
    states = [mtf.zeros_like(state)
              for state in decoder.first_part(caches.FirstPartContext)]
    mesh, dims = decoder.ids.mesh, decoder.batch_dims
    token = mtf.constant(mesh, self._bos_id, dims, tf.int32)
    carried = [mtf.zeros(mesh, [], tf.int32), token, *self._start(*dims)]
    ancestors = mtf.zeros(
        mesh, [*dims, mtf.Dimension("memory_length", decoder.length.size)], tf.int32)
    _, _, *last = steps.in_blocks(
        self._block, decoder.length, carried, [ancestors, *states])
    return beams.Beams(*last)

  def _start(self, batch, beam):
    """The first beam, without tokens; the others do not exist yet."""
    ids = self._decoder.ids
    dims = [batch, beam]
    worst = mtf.constant(ids.mesh, -mtf.beam_search.INF, dims, tf.float32)
    number = mtf.broadcast(mtf.range(ids.mesh, beam, tf.int32), dims)
    return beams.Beams(
        sequences=ids, finished=ids, scores=worst, parents=number,
        log_probs=worst * mtf.to_float(mtf.not_equal(number, 0)),
        flags=mtf.constant(ids.mesh, False, dims, tf.bool),
        settled=mtf.constant(ids.mesh, False, [batch], tf.bool))

  def _block(self, block, carried, states):
    end = mtf.minimum(self._longest, block.size)

    def go_on(position, token, *others):
      del token
      settled = beams.Beams(*others[:_COUNT]).settled
      return mtf.logical_and(mtf.less(position, end), mtf.logical_not(
          mtf.reduce_all(settled)))

    def body(position, token, *others):
      before, ancestors = beams.Beams(*others[:_COUNT]), others[_COUNT]
      ancestors = caches.add_ancestors(ancestors, before.parents, position)
      states = [s if caches.has_memory_beam(s) else
                caches.reorder(s, before.parents) for s in others[_COUNT + 1:]]
      logits, states = self._decoder.step(position, token, states, block, ancestors)
      grown = self._grown(before, logits, position)
      return [position + 1, *grown, ancestors, *states]

    # `reorder` makes writable copies of the other states.
    states = [caches.own(s) if caches.has_memory_beam(s) else s for s in states]
    return loops.while_loop(go_on, body, [*carried, *states])

  def _grown(self, before, logits, position):
    """The new tokens <int32>[batch, beam], and the new `Beams` (see `beams.grow`)."""
    vocab = logits.shape.dims[-1]
    logits = mtf.to_float(mtf.rename_dimension(logits, vocab.name, "whole_vocabulary"))

    def grow(logits, position, longest, *others):
      after = beams.grow(self._options, beams.Beams(*others[:_COUNT]), logits, position,
                         longest, *others[_COUNT:])
      return after.sequences[..., position], *after

    outputs = [before.parents, *before]
    return splits.slicewise(
        grow, [logits, position, self._longest, *before, *self._horizons],
        [x.shape for x in outputs], [x.dtype for x in outputs], name="beams",
        splittable_dims=before.settled.shape.dims, grad_function=0,
        remedy=splits.NAME_A_LAYOUT)
