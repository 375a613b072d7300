"""The projections of a call's tokens to heads, and back, with T5's variables.

A matrix product and a transposition are faster, forward and backward, than an einsum
that splits the heads.
"""

from typing import Any

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import layer_call
import tensorflow.compat.v1 as tf


class Projections(layer_call.LayerCall):
  """Queries, keys, values and the output. Each variable is stored as T5 stores it."""

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._query_scope = None
    self._projected = {}

  def project(self, name: str, stddev: float | None = None) -> mtf.Tensor:
    """Projects each token to its heads.

    Args:
      name: the variable's name. The same variable is applied only once.
      stddev: standard deviation of the initializer; d_model^-0.5 if None.

    Returns:
      <float>[batch, heads, length, d_kv]
    """
    return self._project(name, self.x, self.length_dims, stddev)

  def project_memory(self, name: str) -> mtf.Tensor:
    """Projects the memory to keys or values.

    Returns:
      <float>[batch, heads, memory_length, d_kv]. In self-attention it is part of the
      layer's decoding state (see `remember`). In cross-attention it is computed once,
      before decoding begins.
    """
    if self.memory is None:
      return self.remember(self.project(name))
    projected = self._project(name, self.memory, [self.memory_length])
    if self.context.mode == "first_part":
      self.context.record_constant_state(projected)
    return projected

  def _project(self, name, x, lengths, stddev=None):
    """<float>[batch, heads, *lengths, d_kv], for x [batch, *lengths, d_model]."""
    key = tf.get_variable_scope().name, name
    if key not in self._projected:
      d_model = self.context.model.model_dim
      weights = self.variable(
          name, [d_model, self.combined], stddev or d_model.size ** -0.5)
      projected = mtf.replace_dimensions(
          mtf.einsum([x, weights], reduced_dims=[d_model]), self.combined,
          [self.heads, self.d_kv])
      # A memory has no beams.
      batch_dims = x.shape.dims[:-1 - len(lengths)]
      self._projected[key] = mtf.transpose(
          projected, batch_dims + [self.heads] + lengths + [self.d_kv])
    return self._projected[key]

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
    """The layer's output projection `o`.

    Args:
      mean: <float>[batch, heads, length, d_kv], in any order of dimensions.

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
