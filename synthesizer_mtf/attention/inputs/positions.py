"""The positions of the queries and keys of a call.

Indices count the tokens of a row, positions those of a segment. Both are the same in
rows of one example each.
"""

from typing import ClassVar

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import layer_call
from synthesizer_mtf.attention.inputs import segments
import tensorflow.compat.v1 as tf


class Positions(layer_call.LayerCall):
  """Where the tokens of a call are.

  Attributes:
    is_packed: whether rows may hold several segments.
  """

  is_packed: ClassVar[bool] = False

  @property
  def query_index(self) -> mtf.Tensor:
    """<int32>[length]: indices in the row; <int32>[batch] in incremental mode."""
    return mtf.range(self.context.mesh, self.length, tf.int32)

  @property
  def memory_index(self) -> mtf.Tensor:
    """<int32>[memory_length]: indices of the keys in the row."""
    return mtf.range(self.context.mesh, self.memory_length, tf.int32)

  @property
  def query_position(self) -> mtf.Tensor:
    """Each query's position in its segment: <int32>[length]; <int32>[batch, length]
    in packed rows; <int32>[batch] in incremental mode."""
    return self.query_index

  @property
  def memory_position(self) -> mtf.Tensor:
    """Each key's position in its segment: <int32>[memory_length];
    <int32>[batch, memory_length] in `PackedRows`."""
    return self.memory_index

  @property
  def offset(self) -> mtf.Tensor:
    """<int32>[length, memory_length]: how far each key lies after each query.

    Within a segment, differences of indices equal differences of positions. So packed
    rows need no batch dimension. In incremental mode it is
    <int32>[batch, memory_length].
    """
    query = self.query_index
    return mtf.sub(self.memory_index, query,
                   output_shape=query.shape + self.memory_length)

  def segment_length(self) -> mtf.Tensor:
    """The token count of each token's segment, as in `segments`."""
    return segments.row_length(self.context)
