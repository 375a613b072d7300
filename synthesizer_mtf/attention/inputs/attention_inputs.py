"""The inputs that a synthesizing function reads in one call of its layer.

Synthesizing functions never ask whether the model trains, evaluates or decodes.
They ask `AttentionInputs` for projections, positions, variables and table rows. There
is a class for rows with one example each, one for packed rows, and one for a decoding
step; `for_call` chooses. `fast/cases.py` attaches further classes, which compute the
same in fewer operations.
"""

from collections.abc import Callable
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import diagonals
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.attention.inputs import tables
import tensorflow.compat.v1 as tf


class AttentionMask(NamedTuple):
  """A query attends to a key only if both attributes allow it.

  Attributes:
    keys: <bool>[batch, memory_length], False for padding; or None.
    pairs: <bool>[batch, length, memory_length], <bool>[length, memory_length]
      or, in incremental mode, <bool>[batch, memory_length]; or None.
  """
  keys: mtf.Tensor | None
  pairs: mtf.Tensor | None


class AttentionInputs:
  """The tokens, dimensions and positions of one call of an attention layer.

  This class handles unpacked rows, with one example each. It is the base class of
  the other cases.

  Attributes:
    context: the `transformer.Context` of the stack.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    memory: <float>[batch, memory_length, d_model], the source of keys and values;
      None in self-attention, where `x` is the source.
    heads: the dimension `heads`.
    d_kv: the dimension `d_kv`.
    length: the dimension `length` of the queries.
    memory_length: the dimension `memory_length` of the keys.
    is_packed: whether rows may hold several segments.
  """

  is_packed: ClassVar[bool] = False

  def __init__(self, context: transformer.Context, x: mtf.Tensor,
               num_heads: int, key_value_size: int,
               memory: mtf.Tensor | None = None):
    self.context = context
    self.x = x
    self.memory = memory
    self.heads = mtf.Dimension("heads", num_heads)
    self.d_kv = mtf.Dimension("d_kv", key_value_size)
    self.length = context.length_dim
    size = (self.length if memory is None
            else memory.shape.get_dim_by_name("memory_length")).size
    self.memory_length = mtf.Dimension("memory_length", size)
    self._query_scope = None
    self._projections = {}

  @property
  def batch_dims(self) -> list[mtf.Dimension]:
    """All dimensions of `x` except `length` and `d_model`."""
    return self.x.shape.dims[:-2]

  @property
  def in_decoder(self) -> bool:
    """Whether the stack is autoregressive."""
    return self.context.model.autoregressive

  @property
  def sees_later(self) -> bool:
    """Whether queries may attend to later keys, as in encoders and over a prefix."""
    return not self.context.model.fully_autoregressive

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

  def once_per_stack(self, key: Any, make: Callable[[], Any]) -> Any:
    """Caches what `make` returns for all layers of a stack with this head count."""
    return stack_cache.once_per_stack(
        self.context, (key, self.heads, type(self)), make)

  def once(self, make: Callable[[], Any]) -> Any:
    """What `make` returns, which is the same in each step of decoding.

    A loop of `fast/` computes it once, before its first step.
    """
    return make()

  @property
  def query_dims(self) -> list[mtf.Dimension]:
    """[batch, heads, length]; `length` is absent in incremental mode."""
    return self.batch_dims + [self.heads] + self.length_dims

  @property
  def length_dims(self) -> list[mtf.Dimension]:
    """[length]; nothing in incremental mode."""
    return [self.length]

  def logit_dims(self, *tensors: mtf.Tensor) -> list[mtf.Dimension]:
    """`query_dims` and `memory_length`; given tensors, only the dimensions of these."""
    dims = self.query_dims + [self.memory_length]
    return [d for d in dims if any(d in t.shape.dims for t in tensors)
            ] if tensors else dims

  def as_keys(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """Renames `length` to `memory_length`."""
    return mtf.replace_dimensions(tensor, self.length, self.memory_length)

  def mask(self) -> AttentionMask:
    """The attention mask that follows from the context, computed once per stack."""
    return stack_cache.once_per_stack(
        self.context, ("attention_mask", type(self)), self._mask)

  def _mask(self):
    context = self.context
    ids = segments.segment_id(context)
    mask = AttentionMask(None, None)
    if ids is not None:
      mask = self.mask_from_ids(ids, self.as_keys(ids))
    if context.read_priority is None:
      return mask
    ordered = mtf.greater_equal(
        context.read_priority, self.as_keys(context.write_priority))
    return mask._replace(pairs=(
        ordered if mask.pairs is None else mtf.logical_and(ordered, mask.pairs)))

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> AttentionMask:
    """The mask that segment ids alone imply.

    Args:
      queries: <int32>[batch, length], the segment ids of the queries.
      keys: <int32>[batch, memory_length], those of the keys.
    """
    del queries
    return AttentionMask(mtf.not_equal(keys, 0), None)

  def has_batch(self, tensor: mtf.Tensor) -> bool:
    """Whether a tensor has any of the batch dimensions."""
    return any(d in tensor.shape.dims for d in self.context.batch_dims)

  def variable(self, name: str, dims: list[mtf.Dimension], stddev: float,
               trainable: bool = True,
               mean: float | list[float] = 0.0) -> mtf.Tensor:
    """A variable in the layer's scope, initialized from a normal distribution.

    The mean is a number, or a list with one for each entry of the last dimension.

    Raises:
      ValueError: a layer with the same name has the variable in another shape.
    """
    shape = mtf.Shape(self.context.model.ensemble_dims + dims)
    found = mtf.get_variable(
        self.context.mesh, name, shape,
        initializer=tf.random_normal_initializer(mean, stddev),
        dtype=self.context.variable_dtype, trainable=trainable)
    if found.shape != shape:  # Mesh does not look at the shape of what it finds.
      raise checks.Error(
          f"two layers share the variable {name!r} of "
          f"{tf.get_variable_scope().name!r}, but it is {found.shape} in one and "
          f"{shape} in the other; give both the same attention and sizes, or names of "
          "their own by `make_bitransformer.encoder_name` and "
          "`make_layer_stack.layers`.")
    return found

  @property
  def combined(self) -> mtf.Dimension:
    """The dimension that holds heads and d_kv in T5's variables."""
    return mtf.Dimension("heads", self.heads.size * self.d_kv.size)

  def project(self, name: str, stddev: float | None = None) -> mtf.Tensor:
    """Projects each token to its heads, with a variable stored as T5 stores it.

    Args:
      name: the variable's name. The same variable is applied only once.
      stddev: standard deviation of the initializer; d_model^-0.5 if None.

    Returns:
      <float>[batch, heads, length, d_kv]
    """
    return self._project(name, self.x, self.length_dims, stddev)

  def project_memory(self, name: str) -> mtf.Tensor:
    """Projects the memory to keys or values.

    Args:
      name: the variable's name, stored as T5 stores it.

    Returns:
      <float>[batch, heads, memory_length, d_kv]. In self-attention it is part of the
      layer's decoding state (see `remember`). In cross-attention it is computed once,
      before decoding begins.
    """
    if self.memory is None:
      return self.remember(self.project(name))
    made = self._project(name, self.memory, [self.memory_length])
    if self.context.mode == "first_part":
      self.context.record_constant_state(made)
    return made

  def _project(self, name, x, lengths, stddev=None):
    """<float>[batch, heads, *lengths, d_kv], for x [batch, *lengths, d_model]."""
    key = tf.get_variable_scope().name, name
    if key not in self._projections:
      d_model = self.context.model.model_dim
      weights = self.variable(
          name, [d_model, self.combined], stddev or d_model.size ** -0.5)
      # A plain matrix product and a transposition are faster, forward and backward,
      # than an einsum that splits the heads.
      projected = mtf.replace_dimensions(
          mtf.einsum([x, weights], reduced_dims=[d_model]), self.combined,
          [self.heads, self.d_kv])
      # A memory has no beams.
      batch_dims = x.shape.dims[:-1 - len(lengths)]
      self._projections[key] = mtf.transpose(
          projected, batch_dims + [self.heads] + lengths + [self.d_kv])
    return self._projections[key]

  def share_query(self) -> None:
    """Makes all parts of a mixture share the projection `q` of this scope."""
    self._query_scope = tf.get_variable_scope()

  def project_query(self) -> mtf.Tensor:
    """The projection `q`, which V and D can share.

    As in T5, its initializer includes the factor 1/sqrt(d_kv).

    Returns:
      <float>[batch, heads, length, d_kv]
    """
    with tf.variable_scope(self._query_scope or tf.get_variable_scope()):
      return self.project(
          "q", (self.context.model.model_dim.size * self.d_kv.size) ** -0.5)

  def project_back(self, mean: mtf.Tensor) -> mtf.Tensor:
    """The layer's output projection `o`, stored as T5 stores it.

    Args:
      mean: <float>[batch, heads, length, d_kv]

    Returns:
      <float>[batch, length, d_model]
    """
    weights = self.variable(
        "o", [self.combined, self.context.model.model_dim],
        self.combined.size ** -0.5)
    dims = self.batch_dims + self.length_dims
    mean = mtf.transpose(mean, dims + [self.heads, self.d_kv])
    return mtf.einsum([mtf.replace_dimensions(
        mean, [self.heads, self.d_kv], self.combined), weights],
                      output_shape=self.x.shape)

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """Turns a tensor of this call's tokens into a tensor of all keys.

    Args:
      tensor: <float>[batch, heads, length, ...], made from this call's tokens.

    Returns:
      <float>[batch, heads, memory_length, ...]. While decoding it includes the
      earlier steps, and the call updates the layer's decoding state.
    """
    tensor = self.as_keys(tensor)
    if self.context.mode == "first_part":
      self.context.record_new_states([tensor])
    return tensor

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    """Rows of `table` at the queries' positions.

    Args:
      table: <float>[heads, length, ...] for all positions of the table.

    Returns:
      The rows, with `length` cut to the batch; with `batch` in `PackedRows`; with
      `batch` and without `length` in incremental mode.
    """
    return tables.cut(table, "length", self.length.size)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    """Columns of `table` at the keys' positions.

    Args:
      table: <float>[heads, ..., memory_length] for all positions of the table.

    Returns:
      The columns, with `memory_length` cut to the batch, and with `batch` in
      `PackedRows`.
    """
    return self.once(
        lambda: tables.cut(table, "memory_length", self.memory_length.size))

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    """Applies `query_rows` and `memory_columns`, in one pass if possible."""
    return self.query_rows(self.memory_columns(table))

  def read(self, term: logit_forms.Logits) -> logit_forms.Readable:
    """Converts logits to a form that attention accepts in this call.

    Args:
      term: one form of logits, from a synthesizing function.

    Returns:
      an `InnerProduct` or a `Table`.
    """
    if isinstance(term, logit_forms.ByPosition):
      return logit_forms.Table(self.rows_and_columns(term.values))
    if isinstance(term, logit_forms.ByOffset):
      return logit_forms.Table(self.by_offset(*term))
    if isinstance(term, logit_forms.Products):
      return logit_forms.Table(self.products(*term))
    if isinstance(term, logit_forms.Near):
      return logit_forms.Table(self.near(term.values, term.first))
    return term

  def by_offset(self, before: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
    """The logits of a `ByOffset`: <float32>[heads, length, memory_length]."""
    return diagonals.matrix(
        mtf.cast(before, tf.float32), mtf.cast(after, tf.float32),
        self.length, self.memory_length)

  def near(self, values: mtf.Tensor, first: int) -> mtf.Tensor:
    """The logits of a `Near`, and 0 for all other keys.

    Returns:
      <float32>[batch, heads, length, memory_length], without `length` in incremental
      mode.
    """
    return diagonals.band(mtf.cast(values, tf.float32), first, self.memory_length)

  def products(self, repeated: mtf.Tensor, tiled: mtf.Tensor) -> mtf.Tensor:
    """The logits of a `Products`: <float32>[batch, heads, length, memory_length]."""
    a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
    columns = mtf.replace_dimensions(
        mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32), [a, b],
        mtf.Dimension("memory_length", a.size * b.size))
    return tables.tile(columns, "memory_length", self.memory_length.size)


class PackedInputs(AttentionInputs):
  """Rows that may hold several examples."""

  is_packed = True

  @property
  def query_position(self) -> mtf.Tensor:
    return segments.segment_position(self.context)

  def segment_length(self) -> mtf.Tensor:
    return segments.segment_length(self.context)


class PackedRows(PackedInputs):
  """Packed rows: positions differ from row to row, and a query sees its segment."""

  @property
  def memory_position(self) -> mtf.Tensor:
    return mtf.rename_dimension(
        self.query_position, self.length.name, self.memory_length.name)

  def mask_from_ids(self, queries: mtf.Tensor, keys: mtf.Tensor) -> AttentionMask:
    return AttentionMask(None, mtf.equal(queries, keys))

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "length", self.query_position)

  def memory_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    return _gather(table, "memory_length", self.memory_position)

  def rows_and_columns(self, table: mtf.Tensor) -> mtf.Tensor:
    if self.context.model.ensemble_dims:
      return super().rows_and_columns(table)
    return tables.gather_table(table, self.query_position, self.memory_position)

  def products(self, repeated: mtf.Tensor, tiled: mtf.Tensor) -> mtf.Tensor:
    # Making all products before gathering columns would cost more.
    a, b = repeated.shape.dims[-1], tiled.shape.dims[-1]
    column = mtf.mod(self.memory_position, a.size * b.size)
    shape = self.logit_dims()
    repeated = mtf.gather(repeated, mtf.floordiv(column, b.size), a, shape)
    tiled = mtf.gather(tiled, mtf.mod(column, b.size), b, shape)
    return mtf.cast(repeated, tf.float32) * mtf.cast(tiled, tf.float32)


class DecodingStep(AttentionInputs):
  """One token of each row; the decoding state holds the earlier tokens."""

  @property
  def batch_dims(self) -> list[mtf.Dimension]:
    return self.x.shape.dims[:-1]

  @property
  def length_dims(self) -> list[mtf.Dimension]:
    return []

  @property
  def query_index(self) -> mtf.Tensor:
    return self.context.position

  def project_memory(self, name: str) -> mtf.Tensor:
    if self.memory is not None:
      return self.context.get_constant_state()
    return super().project_memory(name)

  def remember(self, tensor: mtf.Tensor) -> mtf.Tensor:
    old, = self.context.get_states(1)
    here = mtf.equal(self.memory_index, self.context.position)
    tensor = tables.where(here, tensor, old)
    self.context.record_new_states([tensor])
    return tensor

  def query_rows(self, table: mtf.Tensor) -> mtf.Tensor:
    rows = self.once(lambda: tables.cut(table, "length", self.memory_length.size))
    return tables.gather_rows(rows, self.context.position)

  def near(self, values: mtf.Tensor, first: int) -> mtf.Tensor:
    return tables.take_near(mtf.cast(values, tf.float32), first, self.offset)

  def by_offset(self, before: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
    del after  # Masked.
    # Positions of finished sequences keep growing until all have finished.
    last = before.shape.dims[-1].size - 1
    index = mtf.minimum(mtf.maximum(-self.offset, 0), last)
    return tables.take_by_distance(mtf.cast(before, tf.float32), index, self.batch_dims)


def _gather(table, name, position):
  """Gathers entries along the dimension `name` at each row's positions."""
  every = mtf.rename_dimension(table, name, "table_length")
  return mtf.gather(
      every, position, every.shape.get_dim_by_name("table_length"))


# A function of `context`, `packed` (whether rows hold several segments), `has_memory`
# (whether keys come from another tensor) and `attend_alone` (see `for_call`), which
# returns the class of a call.
Choose = Callable[[transformer.Context, bool, bool, bool], type]


def plain(context: transformer.Context, packed: bool, has_memory: bool,
          attend_alone: bool) -> type:
  """Chooses among the classes of this module."""
  del has_memory, attend_alone
  if context.mode == "incremental":
    return DecodingStep
  return PackedRows if packed else AttentionInputs


_choose: Choose = plain


def attach(choose: Choose) -> None:
  """Lets `choose` choose the class of each call, in place of `plain`."""
  global _choose
  _choose = choose


def for_call(context: transformer.Context, x: mtf.Tensor, num_heads: int,
             key_value_size: int, packed: bool | None = False,
             memory: mtf.Tensor | None = None,
             attend_alone: bool = False) -> AttentionInputs:
  """The inputs of a layer's call, in the class of its case.

  Args:
    context: a `transformer.Context`.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    num_heads: an integer.
    key_value_size: an integer, d_kv.
    packed: whether rows may hold several examples; None detects it (see
      `segments.is_packed`).
    memory: as in `AttentionInputs`.
    attend_alone: whether nothing but `attend.attend` reads the layer's keys and values,
      so that a kernel may lay them out in its own way.
  """
  is_packed = context.mode != "incremental" and segments.is_packed(context, packed)
  case = _choose(context, is_packed, memory is not None, attend_alone)
  return case(context, x, num_heads, key_value_size, memory)
