"""Four forms of logits, each the cheapest for what makes it.

A synthesizing function returns a list of them, and `weighted_mean` decides how to
compute with their sum.
"""

from typing import NamedTuple

import mesh_tensorflow as mtf
import tensorflow.compat.v1 as tf


class InnerProduct(NamedTuple):
  """Logits that are inner products over `channels`.

  Attributes:
    query: <float>[batch, heads, length, channels]
    key: <float>[batch, heads, memory_length, channels]
    Each may lack `batch`; `length` is absent in incremental mode. The dimension
    `channels` may have any name but must be the last of both.
  """
  query: mtf.Tensor
  key: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "InnerProduct":
    """These logits times `scale` [heads], on the smaller of the two sides."""
    if self.key.shape.size < self.query.shape.size:
      return self._replace(key=_scaled(self.key, scale))
    return self._replace(query=_scaled(self.query, scale))


class Table(NamedTuple):
  """Logits given one by one.

  Attributes:
    values: <float>[batch, heads, length, memory_length]; may lack `batch`.
      `length` is absent in incremental mode. They may depend on the query's token
      and on positions, but on no token of the keys: of packed rows the columns are
      positions in the example of the query.
  """
  values: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "Table":
    """These logits times `scale` [heads]."""
    return self._replace(values=_scaled(self.values, scale))


class ByPosition(NamedTuple):
  """Logits of the positions in an example, where rows are packed on TPUs.

  Of a query and a key that are at other places of the row, `weighted_mean` reads
  them, as late as it can (see `tables.pick`).

  Attributes:
    values: <float>[heads, length, memory_length], in which length and memory_length
      are positions.
  """
  values: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "ByPosition":
    """These logits times `scale` [heads]."""
    return self._replace(values=_scaled(self.values, scale))


class Products(NamedTuple):
  """Logits of which column j is repeated[j // b] * tiled[j mod b].

  Columns are positions in the example of the query, and `mean_of_examples` alone
  takes this form: it makes no more columns than an example has positions.

  Attributes:
    repeated: <float32>[batch, heads, length, a]; beyond a * b columns it begins
      again.
    tiled: <float32>[batch, heads, length, b]
  """
  repeated: mtf.Tensor
  tiled: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "Products":
    """These logits times `scale` [heads]."""
    return self._replace(repeated=_scaled(self.repeated, scale))


Logits = InnerProduct | Table | ByPosition | Products


def _scaled(tensor, scale):
  """tensor * scale as float32, with new dimensions first."""
  new = [d for d in scale.shape.dims if d not in tensor.shape.dims]
  return mtf.multiply(mtf.cast(tensor, tf.float32), scale,
                      output_shape=new + tensor.shape.dims)
