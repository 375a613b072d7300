"""Forms of logits: each synthesizing function returns its cheapest form.

A synthesizing function returns a list of forms that depends on neither mode nor
packing. `read` converts each form to one that `attend` accepts in the call. `attend`
decides how to compute with their sum.
"""

import functools
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import diagonals
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import cases
from synthesizer_mtf.attention.inputs import tables
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


class RelativePositionBias(Table):
  """T5's relative position bias, which mixed precision adds in float32."""


class ByPosition(NamedTuple):
  """Logits that depend on the positions of query and key in their segment.

  For packed rows on TPUs `attend` reads them, as late as possible (see `tables.pick`).
  In other cases `read` makes a `Table` of them.

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


class Products(NamedTuple):
  """Logits whose column j is repeated[j // b] * tiled[j mod b].

  Columns are positions in the query's segment. If segments of packed rows are computed
  separately, `attend_per_example` takes this form. It makes no more columns than a
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


Logits = InnerProduct | Table | ByPosition | ByOffset | Products
# The forms that `read` returns.
Readable = InnerProduct | Table | ByPosition | Products


def read(inputs: attention_inputs.AttentionInputs, term: Logits) -> Readable:
  """Converts logits to a form that attention accepts in this call.

  Args:
    inputs: an `AttentionInputs`.
    term: one form of logits, from a synthesizing function.

  Returns:
    an `InnerProduct` or a `Table`; a `ByPosition` or `Products` if `attend`
    reads these itself.
  """
  if isinstance(term, ByPosition):
    return _by_position(inputs, *term)
  if isinstance(term, ByOffset):
    return _by_offset(inputs, *term)
  if isinstance(term, Products):
    return _products(inputs, *term)
  return term


@functools.singledispatch
def _by_position(inputs, values):
  return Table(inputs.rows_and_columns(values))


@_by_position.register
def _(inputs: cases.PackedRowsOnTpu, values):
  size = inputs.memory_length.size
  return ByPosition(tables.cut(
      tables.cut(values, "length", size), "memory_length", size))


@functools.singledispatch
def _by_offset(inputs, before, after):
  return Table(diagonals.matrix(
      mtf.cast(before, tf.float32), mtf.cast(after, tf.float32),
      inputs.length, inputs.memory_length))


@_by_offset.register
def _(inputs: cases.DecodingStep, before, after):
  del after  # Masked.
  # Positions of finished sequences keep growing until all have finished.
  last = before.shape.dims[-1].size - 1
  index = mtf.minimum(mtf.maximum(-inputs.offset, 0), last)
  return Table(tables.take_by_distance(
      mtf.cast(before, tf.float32), index, inputs.batch_dims))


@functools.singledispatch
def _products(inputs, repeated, tiled):
  a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
  products = mtf.replace_dimensions(
      mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32), [a, b],
      mtf.Dimension("memory_length", a.size * b.size))
  return Table(tables.tile(products, "memory_length", inputs.memory_length.size))


@_products.register
def _(inputs: cases.PackedRows, repeated, tiled):
  # Making all products before gathering columns would cost more.
  a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
  column = mtf.mod(inputs.memory_position, a.size * b.size)
  shape = inputs.logit_dims()
  repeated = mtf.gather(repeated, mtf.floordiv(column, b.size), a, shape)
  tiled = mtf.gather(tiled, mtf.mod(column, b.size), b, shape)
  return Table(mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32))


@_products.register
def _(inputs: cases.PackedExamples, repeated, tiled):
  del inputs
  return Products(mtf.cast(repeated, tf.float32), mtf.cast(tiled, tf.float32))


def _scaled(tensor, scale):
  """tensor * scale as float32, with new dimensions first."""
  new = [d for d in scale.shape.dims if d not in tensor.shape.dims]
  return mtf.multiply(mtf.cast(tensor, tf.float32), scale,
                      output_shape=new + tensor.shape.dims)
