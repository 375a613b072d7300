"""What a synthesizing function may look at during one call of its layer.

Synthesizing functions never ask whether the model trains, evaluates or decodes.
They ask `AttentionInputs` for projections, variables and rows of their tables,
and it gives the right ones for the mode and the packing of the batch.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf import positions
import tensorflow.compat.v1 as tf


class AttentionInputs:
  """The tokens, dimensions and positions of one call of an attention layer.

  Attributes:
    context: the `transformer.Context` of the stack.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    heads: the dimension `heads`.
    d_kv: the dimension `d_kv`.
    length: the dimension `length` of the queries.
    memory_length: the dimension `memory_length` of the keys.
    packed: whether rows may hold several examples (see `positions.is_packed`).
  """

  def __init__(self, context, x, num_heads, key_value_size, packed):
    self.context = context
    self.x = x
    self.heads = mtf.Dimension("heads", num_heads)
    self.d_kv = mtf.Dimension("d_kv", key_value_size)
    self.length = context.length_dim
    self.memory_length = mtf.Dimension("memory_length", context.length_dim.size)
    self.packed = packed
    self.incremental = context.mode == "incremental"
    self._query_scope = None
    self._projections = {}

  @property
  def batch_dims(self):
    """All dimensions of `x` but `length` and `d_model`."""
    return self.x.shape.dims[:-1 if self.incremental else -2]

  @property
  def query_dims(self):
    """[batch, heads, length]; `length` is absent in incremental mode."""
    return self.batch_dims + [self.heads] + self.length_dims

  @property
  def key_dims(self):
    """[batch, heads, memory_length]"""
    return self.batch_dims + [self.heads, self.memory_length]

  @property
  def length_dims(self):
    return [] if self.incremental else [self.length]

  def has_batch(self, tensor):
    return any(d in tensor.shape.dims for d in self.context.batch_dims)

  def variable(self, name, dims, stddev, trainable=True, mean=0.0):
    """A normally initialized variable, in the layer's scope.

    The mean is a number, or a list with one for each entry of the last dimension.
    """
    return mtf.get_variable(
        self.context.mesh, name,
        mtf.Shape(self.context.model.ensemble_dims + dims),
        initializer=tf.random_normal_initializer(mean, stddev),
        dtype=self.context.variable_dtype, trainable=trainable)

  @property
  def combined(self):
    """The dimension in which T5 stores heads and d_kv together."""
    return mtf.Dimension("heads", self.heads.size * self.d_kv.size)

  def project(self, name, stddev=None):
    """Projects each token to its heads, with a variable stored as T5 stores it.

    Args:
      name: the variable's name. The same variable is applied only once.
      stddev: of the initializer; d_model^-0.5 if None.

    Returns:
      <float>[batch, heads, length, d_kv]
    """
    key = tf.get_variable_scope().name, name
    if key not in self._projections:
      d_model = self.context.model.model_dim
      weights = self.variable(
          name, [d_model, self.combined], stddev or d_model.size ** -0.5)
      # One plain matrix product and a transposition take less time, forward and
      # backward, than an einsum which splits the heads.
      projected = mtf.replace_dimensions(
          mtf.einsum([self.x, weights], reduced_dims=[d_model]), self.combined,
          [self.heads, self.d_kv])
      self._projections[key] = mtf.transpose(
          projected, self.query_dims + [self.d_kv])
    return self._projections[key]

  def share_query(self):
    """Gives all parts the projection `q` of this scope, the layer's."""
    self._query_scope = tf.get_variable_scope()

  def project_query(self):
    """The projection `q`, which V and D can share.

    T5 makes 1/sqrt(d_kv) a part of its initializer.
    """
    with tf.variable_scope(self._query_scope or tf.get_variable_scope()):
      return self.project(
          "q", (self.context.model.model_dim.size * self.d_kv.size) ** -0.5)

  def project_back(self, mean):
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

  def remember(self, tensor):
    """Turns what each query made into what all keys hold.

    Args:
      tensor: <float>[batch, heads, length, ...], made from this call's tokens.

    Returns:
      <float>[batch, heads, memory_length, ...]. While decoding it holds the
      earlier steps too, and the layer's decoding state is updated.
    """
    context = self.context
    if self.incremental:
      old, = context.get_states(1)
      slots = mtf.range(context.mesh, self.memory_length, tf.int32)
      tensor = _where(mtf.equal(slots, context.position), tensor, old)
    else:
      tensor = mtf.replace_dimensions(tensor, self.length, self.memory_length)
    if context.mode in ("first_part", "incremental"):
      context.record_new_states([tensor])
    return tensor

  def query_rows(self, table):
    """Rows of `table` at the queries' positions.

    Args:
      table: <float>[heads, length, ...] for all positions of the table.

    Returns:
      The rows, with `length` cut to the batch; with `batch` where rows are
      packed; with `batch` and without `length` in incremental mode.
    """
    dim = table.shape.get_dim_by_name("length")
    if self.incremental:
      table = positions.cut(table, "length", self.memory_length.size)
      return positions.gather_rows(table, self.context.position)
    if self.packed:
      index = positions.segment_position(self.context)
      every = mtf.rename_dimension(table, "length", "table_length")
      return mtf.gather(every, index, mtf.Dimension("table_length", dim.size))
    return positions.cut(table, "length", self.length.size)

  def memory_columns(self, table):
    """Columns of `table` at the keys' positions.

    Args:
      table: <float>[heads, ..., memory_length] for all positions of the table.

    Returns:
      The columns, with `memory_length` cut to the batch, and with `batch` where
      rows are packed.
    """
    if self.packed:
      dim = table.shape.get_dim_by_name("memory_length")
      every = mtf.rename_dimension(table, "memory_length", "table_length")
      return mtf.gather(every, self.memory_position(),
                        mtf.Dimension("table_length", dim.size))
    return positions.cut(table, "memory_length", self.memory_length.size)

  def rows_and_columns(self, table):
    """What `query_rows` and `memory_columns` give together, in one pass."""
    if self.packed:
      return positions.gather_table(
          table, positions.segment_position(self.context),
          self.memory_position())
    return self.query_rows(
        positions.cut(table, "memory_length", self.memory_length.size))

  def memory_position(self):
    """<int32>[batch, memory_length]: positions within segments, of the keys."""
    return mtf.rename_dimension(
        positions.segment_position(self.context), self.length.name,
        self.memory_length.name)


def _where(condition, new, old):
  """`new` where the condition holds and `old` elsewhere, in one pass.

  `mtf.where` multiplies and adds, which are four passes over `old`.

  Args:
    condition: <bool> with any of the dimensions of `old`.
    new: a tensor with any of the dimensions of `old`.
    old: a tensor.

  Returns:
    a tensor with the shape and dtype of `old`.
  """
  dims = old.shape.dims
  picked = [mtf.transpose(x, [d for d in dims if d in x.shape.dims])
            for x in (condition, new)]
  missing = [[i for i, d in enumerate(dims) if d not in x.shape.dims]
             for x in picked]

  def where(*slices):
    aligned = []
    for x, axes in zip(slices, missing):
      for axis in axes:
        x = tf.expand_dims(x, axis)
      aligned.append(x)
    return tf.where_v2(*aligned, slices[-1])

  return mtf.slicewise(where, [*picked, old], output_shape=dims,
                       output_dtype=old.dtype, splittable_dims=dims,
                       grad_function=0)
