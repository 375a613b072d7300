"""What the graph adds up over a batch, for each layer with dot products.

A graph that captures these sums hands out a few arrays for each batch, whatever its
size, so that no tensor [batch, heads, length, memory_length] leaves it.
"""

from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.tools.base import layer_names
import tensorflow.compat.v1 as tf


class Layer(NamedTuple):
  """A layer whose weights were captured.

  Attributes:
    name: the stack and the block, such as "encoder/0".
    place: the beginning of the names of its variables, such as
      "encoder/block_000/layer_000/SyntheticAttention/".
    scope: gin's scope of its stack, such as "encoder".
    notation: the notation, such as "V".
    heads: the number of heads.
    length: the longest sequence.
    sees_later: whether queries may attend to later keys.
  """
  name: str
  place: str
  scope: str
  notation: str
  heads: int
  length: int
  sees_later: bool


class Sums(NamedTuple):
  """Sums over the segments of a batch, by the positions in the segment.

  Attributes:
    weights: <float>[heads, length, memory_length], of the weights.
    pairs: <float>[length, memory_length], the number of pairs of tokens that see each
      other.
    entropy: <float>[heads, length], of the entropies of the queries' weights, in nats.
  """
  weights: Any
  pairs: Any
  entropy: Any


class Attention(NamedTuple):
  """What a layer computes with, as TensorFlow's tensors.

  Attributes:
    weights: <float32>[batch, heads, length, memory_length], 0 for pairs that do not
      see each other.
    seen: <float32>[batch, length, memory_length], 1 for pairs that see each other.
    positions: <int32>[batch, length], those of the tokens in their segments.
    x: <float32>[batch, length, d_model], the layer's input.
    is_packed: whether positions differ from row to row.
  """
  weights: Any
  seen: Any
  positions: Any
  x: Any
  is_packed: bool


class Moments(intermediates.Capture):
  """Captures the `Sums` of each layer as TensorFlow's tensors.

  Attributes:
    layers: a dict from names to `Layer`, in the order of the calls.
    attention: a dict from names to `Attention`, of the layers that are V.
    sums: a dict from names to `Sums`, of the layers that are V.
    bias: a dict from names to <float>[heads, length, memory_length], T5's relative
      position bias; only of layers that have it.
    encoded: <float>[batch, length, d_model], the encoder's output as the decoder reads
      it; None without an encoder.
    repeated: the names that several layers have.
  """

  def __init__(self) -> None:
    self.layers: dict[str, Layer] = {}
    self.attention: dict[str, Attention] = {}
    self.sums: dict[str, Sums] = {}
    self.bias: dict[str, Any] = {}
    self.encoded: Any = None
    self.repeated: list[str] = []

  def capture_weights(self, weights: mtf.Tensor, mask: masks.AttentionMask,
                      inputs: attention_inputs.AttentionInputs) -> None:
    layer, stack = inputs.context.current_layer, inputs.context.model.layer_stack
    name = layer_names.short_name(intermediates.layer_name())
    if name in self.layers:
      self.repeated.append(name)
      return
    parts = getattr(getattr(layer, "mixture", None), "synthesizers", None)
    self.layers[name] = Layer(
        name, tf.get_variable_scope().name + "/",
        getattr(stack, "synthesizer_scope", ""),
        "+".join(map(functions.part_name, parts)) if parts else type(layer).__name__,
        inputs.heads.size, inputs.length.size, inputs.sees_later)
    if inputs.context.encoder_output is not None:
      self._receive([inputs.context.encoder_output], self._receive_encoded)
    if self.layers[name].notation != "V":
      return
    if layer.relative_position_bias:
      self._receive([mtf.transpose(
          layer.relative_position_bias.for_pairs(inputs),
          [inputs.heads, inputs.length, inputs.memory_length])],
                    lambda array: self.bias.update({name: array}))
    pairs = [*inputs.context.batch_dims, inputs.length, inputs.memory_length]
    seen = _seen(inputs, pairs)
    weights = mtf.multiply(intermediates.normalized(weights, mask), seen,
                           output_shape=[*pairs[:-2], inputs.heads, *pairs[-2:]])
    positions = mtf.broadcast(inputs.query_position, pairs[:-1])

    def receive(weights, seen, positions, x):
      self.attention[name] = Attention(weights, seen, positions, x, inputs.is_packed)
      self.sums[name] = _by_position(weights, seen, positions, inputs.is_packed)

    self._receive([weights, seen, positions, mtf.cast(inputs.x, tf.float32)], receive)

  def _receive_encoded(self, array):
    self.encoded = array

  def _receive(self, tensors, receive):
    def without_device(*arrays, is_tpu):
      del is_tpu
      receive(*arrays)

    intermediates.CaptureOperation(tensors, without_device)


def _seen(inputs, dims):
  """<float32>[batch, length, memory_length]: whether a query's token sees a key's.

  The mask of the call would not do: where segments are computed one by one, it does not
  hold them.
  """
  context = inputs.context
  seen = mtf.ones(context.mesh, mtf.Shape(dims))
  ids = segments.segment_id(context)
  if ids is not None:
    seen *= mtf.cast(mtf.equal(ids, inputs.as_keys(ids)), tf.float32)
    seen *= mtf.cast(mtf.not_equal(ids, 0), tf.float32)
  if context.read_priority is not None:
    seen *= mtf.cast(mtf.greater_equal(
        context.read_priority, inputs.as_keys(context.write_priority)), tf.float32)
  return seen


def _by_position(weights, seen, positions, packed):
  """Adds up over a batch.

  Args:
    weights: <float32>[batch, heads, length, memory_length], 0 for pairs that do not
      see each other.
    seen: <float32>[batch, length, memory_length]
    positions: <int32>[batch, length], those of the tokens in their segments.
    packed: whether positions differ from row to row.

  Returns:
    the `Sums`, as tensors.
  """
  entropy = -tf.reduce_sum(tf.math.xlogy(weights, weights), axis=-1)
  if not packed:
    return Sums(tf.reduce_sum(weights, 0), tf.reduce_sum(seen, 0),
                tf.reduce_sum(entropy, 0))
  batch, heads, length, _ = weights.shape.as_list()
  index = tf.reshape(positions[:, :, None] * length + positions[:, None, :], [-1])

  def add(values):  # [batch, length, length, ...] -> [length, length, ...]
    rest = values.shape.as_list()[3:]
    total = tables.sum_at(tf.reshape(values, [-1, *rest]), index, 0, length * length)
    return tf.reshape(total, [length, length, *rest])

  return Sums(
      tf.transpose(add(tf.transpose(weights, [0, 2, 3, 1])), [2, 0, 1]), add(seen),
      tf.transpose(tables.sum_at(tf.reshape(
          tf.transpose(entropy, [0, 2, 1]), [batch * length, heads]),
          tf.reshape(positions, [-1]), 0, length)))
