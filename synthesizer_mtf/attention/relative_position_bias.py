"""T5's relative position bias for our layers, and a warning if order is unknown."""

import copy
import functools

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import transformer_layers
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import diagonals
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs import stack_cache
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf


class RelativePositionBias:
  """The bias for each distance, computed by stock `SelfAttention` without masks.

  Variables: `relative_attention_bias` [heads, buckets], as T5 stores it.

  Attributes:
    kind: None for no bias, "bias" for one table in each layer, or "bias_shared"
      for one in all layers of a stack.
    num_buckets: the number of entries of a table for each head.
  """

  def __init__(self, layer: str, kind: str | None, num_buckets: int):
    """Takes `relative_attention_type` and `relative_attention_num_buckets` of a layer.

    Raises:
      ValueError: T5's relative position bias does not support these values.
    """
    if kind not in (None, "bias", "bias_shared"):
      raise checks.Error(
          f"`{layer}.relative_attention_type` is {kind!r} but must be None, "
          "\"bias\" or \"bias_shared\"; change it.")
    # With fewer buckets, a direction of an encoder has no bucket for the nearest keys.
    checks.check_whole(f"{layer}.relative_attention_num_buckets", num_buckets, 4)
    self.kind = kind
    self.num_buckets = num_buckets

  def __bool__(self) -> bool:
    return self.kind is not None

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    """The bias as logits of a call; none if there is no bias."""
    if not self:
      return []
    return [logit_forms.PositionBias(
        functools.partial(self.for_pairs, inputs),
        functools.partial(self.for_offsets, inputs))]

  def between(self, inputs: AttentionInputs,
              query: mtf.Tensor | int, key: mtf.Tensor) -> mtf.Tensor:
    """The bias for the distance between queries and keys.

    Args:
      inputs: the inputs of the call.
      query: <int32>, positions with any dimensions, or one for all keys.
      key: <int32>, positions with any dimensions.

    Returns:
      <float>[heads, ...] with the dimensions of both.
    """
    context = copy.copy(inputs.context)
    context.read_priority = context.sequence_id = context.subsequence_id = None
    context.position = query
    stock = transformer_layers.SelfAttention(
        num_heads=inputs.heads.size, relative_attention_type=self.kind,
        relative_attention_num_buckets=self.num_buckets)
    return stock.compute_bias(context, key, inputs.x, [inputs.heads], None)

  def for_pairs(self, inputs: AttentionInputs) -> mtf.Tensor:
    """The bias for all queries and keys of a call.

    In a segment, distances between indices equal distances between positions. So the
    bias has no batch in training. A shared bias is computed once per stack.

    Returns:
      <float>[heads, length, memory_length]; in incremental mode with `batch` and
      without `length`.
    """
    def make():
      if self._is_by_distance(inputs):
        return self._by_distance(inputs)
      return self.between(inputs, inputs.query_index, inputs.memory_index)

    if self.kind == "bias":
      return make()
    return stack_cache.once_per_stack(
        inputs.context, ("relative_position_bias", inputs.heads), make)

  def _is_by_distance(self, inputs):
    """Whether XLA computes the bias of as many keys as queries."""
    return (inputs.context.mode != "incremental" and
            splits.is_compiled(inputs.context.mesh) and
            not inputs.context.model.ensemble_dims and
            inputs.length.size == inputs.memory_length.size)

  def _by_distance(self, inputs):
    """The bias for all pairs from that for each distance: much shorter products."""
    distance = mtf.Dimension("distance", inputs.length.size)
    steps = mtf.range(inputs.context.mesh, distance, tf.int32)
    before, after = [mtf.cast(mtf.transpose(
        self.between(inputs, 0, key), [inputs.heads, distance]), tf.float32)
                     for key in (0 - steps, 1 + steps)]
    return diagonals.matrix(before, after, inputs.length, inputs.memory_length)

  def for_offsets(self, inputs: AttentionInputs, first: int,
                  offsets: mtf.Dimension) -> mtf.Tensor:
    """The bias of the keys at the distances `first`, `first` + 1, ... after a query.

    Returns:
      <float>[heads, offsets]
    """
    return self.between(inputs, 0, first + mtf.range(
        inputs.context.mesh, offsets, tf.int32))

  def warn_without_order(self, context: transformer.Context, sentence: str) -> None:
    """Logs a warning, once per stack, if nothing encodes the order of tokens.

    Args:
      context: the context of the call.
      sentence: what is missing and what to bind.
    """
    if (self or context.model.positional_embedding or
        context.model.autoregressive):
      return
    stack_cache.once_per_stack(
        context, "warning of order", lambda: tf.logging.warning(sentence))
