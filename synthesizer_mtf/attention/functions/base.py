"""The base classes of synthesizing functions: declarations and checks.

A synthesizing function declares its parameters in the constructor and makes logits in
one method. It returns them in their cheapest form (see `logit_forms.py`), and the
attention layer decides how to compute with them. Class attributes declare what other
modules need to know about the function.
"""

from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs


class Axes(NamedTuple):
  """The meaning of a variable's axes when a model starts from a checkpoint.

  Attributes:
    heads: the axis of the heads, as a negative index; None if there is none, or if an
      option removes it.
    positions: the axes that grow at their ends with the longest sequence.
    remedy: what to do if the size of another axis differs; `{size}` stands for the
      size of the last axis in the checkpoint.
    linear: whether `warm_start.interpolate` may put new entries between the old ones.
    after: the variable whose first entry comes before this variable's first; None if
      there is none.
  """
  heads: int | None = None
  positions: tuple[int, ...] = ()
  remedy: str | None = None
  linear: bool = True
  after: str | None = None


class SynthesizingFunction:
  """Base class: makes the logits of one attention layer.

  Attributes:
    variables: the names of the variables that `logits` can create, and their
      axes.
    encodes_order: whether the logits depend on the positions of queries and keys, so
      that a model needs no other information about the order of tokens.
    share_query: whether the function shares the projection `q` of V.
  """

  variables: ClassVar[Mapping[str, Axes]] = {}
  encodes_order: ClassVar[bool] = False
  share_query: bool = False

  def __init_subclass__(cls, **kwargs: Any):
    super().__init_subclass__(**kwargs)
    if "tells_order" in vars(cls):
      raise checks.Error(
          f"the class {cls.__name__} has the attribute `tells_order`, which nothing "
          "reads; its name is now `encodes_order`, so rename it.")

  def __init__(self) -> None:
    """Tells gin that there are no parameters."""

  @property
  def variable_names(self) -> tuple[str, ...]:
    """The names of the variables that `logits` creates with these parameters."""
    return tuple(self.variables)

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    """Makes the logits.

    Args:
      inputs: what this call of the layer sees.

    Returns:
      a list of forms of logits, to be added.
    """
    raise NotImplementedError

  def parameter(self, name: str) -> str:
    """The gin name of a constructor's parameter, for messages."""
    return f"{type(self).__name__}.{name}"

  def check_at_least(self, minimum: int, **values: Any) -> None:
    """Raises a ValueError for a value that is not an integer >= minimum."""
    for name, value in values.items():
      checks.check_whole(self.parameter(name), value, minimum)

  def check_boolean(self, **values: Any) -> None:
    """Raises a ValueError for a value that is neither True nor False."""
    for name, value in values.items():
      checks.check_boolean(self.parameter(name), value)


class LengthTables(SynthesizingFunction):
  """Base class of functions whose parameters depend on a maximum length.

  Tables have `max_length` positions and are cut to the batch. With `tile_length` they
  are smaller and repeat, so any length works. The paper names this solution and leaves
  it to future work (section 3.1, "On Parameters Depending on Sequence Length").
  """

  encodes_order = True

  def __init__(self, max_length: int = 512, tile_length: int | None = None):
    self.max_length = max_length
    self.tile_length = tile_length
    self.check_at_least(1, max_length=max_length)
    if tile_length is not None:
      self.check_at_least(1, tile_length=tile_length)

  @property
  def table_length(self) -> int:
    """The number of positions in the tables."""
    return self.tile_length or self.max_length

  def check_length(self, inputs: AttentionInputs) -> None:
    """Raises a ValueError if the sequences are longer than `max_length`."""
    if not self.tile_length:
      checks.check_length(self.parameter("max_length"), self.max_length,
                          inputs.memory_length.size)

  def fit(self, table: mtf.Tensor, inputs: AttentionInputs,
          *dim_names: str) -> mtf.Tensor:
    """Checks the dimensions of `table` in `dim_names`, and tiles them if required.

    Args:
      table: a tensor with `table_length` entries in each of `dim_names`.
      inputs: what this call of the layer sees.
      *dim_names: "length", "memory_length" or both.

    Returns:
      `table`, at least as long as the batch.

    Raises:
      ValueError: the sequences are longer than `max_length`.
    """
    self.check_length(inputs)

    def tiled():
      longer = table
      for name in dim_names:
        longer = tables.tile(longer, name, inputs.memory_length.size)
      return longer

    return inputs.once(tiled) if self.tile_length else table


class RandomTables(LengthTables):
  """Base class of functions whose tables are drawn, such as R."""

  def __init__(self, max_length: int = 512, tile_length: int | None = None,
               stddev: float = 1.0):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      tile_length: learn tables of this many positions, or distances, and repeat them to
        any length; `max_length` is then ignored.
      stddev: standard deviation of the initial logits.

    Raises:
      ValueError: a length is below 1, or `stddev` below 0.
    """
    super().__init__(max_length, tile_length)
    checks.check_not_negative(self.parameter("stddev"), stddev)
    self.stddev = stddev
