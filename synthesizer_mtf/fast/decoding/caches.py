"""The decoding state of our own loops: each step writes one token in place.

In Mesh TensorFlow's loops each step makes new caches, in a pass over all of them.

In beam search the caches of attention are never reordered. They have a dimension
`memory_beam` beside `memory_length`. Beam k writes its tokens to index k of
`memory_beam`. The ancestors of a beam give the index of each of its earlier tokens.
"""

from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

_MEMORY_BEAM = "memory_beam"


class StepContext(transformer.Context):
  """The context of a step that may write to its states.

  The loop made the states, and only this step reads them.

  Attributes:
    ancestors: in beam search <int32>[batch, beam, memory_length], the index in
      `memory_beam` of each token that a beam continues; otherwise None.
  """

  def __init__(self, ancestors: mtf.Tensor | None = None, **kwargs: Any):
    self.ancestors = ancestors
    super().__init__(**kwargs)


class FirstPartContext(transformer.Context):
  """The context of beam search before the first step."""


def to_memory_beam(tensor: mtf.Tensor, beam: mtf.Dimension) -> mtf.Tensor:
  """Renames `beam` to `memory_beam`, the dimension of the caches."""
  return mtf.replace_dimensions(tensor, beam, mtf.Dimension(_MEMORY_BEAM, beam.size))


def add_ancestors(ancestors: mtf.Tensor, parents: mtf.Tensor,
                  position: mtf.Tensor) -> mtf.Tensor:
  """The ancestors of beams that continue their parents by one token each.

  Args:
    ancestors: <int32>[batch, beam, memory_length], the ancestors of the parents.
    parents: <int32>[batch, beam], as for `reorder`.
    position: <int32>[], the position of the new tokens.

  Returns:
    a tensor with the shape and dtype of ancestors.
  """
  *_, beam, memory_length = ancestors.shape.dims
  memory_beam = mtf.range(ancestors.mesh, beam, tf.int32)
  here = mtf.one_hot(position, memory_length, dtype=tf.int32)
  earlier = reorder(ancestors, parents) * (1 - here)
  return earlier + mtf.multiply(memory_beam, here, output_shape=[beam, memory_length])


def has_memory_beam(state: mtf.Tensor) -> bool:
  """Whether beams read a state by their ancestors, so that it keeps its order."""
  return _MEMORY_BEAM in state.shape.dimension_names


def own(state: mtf.Tensor) -> mtf.Tensor:
  """A writable copy of a state; XLA, whose writes make copies, needs none."""
  if splits.is_compiled(state.mesh):
    return state
  return mtf.slicewise(
      lambda x: tf.raw_ops.DeepCopy(x=x), [state],
      splittable_dims=state.shape.dims, grad_function=0)


def write(cache: mtf.Tensor, new: mtf.Tensor, position: mtf.Tensor,
          length: mtf.Dimension) -> mtf.Tensor:
  """Replaces the entries of one position of a cache, in place where XLA does not run.

  Args:
    cache: <float>[batch, heads, length, ...], which nothing reads afterwards.
    new: <float>[batch, heads, ...], with all dimensions of `cache` except `length`;
      those before `length` may be in another order.
    position: <int32>[] or <int32>[batch]. It keeps growing for finished sequences
      until all have finished; they write to the last position.
    length: a dimension of the cache, which no layout splits.

  Returns:
    a tensor with the shape and dtype of cache.
  """
  is_compiled = splits.is_compiled(cache.mesh)
  axis = cache.shape.dims.index(length)
  order = [cache.shape.dims.index(d) for d in new.shape.dims[:axis]]

  def compute(cache, new, position):  # The shape of the cache.
    shape = cache.shape.as_list()
    first = length.size * _permuted_rows(shape[:axis], order)
    position = tf.reshape(tf.minimum(position, length.size - 1), [-1, 1])
    rows = tf.reshape(cache, [first.size * length.size, -1])
    index = tf.reshape(tf.reshape(first, [position.shape[0], -1]) + position, [-1])
    values = tf.reshape(new, [first.size, -1])
    written = (tf.tensor_scatter_nd_update(rows, index[:, None], values) if is_compiled
               else tf.raw_ops.InplaceUpdate(x=rows, i=index, v=values))
    return tf.reshape(written, shape)

  return splits.slicewise(
      compute, [cache, new, position], splittable_dims=(cache.shape - length).dims,
      grad_function=0, name="write", remedy=splits.NAME_A_LAYOUT)


def reorder_rows(tensor: mtf.Tensor, dims: list[mtf.Dimension]) -> mtf.Tensor:
  """Transposes all dimensions of a small tensor except the last, by gathering rows.

  TensorFlow's transposition would take 0.1 ms, however small the tensor.

  Args:
    tensor: [..., d_kv]
    dims: the dimensions of the result.
  """
  def compute(x):  # [..., d_kv] in the old order -> in the new order
    rows = _permuted_rows(x.shape.as_list()[:-1], order)
    shape = [x.shape[i] for i in order] + x.shape[-1:]
    return tf.reshape(tf.gather(tf.reshape(x, [-1, x.shape[-1]]), rows), shape)

  order = [tensor.shape.dims.index(d) for d in dims[:-1]]
  return mtf.slicewise(compute, [tensor], output_shape=dims, splittable_dims=dims,
                       grad_function=0)


def reorder(state: mtf.Tensor, parents: mtf.Tensor) -> mtf.Tensor:
  """Reorders the states of beams by their parents.

  Args:
    state: [batch, beam, ...]
    parents: <int32>[batch, beam], the beam that each beam continues.

  Returns:
    a writable tensor with the shape and dtype of state.
  """
  def compute(state, parents):  # The shape of the state.
    batch, beam = parents.shape.as_list()
    first = tf.range(0, batch * beam, beam)[:, None]
    flat = tf.reshape(state, [batch * beam, -1])
    return tf.reshape(
        tf.gather(flat, tf.reshape(first + parents, [-1])), state.shape)

  return splits.slicewise(
      compute, [state, parents], grad_function=0, name="reorder",
      splittable_dims=(state.shape - parents.shape.dims[-1]).dims,
      remedy=splits.NAME_A_LAYOUT)


def _permuted_rows(sizes, order):
  """The indices of rows with leading dimensions of these sizes, in another order."""
  every = np.arange(np.prod(sizes, dtype=int)).reshape(sizes)
  return every.transpose(order).reshape(-1).astype(np.int32)
