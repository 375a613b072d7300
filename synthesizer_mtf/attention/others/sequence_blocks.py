"""Sequences cut into blocks, so that no tensor is [length, memory_length].

All tensors that this module returns are zero outside of a sequence.
"""

from collections.abc import Callable

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import tables
import tensorflow.compat.v1 as tf


class SequenceBlocks:
  """Blocks of `stride` positions, or one block of a shorter sequence.

  Attributes:
    blocks: the dimension `blocks` of the queries.
    memory_blocks: the dimension `memory_blocks` of the keys.
    block_length: the dimension of the positions in a block.
  """

  def __init__(self, length: mtf.Dimension, stride: int):
    """Cuts the dimension `length`; the last block may end in zeros."""
    size = min(stride, length.size)
    self._length = length
    self.blocks = mtf.Dimension("blocks", -(-length.size // size))
    self.memory_blocks = mtf.Dimension("memory_blocks", self.blocks.size)
    self.block_length = mtf.Dimension("block_length", size)

  def queries(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """[..., length, ...] as [..., blocks, block_length, ...]"""
    return _fold(tensor, self._length.name, self.blocks, self.block_length)

  def columns(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """[..., memory_length, ...] as [..., memory_blocks, block_length, ...]"""
    return _fold(
        tensor, "memory_length", self.memory_blocks, self.block_length)

  def windows(self, tensor: mtf.Tensor, sides: int) -> mtf.Tensor:
    """[..., memory_length, ...] as [..., blocks, window, ...].

    Args:
      tensor: a tensor with `memory_length`.
      sides: 0 if a window is one block; 1 if it includes the previous block; 2 if it
        also includes the next block.

    Returns:
      a tensor.
    """
    window = mtf.Dimension("window", self.block_length.size)
    tensor = _fold(tensor, "memory_length", self.blocks, window)
    if not sides:
      return tensor
    exchange = mtf.left_halo_exchange if sides == 1 else mtf.halo_exchange
    return exchange(tensor, self.blocks, window, window.size)

  def join(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """The inverse of `queries`."""
    whole = mtf.Dimension(
        self._length.name, self.blocks.size * self.block_length.size)
    tensor = mtf.replace_dimensions(
        tensor, [self.blocks, self.block_length], whole)
    return tables.cut(tensor, whole.name, self._length.size)


def _fold(tensor, name, outer, inner):
  """Pads the dimension `name` with zeros, and splits it into two."""
  dim = tensor.shape.get_dim_by_name(name)
  missing = outer.size * inner.size - dim.size
  if missing:
    tensor = mtf.pad(tensor, [0, missing], name)
    dim = mtf.Dimension(name, dim.size + missing)
  return mtf.replace_dimensions(tensor, dim, [outer, inner])


def running(tensor: mtf.Tensor, dim: mtf.Dimension,
            combine: Callable[[mtf.Tensor, mtf.Tensor], mtf.Tensor],
            backwards: bool = False) -> mtf.Tensor:
  """Combines each entry along `dim` with all entries before it.

  Args:
    tensor: a tensor of numbers >= 0.
    dim: a dimension, not split.
    combine: `mtf.add` or `mtf.maximum`.
    backwards: whether to combine each entry with all entries after it instead.

  Returns:
    a tensor with the shape of the given one.
  """
  offset = 1
  while offset < dim.size:
    shift = -offset if backwards else offset
    tensor = combine(tensor, mtf.shift(tensor, shift, dim, wrap=False))
    offset *= 2
  return tensor


def index_of(marked: mtf.Tensor, dim: mtf.Dimension,
             entries: mtf.Dimension) -> mtf.Tensor:
  """The indices of marked entries, in order.

  Args:
    marked: <bool>[..., dim]
    dim: the last dimension, not split.
    entries: a dimension, at least as large as the number of marks.

  Returns:
    <int32>[..., entries], padded with the size of `dim`.
  """
  count = running(mtf.cast(marked, tf.int32), dim, mtf.add)
  lead = marked.shape.dims[:-1]
  ordinals = mtf.broadcast(
      mtf.range(marked.mesh, entries, tf.int32) + 1, lead + [entries])
  return splits.slicewise(
      tf.searchsorted, [count, ordinals], output_shape=ordinals.shape,
      splittable_dims=lead, grad_function=0)
