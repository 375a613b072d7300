"""One call of an attention layer: its tokens, dimensions, variables and caches."""

from collections.abc import Callable
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import stack_cache
import tensorflow.compat.v1 as tf


class LayerCall:
  """The tokens and dimensions of one call of an attention layer.

  Attributes:
    context: the `transformer.Context` of the stack.
    x: <float>[batch, length, d_model]; `length` is absent in incremental mode.
    memory: <float>[batch, memory_length, d_model], the source of keys and values;
      None in self-attention, where `x` is the source.
    heads: the dimension `heads`.
    d_kv: the dimension `d_kv`.
    length: the dimension `length` of the queries.
    memory_length: the dimension `memory_length` of the keys.
  """

  def __init__(self, context: transformer.Context, x: mtf.Tensor, num_heads: int,
               key_value_size: int, memory: mtf.Tensor | None = None):
    self.context = context
    self.x = x
    self.memory = memory
    self.heads = mtf.Dimension("heads", num_heads)
    self.d_kv = mtf.Dimension("d_kv", key_value_size)
    self.length = context.length_dim
    size = (self.length if memory is None
            else memory.shape.get_dim_by_name("memory_length")).size
    self.memory_length = mtf.Dimension("memory_length", size)

  @property
  def in_decoder(self) -> bool:
    """Whether the stack is autoregressive."""
    return self.context.model.autoregressive

  @property
  def sees_later(self) -> bool:
    """Whether queries may attend to later keys, as in encoders and over a prefix."""
    return not self.context.model.fully_autoregressive

  @property
  def batch_dims(self) -> list[mtf.Dimension]:
    """All dimensions of `x` except `length` and `d_model`."""
    return self.x.shape.dims[:-2]

  @property
  def length_dims(self) -> list[mtf.Dimension]:
    """[length]; nothing in incremental mode."""
    return [self.length]

  @property
  def query_dims(self) -> list[mtf.Dimension]:
    """[batch, heads, length]; `length` is absent in incremental mode."""
    return self.batch_dims + [self.heads] + self.length_dims

  def logit_dims(self, *tensors: mtf.Tensor) -> list[mtf.Dimension]:
    """`query_dims` and `memory_length`; given tensors, only the dimensions of these."""
    dims = self.query_dims + [self.memory_length]
    return [d for d in dims if any(d in t.shape.dims for t in tensors)
            ] if tensors else dims

  @property
  def combined(self) -> mtf.Dimension:
    """The dimension that holds heads and d_kv in T5's variables."""
    return mtf.Dimension("heads", self.heads.size * self.d_kv.size)

  def has_batch(self, tensor: mtf.Tensor) -> bool:
    """Whether a tensor has any of the batch dimensions."""
    return any(d in tensor.shape.dims for d in self.context.batch_dims)

  def as_keys(self, tensor: mtf.Tensor) -> mtf.Tensor:
    """Renames `length` to `memory_length`."""
    return mtf.replace_dimensions(tensor, self.length, self.memory_length)

  def variable(self, name: str, dims: list[mtf.Dimension], stddev: float,
               trainable: bool = True, mean: float | list[float] = 0.0) -> mtf.Tensor:
    """A variable in the layer's scope, initialized from a normal distribution.

    The mean is a number, or a list with one for each entry of the last dimension.

    Raises:
      ValueError: a layer with the same name has the variable in another shape.
    """
    shape = mtf.Shape(self.context.model.ensemble_dims + dims)
    tensor = mtf.get_variable(
        self.context.mesh, name, shape,
        initializer=tf.random_normal_initializer(mean, stddev),
        dtype=self.context.variable_dtype, trainable=trainable)
    if tensor.shape != shape:  # Mesh does not look at the shape of one that exists.
      raise checks.Error(
          f"two layers share the variable {name!r} of "
          f"{tf.get_variable_scope().name!r}, but it is {tensor.shape} in one and "
          f"{shape} in the other; give both the same attention and sizes, or names of "
          "their own by `make_bitransformer.encoder_name` and "
          "`make_layer_stack.layers`.")
    return tensor

  def once_per_stack(self, key: Any, make: Callable[[], Any]) -> Any:
    """Caches what `make` returns for all layers of a stack with this head count."""
    return stack_cache.once_per_stack(
        self.context, (key, self.heads, type(self)), make)

  def once(self, make: Callable[[], Any]) -> Any:
    """What `make` returns, which is the same in each step of decoding.

    A loop of `fast/` computes it once, before its first step.
    """
    return make()
