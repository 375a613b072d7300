"""Forms of logits: each synthesizing function returns its cheapest form.

A synthesizing function returns a list of forms that depends on neither mode nor
packing. `attend` reads each of them, once, by `AttentionInputs.read`, in a form that
suits the call, and decides how to compute with their sum.
"""

from collections.abc import Callable
from typing import NamedTuple

import mesh_tensorflow as mtf
import tensorflow.compat.v1 as tf


class InnerProduct(NamedTuple):
  """Logits that are inner products over `channels`.

  Attributes:
    query: <float>[batch, heads, length, channels]
    key: <float>[batch, heads, memory_length, channels]
    Each may lack `batch`; `length` is absent in incremental mode. The dimension
    `channels` may have any name, but must be the last of both.
  """
  query: mtf.Tensor
  key: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "InnerProduct":
    """These logits times `scale` [heads], on the smaller of the two sides."""
    if self.key.shape.size < self.query.shape.size:
      return self._replace(key=_scaled(self.key, scale))
    return self._replace(query=_scaled(self.query, scale))


class Table(NamedTuple):
  """A logit for each pair of query and key.

  Attributes:
    values: <float>[batch, heads, length, memory_length]; may lack `batch`.
      `length` is absent in incremental mode. They may depend on positions and on the
      query's token, but not on tokens of keys. In packed rows the columns are
      positions in the query's segment.
  """
  values: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "Table":
    """These logits times `scale` [heads]."""
    return self._replace(values=_scaled(self.values, scale))


class BiasTable(Table):
  """T5's relative position bias, which mixed precision adds in float32."""


class PositionBias(NamedTuple):
  """T5's relative position bias, before it is known for which keys it is needed.

  Attributes:
    for_pairs: returns it for all pairs: <float>[heads, length, memory_length]; in
      incremental mode with `batch` and without `length`.
    for_offsets: a function of the first offset and a dimension, which returns it for as
      many offsets from this one on: <float>[heads, offsets].
  """
  for_pairs: Callable[[], mtf.Tensor]
  for_offsets: Callable[[int, mtf.Dimension], mtf.Tensor]


class ByPosition(NamedTuple):
  """Logits that depend on the positions of query and key in their segment.

  On TPUs, kernels read those of packed rows as late as possible (`fast/cases.py`). In
  other cases they are read as a `Table`.

  Attributes:
    values: <float>[heads, length, memory_length], by position, for at least as many
      positions as the call has.
  """
  values: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "ByPosition":
    """These logits times `scale` [heads]."""
    return self._replace(values=_scaled(self.values, scale))


class ByOffset(NamedTuple):
  """Logits that depend on the distance between query and key.

  Attributes:
    before: <float>[heads, distance], for keys `distance` before the query.
    after: <float>[heads, distance], for keys `distance` + 1 after the query.
      Both have entries for at least all distances of the call.
  """
  before: mtf.Tensor
  after: mtf.Tensor


class Near(NamedTuple):
  """Logits of the keys near a query, as of LD; other keys have none.

  If they are the only logits of a layer, apart from T5's relative position bias, its
  queries attend to these keys alone (see `attend_near.py`). Next to other logits they
  add nothing to those of other keys.

  Attributes:
    values: <float>[batch, heads, length, near], of the keys at the distances `first`,
      `first` + 1, ... after the query. `length` is absent in incremental mode.
    first: an integer of at most 0; the last distance is at least 0.
  """
  values: mtf.Tensor
  first: int


class Products(NamedTuple):
  """Logits whose column j is repeated[j // b] * tiled[j mod b].

  Columns are positions in the query's segment. If segments of packed rows are computed
  separately, `attend_per_segment` takes this form. It makes no more columns than a
  segment has positions.

  Attributes:
    repeated: <float>[batch, heads, length, a]; it starts over after a * b columns.
    tiled: <float>[batch, heads, length, b]
  """
  repeated: mtf.Tensor
  tiled: mtf.Tensor

  def scaled(self, scale: mtf.Tensor) -> "Products":
    """These logits times `scale` [heads]."""
    return self._replace(repeated=_scaled(self.repeated, scale))


# The forms that `AttentionInputs.read` returns.
Readable = InnerProduct | Table | ByPosition | Products


class Weighted(NamedTuple):
  """Logits of a part of a mixture, times the weight of the part.

  They are read before they are weighted: tables may have more entries than the call.

  Attributes:
    term: the logits.
    weight: <float32>[heads] or <float32>[].
  """
  term: "Logits"
  weight: mtf.Tensor


Logits = Readable | ByOffset | Near | Weighted | PositionBias


def _scaled(tensor, scale):
  """tensor * scale as float32, with new dimensions first."""
  new = [d for d in scale.shape.dims if d not in tensor.shape.dims]
  return mtf.multiply(mtf.cast(tensor, tf.float32), scale,
                      output_shape=new + tensor.shape.dims)
