"""The calls of a decoder: first on all given tokens, then on one token at a time."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
import tensorflow.compat.v1 as tf

_MEMORY_LENGTH = "memory_length"


class Steps:
  """Calls a decoder as `Unitransformer.sample_autoregressive` does.

  Attributes:
    batch_dims: the batch dimensions of the ids, such as [batch] or [batch, beam].
    length: the dimension of the ids along which they are decoded.
  """

  def __init__(self, model: transformer.Unitransformer, ids: mtf.Tensor,
               **encoded: Any):
    """Declares the common arguments of all calls.

    Args:
      ids: <int32>[batch, length], the sequences to continue, with 0 for tokens to
        generate.
      **encoded: arguments of `transformer.Context`: `variable_dtype`,
        `shared_params` and those about the encoder.
    """
    self.model = model
    self.ids = ids
    *self.batch_dims, self.length = ids.shape.dims
    self.initial_position = mtf.reduce_sum(
        mtf.to_int32(mtf.not_equal(ids, 0)), reduced_dim=self.length)
    self._constant_states = []
    self._arguments = {
        **encoded, "model": model, "mesh": ids.mesh, "batch_dims": self.batch_dims,
        "sequence_id": None if encoded.get("encoder_sequence_id") is None else 1,
        "constant_states": self._constant_states}

  def first_part(self, make_context: type[transformer.Context] = transformer.Context
                 ) -> list[mtf.Tensor]:
    """Calls the decoder with the given tokens, and returns the resulting states."""
    priority = self._priority(self.length)
    context = make_context(
        mode="first_part", length_dim=self.length, new_states=[],
        position=mtf.range(self.ids.mesh, self.length, tf.int32),
        position_is_default=True, initial_position=self.initial_position,
        write_priority=priority, read_priority=priority, inputs=self.ids,
        **self._arguments)
    with tf.variable_scope(self.model.name):
      self.model._call_internal(
          context, transformer.autoregressive_inputs(self.ids))
    return context.new_states

  def step(self, position: mtf.Tensor, token: mtf.Tensor,
           states: Sequence[mtf.Tensor], length: mtf.Dimension,
           ancestors: mtf.Tensor | None = None) -> tuple[mtf.Tensor, list[mtf.Tensor]]:
    """Calls the decoder with one token of each row.

    Args:
      position: <int32>[] or <int32>[batch], the positions of the next tokens.
      token: <int32>[batch], the tokens at the positions before these.
      states: the layers' states; the step writes to them.
      length: the dimension of the states' positions.

    Returns:
      the logits <float>[batch, vocab], and the new states.
    """
    context = caches.StepContext(
        ancestors, mode="incremental", length_dim=length, position=position,
        states=states, new_states=[], write_priority=self._priority(length),
        read_priority=position, inputs=token, **self._arguments)
    with tf.variable_scope(self.model.name, reuse=True):
      logits = self.model._call_internal(context, token)
    return logits, context.new_states

  def _priority(self, length):
    """The write priority of each key; all keys of a prefix have the same."""
    index = mtf.range(self.ids.mesh, length, tf.int32)
    if not self.model.input_full_attention:
      return index
    return index * mtf.to_int32(mtf.greater(index, self.initial_position))


def in_blocks(run: Callable[..., list[mtf.Tensor]], length: mtf.Dimension,
              carried: list[mtf.Tensor],
              states: list[mtf.Tensor]) -> list[mtf.Tensor]:
  """Runs a loop for each block of positions, with states of the length it needs.

  Args:
    run: a function (dimension of the block's positions, `carried`, `states`) that
      returns the new `carried`, followed by the new `states`.
    length: the dimension of all positions.
    carried: tensors of the loop.
    states: the layers' states for all positions.

  Returns:
    the final `carried`.
  """
  begin, now = 0, []
  for end in loops.block_ends(length.size):
    new = [_cut(state, length.size, begin, end) for state in states]
    now = [_join(*pair, begin) for pair in zip(now, new)] if begin else new
    outputs = run(mtf.Dimension(length.name, end), carried, now)
    carried, now = outputs[:len(carried)], outputs[len(carried):]
    begin = end
  return carried


def _cut(state, length, begin, end):
  """Slices a state to some positions; returns states without positions whole."""
  if not _has_positions(state, length):
    return state
  return mtf.slice(state, begin, end - begin, _MEMORY_LENGTH)


def _join(old, new, length):
  """Appends the positions of `new` to the state `old`, which has `length` positions."""
  return (mtf.concat([old, new], _MEMORY_LENGTH) if _has_positions(old, length)
          else old)


def _has_positions(state, length):
  return mtf.Dimension(_MEMORY_LENGTH, length) in state.shape.dims
