"""The decoding state of our own loops: each step writes one token in place.

In Mesh TensorFlow's loops each step makes new caches, in a pass over all of them.
"""

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import tensorflow.compat.v1 as tf


class StepContext(transformer.Context):
  """The context of a step that may write to its states.

  The loop made the states, and only this step reads them.
  """


def own(state: mtf.Tensor) -> mtf.Tensor:
  """A writable copy of a state."""
  return mtf.slicewise(
      lambda x: tf.raw_ops.DeepCopy(x=x), [state],
      splittable_dims=state.shape.dims, grad_function=0)


def write(cache: mtf.Tensor, new: mtf.Tensor, position: mtf.Tensor,
          length: mtf.Dimension) -> mtf.Tensor:
  """Replaces the entries of one position of a cache, in place.

  Args:
    cache: <float>[batch, heads, length, ...], which nothing reads afterwards.
    new: <float>[batch, heads, ...], with all dimensions of `cache` except `length`.
    position: <int32>[] or <int32>[batch]. It keeps growing for finished sequences
      until all have finished; they write to the last position.
    length: a dimension of the cache, which no layout splits.

  Returns:
    a tensor with the shape and dtype of cache.
  """
  rest = cache.shape - length
  return WriteOperation(
      cache, mtf.transpose(new, rest), position, length).outputs[0]


def reorder(state: mtf.Tensor, parents: mtf.Tensor) -> mtf.Tensor:
  """Reorders the states of beams by their parents.

  Args:
    state: [batch, beam, ...]
    parents: <int32>[batch, beam], the beam that each beam continues.

  Returns:
    a writable tensor with the shape and dtype of state.
  """
  return ReorderOperation(state, parents).outputs[0]


class ReorderOperation(mtf.Operation):
  """See `reorder`. All dimensions except `beam` can be split."""

  def __init__(self, state: mtf.Tensor, parents: mtf.Tensor):
    super().__init__([state, parents], name="reorder")
    self._outputs = [mtf.Tensor(self, state.shape, state.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.mesh_impl(self).slicewise(
            _rows, *[lowering.tensors[x] for x in self.inputs]))


def _rows(state, parents):
  batch, beam = parents.shape.as_list()
  first = tf.range(0, batch * beam, beam)[:, None]
  flat = tf.reshape(state, [batch * beam, -1])
  return tf.reshape(
      tf.gather(flat, tf.reshape(first + parents, [-1])), state.shape)


class WriteOperation(mtf.Operation):
  """See `write`. All dimensions except `length` can be split."""

  def __init__(self, cache: mtf.Tensor, new: mtf.Tensor, position: mtf.Tensor,
               length: mtf.Dimension):
    super().__init__([cache, new, position], name="write")
    self._axis = cache.shape.dims.index(length)
    self._outputs = [mtf.Tensor(self, cache.shape, cache.dtype)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.mesh_impl(self).slicewise(
            self._write, *[lowering.tensors[x] for x in self.inputs]))

  def _write(self, cache, new, position):
    shape = cache.shape.as_list()
    rows = mtf.Shape([mtf.Dimension(str(i), n)
                      for i, n in enumerate(shape[:self._axis])]).size
    length = shape[self._axis]
    position = tf.reshape(tf.minimum(position, length - 1), [-1, 1])
    first = tf.reshape(
        tf.range(0, rows * length, length), [position.shape[0], -1])
    written = tf.raw_ops.InplaceUpdate(
        x=tf.reshape(cache, [rows * length, -1]),
        i=tf.reshape(first + position, [-1]), v=tf.reshape(new, [rows, -1]))
    return tf.reshape(written, shape)
