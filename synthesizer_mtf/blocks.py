"""Sequences cut into blocks, so that no tensor is [length, memory_length].

What stands outside of a sequence is zero in all that this module returns.
"""

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf


class Blocks:
  """Blocks of `stride` positions, or one block of a shorter sequence.

  Attributes:
    blocks: the dimension `blocks` of the queries; memory_blocks: of the keys.
    block_length: the dimension of the positions in a block.
  """

  def __init__(self, length, stride):
    """Cuts the dimension `length`; the last block may end in zeros."""
    size = min(stride, length.size)
    self._length = length
    self.blocks = mtf.Dimension("blocks", -(-length.size // size))
    self.memory_blocks = mtf.Dimension("memory_blocks", self.blocks.size)
    self.block_length = mtf.Dimension("block_length", size)

  def queries(self, tensor):
    """[..., length, ...] as [..., blocks, block_length, ...]"""
    return _fold(tensor, self._length.name, self.blocks, self.block_length)

  def columns(self, tensor):
    """[..., memory_length, ...] as [..., memory_blocks, block_length, ...]"""
    return _fold(
        tensor, "memory_length", self.memory_blocks, self.block_length)

  def windows(self, tensor, sides):
    """[..., memory_length, ...] as [..., blocks, window, ...].

    Args:
      tensor: a tensor with `memory_length`.
      sides: 0 if a window is a block; 1 if it begins with the block before it;
        2 if it also ends with the block after it.

    Returns:
      a tensor.
    """
    window = mtf.Dimension("window", self.block_length.size)
    tensor = _fold(tensor, "memory_length", self.blocks, window)
    if not sides:
      return tensor
    exchange = mtf.left_halo_exchange if sides == 1 else mtf.halo_exchange
    return exchange(tensor, self.blocks, window, window.size)

  def join(self, tensor):
    """The inverse of `queries`."""
    whole = mtf.Dimension(
        self._length.name, self.blocks.size * self.block_length.size)
    tensor = mtf.replace_dimensions(
        tensor, [self.blocks, self.block_length], whole)
    if whole.size == self._length.size:
      return tensor
    return mtf.slice(tensor, 0, self._length.size, whole.name)


def _fold(tensor, name, outer, inner):
  """Replaces the dimension `name` by two, with zeros at its end."""
  dim = tensor.shape.get_dim_by_name(name)
  missing = outer.size * inner.size - dim.size
  if missing:
    tensor = mtf.pad(tensor, [0, missing], name)
    dim = mtf.Dimension(name, dim.size + missing)
  return mtf.replace_dimensions(tensor, dim, [outer, inner])


def take(tensor, name, index):
  """Reads `tensor` at the places of the dimension `name` that `index` tells.

  `mtf.gather` multiplies with a one-hot matrix; this reads.

  Args:
    tensor: [lead..., name, rest...]
    index: <int32>[lead..., entries] below the size of `name`; its leading
      dimensions and those of the tensor may differ. Only they can be split.

  Returns:
    [lead..., entries, rest...] with the leading dimensions of both.
  """
  dims = tensor.shape.dims
  axis = dims.index(tensor.shape.get_dim_by_name(name))
  lead = dims[:axis] + [d for d in index.shape.dims[:-1] if d not in dims]
  tensor = mtf.broadcast(tensor, lead + dims[axis:])
  index = mtf.broadcast(index, lead + index.shape.dims[-1:])

  def read(tensor_slice, index_slice):
    return tf.gather(
        tensor_slice, index_slice, axis=len(lead), batch_dims=len(lead))

  def gradient(operation, grad):
    # Mesh TensorFlow's own gradient cannot take a sum that is still to be made
    # over the mesh. A layer that runs again has an operation of its own.
    tensor, index = operation.inputs
    return [_add_back(grad, index, tensor.shape, lead), None]

  return mtf.slicewise(
      read, [tensor, index],
      output_shape=index.shape.dims + dims[axis + 1:],
      splittable_dims=lead + dims[axis + 1:], grad_function=gradient)


def _add_back(grad, index, shape, lead):
  """Adds the gradients of all places which read an entry: [*shape]."""
  size, *rest = shape.dims[len(lead):]

  def add(grad_slice, index_slice):
    sizes = index_slice.shape.as_list()[:-1]
    rows = int(np.prod(sizes))
    flat = tf.reshape(index_slice, [rows, -1]) + (
        tf.range(rows) * size.size)[:, None]
    rest_sizes = grad_slice.shape.as_list()[len(lead) + 1:]
    total = tf.math.unsorted_segment_sum(
        tf.reshape(grad_slice, [-1] + rest_sizes), tf.reshape(flat, [-1]),
        rows * size.size)
    return tf.reshape(total, sizes + [size.size] + rest_sizes)

  return mtf.slicewise(add, [grad, index], output_shape=shape,
                       splittable_dims=lead + rest, grad_function=0)


def running(tensor, dim, combine, backwards=False):
  """What `combine` makes of each entry along `dim` and of all before it.

  Args:
    tensor: a tensor of numbers >= 0.
    dim: a dimension, not split.
    combine: `mtf.add` or `mtf.maximum`.
    backwards: take those after it in the place of those before it.

  Returns:
    a tensor with the shape of the given one.
  """
  offset = 1
  while offset < dim.size:
    shift = -offset if backwards else offset
    tensor = combine(tensor, mtf.shift(tensor, shift, dim, wrap=False))
    offset *= 2
  return tensor


def index_of(marked, dim, entries):
  """The places of the entries that are marked, in order.

  Args:
    marked: <bool>[..., dim]
    dim: a dimension, the last and not split.
    entries: a dimension, at least as large as the number of marks.

  Returns:
    <int32>[..., entries], with the size of `dim` where there are no more.
  """
  count = running(mtf.cast(marked, tf.int32), dim, mtf.add)
  lead = marked.shape.dims[:-1]
  ordinals = mtf.broadcast(
      mtf.range(marked.mesh, entries, tf.int32) + 1, lead + [entries])
  return mtf.slicewise(
      tf.searchsorted, [count, ordinals], output_shape=ordinals.shape,
      splittable_dims=lead, grad_function=0)
