"""What the synthesizing functions share: two forms of logits, and their checks.

A synthesizing function declares its parameters in the constructor and makes
logits in one method. It returns them in the form in which they are cheapest, and
the attention layer decides how to compute with them.
"""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import positions
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

  def scaled(self, scale):
    """These logits times `scale` [heads], on the smaller of the two sides."""
    if self.key.shape.size < self.query.shape.size:
      return self._replace(key=_scaled(self.key, scale))
    return self._replace(query=_scaled(self.query, scale))


class Table(NamedTuple):
  """Logits given one by one.

  Attributes:
    values: <float>[batch, heads, length, memory_length]; may lack `batch`.
      `length` is absent in incremental mode.
  """
  values: mtf.Tensor

  def scaled(self, scale):
    """These logits times `scale` [heads]."""
    return self._replace(values=_scaled(self.values, scale))


def _scaled(tensor, scale):
  """tensor * scale as float32, with new dimensions first."""
  new = [d for d in scale.shape.dims if d not in tensor.shape.dims]
  return mtf.multiply(mtf.cast(tensor, tf.float32), scale,
                      output_shape=new + tensor.shape.dims)


class SynthesizingFunction:
  """Base class: makes the logits of one attention layer.

  Attributes:
    variable_names: the names of the variables that `logits` creates.
  """

  variable_names = ()

  def logits(self, inputs):
    """Makes the logits.

    Args:
      inputs: an `AttentionInputs`.

    Returns:
      a list of `InnerProduct` and `Table`, to be added.
    """
    raise NotImplementedError

  def parameter(self, name):
    """The gin name of a constructor's parameter, for messages."""
    return f"{type(self).__name__}.{name}"

  def check_at_least(self, minimum, **values):
    """Raises a ValueError for a value that is not a whole number >= minimum."""
    for name, value in values.items():
      if not checks.is_whole(value, minimum):
        raise ValueError(
            f"`{self.parameter(name)}` is {value!r} but must be a whole number "
            f"of at least {minimum}; change `{self.parameter(name)}`.")

  def check_boolean(self, **values):
    """Raises a ValueError for a value that is neither True nor False."""
    for name, value in values.items():
      checks.check_boolean(self.parameter(name), value)


class LengthTables(SynthesizingFunction):
  """Base class of functions whose parameters depend on a maximum length.

  Tables are made for `max_length` positions and cut to the batch. With
  `tile_length` they are smaller and repeat, so that any length works: the
  solution that the paper names and leaves to future work (section 3.1, "On
  Parameters Depending on Sequence Length").
  """

  def __init__(self, max_length=512, tile_length=None):
    self.max_length = max_length
    self.tile_length = tile_length
    self.check_at_least(1, max_length=max_length)
    if tile_length is not None:
      self.check_at_least(1, tile_length=tile_length)

  @property
  def table_length(self):
    return self.tile_length or self.max_length

  def check_length(self, inputs):
    """Raises a ValueError if the sequences are longer than `max_length`."""
    if not self.tile_length:
      check_length(self.parameter("max_length"), self.max_length,
                   inputs.memory_length.size)

  def fit(self, table, inputs, *dim_names):
    """Checks, and tiles if asked to, the dimensions of `table` in `dim_names`.

    Args:
      table: a tensor with `table_length` entries in each of `dim_names`.
      inputs: an `AttentionInputs`.
      *dim_names: "length", "memory_length" or both.

    Returns:
      `table`, at least as long as the batch.

    Raises:
      ValueError: the sequences are longer than `max_length`.
    """
    self.check_length(inputs)
    if self.tile_length:
      for name in dim_names:
        table = positions.tile(table, name, inputs.memory_length.size)
    return table


def check_length(name, max_length, length):
  """Raises a ValueError, naming the gin parameter, if length > max_length."""
  if length > max_length:
    raise ValueError(
        f"`{name}` is {max_length} but the sequence has length {length}; raise "
        f"`{name}` to {length} or more, or shorten the task's sequences with "
        "`utils.run.sequence_length`.")
