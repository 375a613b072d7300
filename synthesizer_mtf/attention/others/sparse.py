"""The common part of both Sparse Transformer attentions (arXiv:1904.10509).

In both, query i attends to the union of two sets of keys, A(1) and A(2), or each head
attends to one of the sets. The sets are laid out in blocks of `stride` positions.
`near` keys, around the query's block, hold A(1); `far` keys hold the rest of A(2). One
softmax covers both, and a key in both sets counts once.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import ClassVar
from typing import NamedTuple

import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import heads
from synthesizer_mtf.attention import relative_position_bias
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import tables
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
from synthesizer_mtf.attention.others import sequence_blocks
import tensorflow.compat.v1 as tf

_HARDLY_ANY_ORDER = (
    "The encoder has no positional embedding and its attention no relative position "
    "bias, so that it hardly knows the order of the tokens; bind "
    "`{}.relative_attention_type = \"bias_shared\"` or "
    "`Unitransformer.positional_embedding = True`.")

PATTERNS = ("merged", "local", "summary", "alternate")


class Tokens(NamedTuple):
  """What the masks compare, in the layout of the queries or of the keys.

  Attributes:
    index: <int32>, the position plus one; 0 where there is no token.
    segment: <int32>[batch, ...], see `segments.segment_id`; or None.
    priority: <int32>[batch, ...], of a prefix language model; or None.
  """
  index: mtf.Tensor
  segment: mtf.Tensor | None
  priority: mtf.Tensor | None

  def each(self, function: Callable[[mtf.Tensor], mtf.Tensor]) -> "Tokens":
    """Applies `function` to each of the tensors."""
    return Tokens(*(None if t is None else function(t) for t in self))


# A choice of keys for each query, from [..., memory_length, ...] to [..., keys, ...].
View = Callable[[mtf.Tensor], mtf.Tensor]


class Part(NamedTuple):
  """The keys of a view, ready for attention.

  Attributes:
    key: <float>[batch, heads, ..., d_kv]
    values: <float>[batch, heads, ..., d_kv]
    biases: tensors to add to the logits, with any of their dimensions.
    keys: the dimension that the queries do not have.
  """
  key: mtf.Tensor
  values: mtf.Tensor
  biases: list
  keys: mtf.Dimension


class SparseAttention(transformer.TransformerLayer):
  """Base class: dot-product attention to A(1) and A(2).

  Variables: `q`, `k`, `v`, `o` as T5 stores them, and T5's
  `relative_attention_bias` on demand.
  """

  variables: ClassVar[Mapping[str, base.Axes]] = {}

  def __init__(self, num_heads: int | None = None, key_value_size: int | None = None,
               dropout_rate: float | None = None, stride: int = 128,
               pattern: str = "merged", relative_attention_type: str | None = None,
               relative_attention_num_buckets: int = 32, packed: bool | None = None):
    """Declares the parameters.

    Args:
      num_heads, key_value_size, dropout_rate: as in `SyntheticAttention`.
      stride: l, the length of a block; 128 or 256 in the source.
      pattern: the keys of the heads: "merged", the union; "local", A(1); "summary",
        A(2); or "alternate", A(1) and A(2) in turn (section 5.1 of the source). To
        alternate A(1) and A(2) by block, as there, bind a list of layers in gin. A
        query with an empty A(2) gets zeros.
      relative_attention_type, relative_attention_num_buckets, packed: as in
        `SyntheticAttention`.

    Raises:
      ValueError: a parameter is missing or out of range.
    """
    name = type(self).__name__
    self.heads = heads.Heads(
        name, num_heads, key_value_size, dropout_rate)
    checks.check_whole(f"{name}.stride", stride)
    if pattern not in PATTERNS:
      raise checks.Error(
          f"`{name}.pattern` is {pattern!r} but must be one of "
          f"{', '.join(map(repr, PATTERNS))}; change `{name}.pattern`.")
    self.relative_position_bias = relative_position_bias.RelativePositionBias(
        name, relative_attention_type, relative_attention_num_buckets)
    checks.check_boolean(f"{name}.packed", packed, or_none=True)
    self.stride = stride
    self.pattern = pattern
    self._sets: tuple = name, stride, pattern
    self.packed = packed

  def first(self, queries: mtf.Tensor, keys: mtf.Tensor,
            inputs: AttentionInputs) -> mtf.Tensor:
    """Whether each key is in A(1) of each query, regardless of the order.

    Args:
      queries: <int32>, the queries' indices in the row, counted from 1.
      keys: <int32>, the keys' indices, likewise.
      inputs: the inputs of the call.

    Returns:
      <bool>, with the dimensions of both, and possibly `heads`.
    """
    raise NotImplementedError

  def second(self, queries: mtf.Tensor, keys: mtf.Tensor,
             inputs: AttentionInputs) -> mtf.Tensor:
    """Whether each key is in A(2) of each query; the arguments are those of `first`."""
    raise NotImplementedError

  def near(self, inputs: AttentionInputs,
           blocks: sequence_blocks.SequenceBlocks) -> View:
    """The `View` that holds A(1): a window of two blocks, or three in encoders."""
    sides = 1 if only_earlier(inputs) else 2
    return lambda tensor: blocks.windows(
        tensor, sides if blocks.blocks.size > 1 else 0)

  def far(self, inputs: AttentionInputs,
          blocks: sequence_blocks.SequenceBlocks) -> View:
    """The `View` that holds A(2) without `near`, or all of A(2) if `far` is alone."""
    raise NotImplementedError

  def index(self, inputs: AttentionInputs) -> mtf.Tensor:
    """<int32>[length] or [batch, length]: each position plus one."""
    return inputs.query_index + 1

  def far_alone(self, inputs: AttentionInputs) -> bool:
    """Whether `far` holds all keys that the heads attend to."""
    return self.pattern == "summary" and inputs.length.size > self.stride

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer; the arguments and the result are as in `SyntheticAttention`."""
    del losses
    self.relative_position_bias.warn_without_order(
        context, _HARDLY_ANY_ORDER.format(type(self).__name__))
    inputs = self.heads.inputs(context, x, packed=self.packed)
    query = inputs.project_query()
    key = inputs.project_memory("k")
    values = self.heads.dropout(inputs.project_memory("v"), inputs)
    mean = (self._attend_step if context.mode == "incremental"
            else self._attend_rows)
    return inputs.project_back(mean(inputs, query, key, values))

  def _attend_rows(self, inputs, query, key, values):
    """The mean of the values for all queries, block by block.

    The query and the result are <float>[batch, heads, length, d_kv]; key and values
    are <float>[batch, heads, memory_length, d_kv].
    """
    blocks = sequence_blocks.SequenceBlocks(inputs.length, self.stride)
    query = blocks.queries(query)
    parts = []
    for name, view in self._views(blocks, inputs).items():
      laid_out = view(key)
      keys, = [d for d in laid_out.shape.dims if d not in query.shape.dims]
      parts.append(Part(laid_out, view(values),
                        self._biases(name, view, blocks, inputs), keys))
    return blocks.join(masked_mean(query, parts, self._may_see_nothing))

  def _attend_step(self, inputs, query, key, values):
    """The mean of the values for one query, over the whole memory.

    Keys after the query are masked, so A(1) and A(2) can ignore the order. The tensors
    are as in `_attend_rows`, without `length`.
    """
    query_index = inputs.query_index + 1
    key_index = inputs.once(lambda: inputs.memory_index + 1)
    sees = [self._in_set(query_index, key_index, inputs),
            *inputs.mask()]
    biases = [masks.mask_bias(_all(sees))]
    if self.relative_position_bias:
      biases.append(self._relative_position_bias(query_index, key_index, inputs))
    part = Part(key, values, biases, inputs.memory_length)
    return masked_mean(query, [part], self._may_see_nothing)

  @property
  def _may_see_nothing(self):
    """Whether a head can have queries whose set is empty."""
    return self.pattern in ("summary", "alternate")

  def _views(self, blocks, inputs):
    if self.far_alone(inputs):
      return {"far": self.far(inputs, blocks)}
    views = {"near": self.near(inputs, blocks)}
    if self.pattern != "local" and blocks.blocks.size > 1:
      views["far"] = self.far(inputs, blocks)
    return views

  def _tokens(self, inputs):
    """The `Tokens` of queries [..., length] and keys [..., memory_length]."""
    context = inputs.context
    index, segment = self.index(inputs), segments.segment_id(context)
    read = write = None
    if _has_prefix(inputs):
      read, write = context.read_priority, context.write_priority
    keys = Tokens(index, segment, write).each(
        lambda t: mtf.rename_dimension(t, inputs.length.name, "memory_length"))
    return Tokens(index, segment, read), keys

  def _biases(self, name, view, blocks, inputs):
    """The tensors to add to the logits of a view: mask and relative position bias."""
    def indices():
      queries, keys = self._tokens(inputs)
      return queries.each(blocks.queries), keys.each(view)

    def mask():
      queries, keys = indices()
      return masks.mask_bias(mtf.logical_and(
          self._in_view(name, queries.index, keys.index, inputs),
          _seen(queries, keys, inputs)))

    def relative():
      queries, keys = indices()
      return self._relative_position_bias(queries.index, keys.index, inputs)

    biases = [inputs.once_per_stack(("mask " + name, self._sets), mask)]
    if self.relative_position_bias.kind == "bias":
      biases.append(relative())
    elif self.relative_position_bias:
      biases.append(
          inputs.once_per_stack(("relative " + name, self._sets), relative))
    return biases

  def _in_view(self, name, queries, keys, inputs):
    """Whether a pair is in the heads' sets, and this view holds it, not the other."""
    in_set = self._in_set(queries, keys, inputs)
    if self.far_alone(inputs):
      return in_set
    near = self.first(queries, keys, inputs)
    return mtf.logical_and(
        near if name == "near" else mtf.logical_not(near), in_set)

  def _in_set(self, queries, keys, inputs):
    """Whether a pair is in A(1), A(2) or their union, by the pattern of the heads."""
    if self.pattern == "local":
      return self.first(queries, keys, inputs)
    second = self.second(queries, keys, inputs)
    if self.pattern == "summary":
      return second
    first = self.first(queries, keys, inputs)
    if self.pattern == "alternate":
      head = mtf.range(inputs.context.mesh, inputs.heads, tf.int32)
      odd = mtf.equal(mtf.mod(head, 2), 1)
      first = mtf.logical_and(first, mtf.logical_not(odd))
      second = mtf.logical_and(second, odd)
    return mtf.logical_or(first, second)

  def _relative_position_bias(self, queries, keys, inputs):
    """T5's relative position bias, for any layout; the arguments are as for `first`.

    Returns:
      <float>[heads, ...] with the dimensions of `queries` and `keys`.
    """
    farthest = inputs.length.size
    # Positions of finished sequences keep growing until all have finished.
    index = mtf.maximum(keys - queries + farthest, 0)
    return tables.take_by_distance(self._distance_bias(farthest, inputs), index,
                                   inputs.batch_dims + [inputs.heads])

  def _distance_bias(self, farthest, inputs):
    """<float>[heads, distance]: from -farthest to farthest."""
    distance = mtf.Dimension("distance", 2 * farthest + 1)
    bias = self.relative_position_bias.between(
        inputs, 0, mtf.range(inputs.context.mesh, distance, tf.int32) - farthest)
    return mtf.transpose(bias, [inputs.heads, distance])


def _has_prefix(inputs):
  """Whether priorities differ between examples, as in a prefix language model."""
  priority = inputs.context.read_priority
  return priority is not None and inputs.has_batch(priority)


def only_earlier(inputs: AttentionInputs) -> bool:
  """Whether queries attend to no later keys, as in a decoder without a prefix."""
  return inputs.context.read_priority is not None and not _has_prefix(inputs)


def _seen(queries, keys, inputs):
  """The attention mask of the context between queries and keys, both `Tokens`."""
  seen = [mtf.greater(keys.index, 0)]
  if only_earlier(inputs):
    seen.append(mtf.greater_equal(queries.index, keys.index))
  if queries.priority is not None:
    seen.append(mtf.greater_equal(queries.priority, keys.priority))
  if keys.segment is not None:
    seen += inputs.mask_from_ids(queries.segment, keys.segment)
  return _all(seen)


def _all(conditions):
  """Whether all conditions hold; None stands for a condition that always holds."""
  return functools.reduce(
      mtf.logical_and, [c for c in conditions if c is not None])


def masked_mean(query: mtf.Tensor, parts: list[Part],
                may_see_nothing: bool) -> mtf.Tensor:
  """The mean of all parts' values, weighted by one softmax of their logits.

  Args:
    query: <float>[..., d_kv]
    parts: a list of `Part`.
    may_see_nothing: whether biases may mask all keys of a query. The query then gets
      zeros, the sum over no keys.

  Returns:
    a tensor with the shape of `query`, in the dtype of the values. The softmax
    is computed in float32.
  """
  queries = query.shape - query.shape.dims[-1]
  logits = [_logits(query, part, queries) for part in parts]
  if may_see_nothing:
    # An extra key takes the weight of masked keys, as its logit is higher.
    logits.append(mtf.constant(
        query.mesh, masks.MASK_VALUE / 2, queries + mtf.Dimension("keys", 1)))
  weights = _softmax(logits)
  means = []
  for part, weight in zip(parts, weights):
    weight = mtf.rename_dimension(
        mtf.cast(weight, part.values.dtype), "keys", part.keys.name)
    means.append(mtf.einsum([weight, part.values], output_shape=query.shape))
  return mtf.add_n(means)


def _logits(query, part, queries):
  """<float32>[..., keys]"""
  logits = mtf.einsum(
      [mtf.cast(query, tf.float32), mtf.cast(part.key, tf.float32)],
      output_shape=queries + part.keys)
  for bias in part.biases:
    logits = mtf.add(
        logits, mtf.cast(bias, tf.float32), output_shape=logits.shape)
  return mtf.rename_dimension(logits, part.keys.name, "keys")


def _softmax(logits):
  """TensorFlow's softmax over the joint last dimensions of all tensors."""
  joined = logits[0] if len(logits) == 1 else mtf.concat(logits, "keys")
  weights = attend.softmax(joined)
  if len(logits) == 1:
    return [weights]
  return mtf.split(weights, weights.shape.dims[-1],
                   [t.shape.dims[-1].size for t in logits])
