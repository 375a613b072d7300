"""Captured intermediates: the attention weights of each layer, for tools and summaries.

Layers called inside `capture` hand out the tensors that they compute with. Outside of
it, capturing adds nothing to the graph.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import re
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow import simd_mesh_impl
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf

_captures: contextvars.ContextVar[tuple["Capture", ...]] = contextvars.ContextVar(
    "captures", default=())


class Capture:
  """Base class of the receivers that `capture` takes."""

  def capture_weights(self, weights: mtf.Tensor, mask: masks.AttentionMask,
                      inputs: AttentionInputs) -> None:
    """Each layer calls this once, in its variable scope.

    The weights are <float>[batch, heads, length, memory_length]. They may lack `batch`;
    their softmax then includes padding (see `normalized`).
    """

  def capture_alpha(self, alpha: mtf.Tensor, synthesizers: list[Any]) -> None:
    """Each mixture with weights calls this, before `capture_weights`.

    They are <float32>[heads, parts], or [parts] if they are per layer.
    """


@contextlib.contextmanager
def capture(into: Capture) -> Iterator[Capture]:
  """Layers called inside give their weights to a `Capture`."""
  before = _captures.set((*_captures.get(), into))
  try:
    yield into
  finally:
    _captures.reset(before)


@contextlib.contextmanager
def without_capture() -> Iterator[None]:
  """Layers called inside capture nothing, as they are not self-attention."""
  before = _captures.set(())
  try:
    yield
  finally:
    _captures.reset(before)


def are_captured() -> bool:
  """Whether intermediates are captured."""
  return bool(_captures.get())


def sow_weights(make: Callable[[], mtf.Tensor], mask: masks.AttentionMask,
                inputs: AttentionInputs) -> None:
  """Gives the weights of a layer to `Capture.capture_weights`.

  `make` returns them in any order of dimensions. It is called if they are captured.
  """
  if are_captured():
    weights = make()
    weights = mtf.transpose(weights, inputs.logit_dims(weights))
    for into in _captures.get():
      into.capture_weights(weights, mask, inputs)


def sow_alpha(alpha: mtf.Tensor, synthesizers: list[Any],
              inputs: AttentionInputs) -> None:
  """Gives the weights of a mixture to `Capture.capture_alpha`, unless it decodes."""
  if inputs.context.mode != "incremental":
    for into in _captures.get():
      into.capture_alpha(alpha, synthesizers)


def layer_name() -> str:
  """The name of the layer that is being called, such as "encoder/block_000".

  This is the first layer of a block; others are as "encoder/block_000/layer_002".
  """
  scope = tf.get_variable_scope().name
  layer = scope.rpartition("/")[0] or scope  # Without the class.
  return re.sub(r"(/block_\d+)/layer_000$", r"\1", layer)


def normalized(weights: mtf.Tensor, mask: masks.AttentionMask) -> mtf.Tensor:
  """Weights without padding. Each row sums to 1, or to 0 if all keys are masked.

  The arguments are what `Capture.capture_weights` gets.

  Returns:
    <float32>[batch, heads, length, memory_length]; without `batch` where
    neither argument has it.
  """
  weights = mtf.cast(weights, tf.float32)
  if mask.keys is None:
    return weights
  seen = mtf.cast(mask.keys, tf.float32)
  batch = [d for d in seen.shape.dims[:-1] if d not in weights.shape.dims]
  weights = mtf.multiply(
      weights, seen, output_shape=batch + weights.shape.dims)
  total = mtf.reduce_sum(weights, reduced_dim=seen.shape.dims[-1])
  return weights / (total + mtf.cast(mtf.equal(total, 0), tf.float32))


def is_query(inputs: AttentionInputs) -> mtf.Tensor | None:
  """<float32>[batch, length]: 0 for padding; None without segment ids."""
  ids = segments.segment_id(inputs.context)
  if ids is None:
    return None
  return mtf.cast(mtf.not_equal(ids, 0), tf.float32)


class CaptureOperation(mtf.Operation):
  """Passes tensors to a function once they are lowered.

  It has no outputs. If a layer runs again in the backward pass, only its forward pass
  is captured: nothing outside may use the tensors of a forward pass, but an operation
  inside may.
  """

  def __init__(self, tensors: list[mtf.Tensor], receive: Callable[..., None],
               on_tpu: bool = True):
    """Declares the inputs.

    Args:
      tensors: what it passes on.
      receive: a function of as many `tf.Tensor`, and of the boolean `is_tpu`.
      on_tpu: whether `receive` can run in a TPU program; if not, TPUs skip it.
    """
    super().__init__(tensors, name="capture")
    self._receive = receive
    self._on_tpu = on_tpu
    self._lowered = []  # Shared with the clones that the backward pass makes.

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(self)
    is_tpu = (isinstance(mesh_impl, simd_mesh_impl.SimdMeshImpl) and
              not getattr(mesh_impl, "exports_all", False))
    if self._lowered or (is_tpu and not self._on_tpu):
      return
    self._lowered.append(True)
    self._receive(*map(lowering.export_to_tf_tensor, self.inputs),
                  is_tpu=is_tpu)
