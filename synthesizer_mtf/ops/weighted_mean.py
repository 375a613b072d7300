"""The mean of the values, weighted by the softmax of the logits.

The tensors [batch, heads, length, memory_length] are the large ones, and all is
arranged to read and write them as rarely as possible:

* Inner products are concatenated: any mixture of V, D and FR is one matrix
  product. The padding mask is one more channel of it, which has no gradient.
* The gradient is written by hand: it keeps the weights alone, and gets
  (gradient of the weights - its weighted mean) from one matrix product.
* Logits which no part computes from the tokens have no batch: their softmax is
  computed once for all examples. Padding is then masked in the values, the sum
  of the weights is a product with the mask, and the division comes last.
* Many queries take turns, so that of the tensors which the gradient does not
  need only a part exists at any time.
* No layout that a matrix product needs makes it transpose a large tensor.
"""

from collections.abc import Sequence

import mesh_tensorflow as mtf
from synthesizer_mtf.context import attention_inputs
from synthesizer_mtf.context import visibility
from synthesizer_mtf.context import watchers
from synthesizer_mtf.ops import in_turns
from synthesizer_mtf.ops import logit_forms
from synthesizer_mtf.ops import mean_of_examples
import tensorflow.compat.v1 as tf

# How many queries are computed at a time, where there are more.
_QUERIES = 512


def weighted_mean(logits: list[logit_forms.Logits], values: mtf.Tensor,
                  visible: visibility.Visibility,
                  inputs: attention_inputs.AttentionInputs) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    logits: a list of `InnerProduct` and `Table`; and `Products`, where examples
      of packed rows are computed each for itself.
    values: <float>[batch, heads, memory_length, d_kv]
    visible: a `Visibility`.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[batch, heads, length, d_kv], in any order of dimensions and in the
    dtype of the values. The softmax is computed in float32. A query which may
    see nothing gets finite values.
  """
  products = [term for term in logits if isinstance(term, logit_forms.InnerProduct)]
  tables = [term.values for term in logits if isinstance(term, logit_forms.Table)]
  if visible.pairs is not None:
    tables.append(visibility.bias(visible.pairs))
  order = inputs.query_dims + [inputs.memory_length]
  tables = [mtf.transpose(t, [d for d in order if d in t.shape.dims])
            for t in tables]
  if inputs.incremental:
    return _of_one_query(products, tables, values, visible, inputs)
  if inputs.apart:
    shared = [t for t in tables if not inputs.has_batch(t)]
    return mean_of_examples.mean_of_examples(
        products, ([_sum(shared)] if shared else []) +
        [mtf.cast(t, tf.float32) for t in tables if inputs.has_batch(t)],
        [term for term in logits if isinstance(term, logit_forms.Products)],
        values, inputs)
  if any(inputs.has_batch(t) for t in sum(map(list, products), tables)):
    return _with_batch(products, tables, values, visible, inputs)
  return _without_batch(products, tables, values, visible, inputs)


def _of_one_query(products, tables, values, visible, inputs):
  """The weighted mean while decoding: <float>[batch, heads, d_kv].

  For the arguments see `_with_batch`; the queries and tables have no `length`.
  It gets one of size 1, since Mesh TensorFlow makes of a product without it an
  element-wise one, as large as all keys or values.
  """
  one = mtf.Dimension(inputs.length.name, 1)

  def with_length(tensor):
    *dims, last = tensor.shape.dims
    return mtf.reshape(tensor, dims + [one, last])

  bias = [] if visible.keys is None else [visibility.bias(visible.keys)]
  # To concatenate the keys would cost more than to use them.
  weights = mtf.cast(softmax(_sum(
      list(map(with_length, tables)) + bias +
      [_inner_product(with_length(query), key, inputs)
       for query, key in products])), values.dtype)
  dims = inputs.query_dims + [inputs.d_kv]
  mean = mtf.einsum([weights, values],
                    output_shape=dims[:-1] + [one, inputs.d_kv])
  return mtf.reshape(mean, dims)


def _turn(inputs):
  """How many queries to compute at a time: all where weights are watched."""
  return inputs.length.size if watchers.is_on() else _QUERIES


def _without_batch(products, tables, values, visible, inputs):
  """The weighted mean for logits that all examples share.

  The maximum of a row is taken over padding, too. A row is exact as long as no
  padding exceeds all that the row may see by more than 80, where the exponential
  comes near the smallest float32.

  Args:
    products: a list of `InnerProduct`.
    tables: a list of tensors with any of the dimensions heads, length and
      memory_length.
    values: <float>[batch, heads, memory_length, d_kv]
    visible: a `Visibility`, of which the pairs are in the tables already.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[heads, length, batch, d_kv]
  """
  known = [d for t in sum(map(list, products), tables) for d in t.shape.dims]
  lead = [d for d in inputs.batch_dims + [inputs.heads] if d in known]
  batch = [d for d in inputs.batch_dims if d not in lead]
  seen = None
  if visible.keys is not None:
    seen = mtf.cast(visible.keys, values.dtype)
    values *= seen
  values = mtf.transpose(
      values, lead + [inputs.memory_length] + batch + [inputs.d_kv])
  features = _concat_features(
      products, lead + [inputs.length], lead + [inputs.memory_length])
  query, key = features[:1], features[1:]

  def mean(length, rows):
    features, tables = rows[:len(query)] + key, rows[len(query):]
    table = [_sum(tables)] if tables else []
    product = [_inner_product(*features, inputs)] if features else []
    weights = mtf.cast(
        softmax(_sum(table + product), gradient=0), values.dtype)
    watchers.show_weights(weights, visible, inputs)
    mean = mtf.einsum([weights, values], output_shape=(
        lead + [length] + batch + [inputs.d_kv]))
    total = [] if seen is None else [_total(weights, seen, inputs)]
    return WeightedMeanOperation(
        weights, mean / total[0] if total else mean, values, features, table,
        total + [seen] if total else []).outputs[0]

  # To cut a table and to join its gradient would cost more than it saves.
  return in_turns.in_turns(
      mean, query + tables, inputs.length,
      _turn(inputs) if query else inputs.length.size)


def _total(weights, seen, inputs):
  """The sums of rows of weights; 1 for rows which see nothing.

  Args:
    weights: <float>[heads, length, memory_length]
    seen: <float>[batch, memory_length], 0 for padding and 1 elsewhere.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[heads, length, batch]
  """
  total = mtf.einsum([weights, seen], output_shape=(
      weights.shape - inputs.memory_length) + seen.shape.dims[:-1])
  return total + mtf.cast(mtf.equal(total, 0), total.dtype)


def _with_batch(products, tables, values, visible, inputs):
  """The weighted mean for logits that differ between examples.

  Args:
    products: a list of `InnerProduct`.
    tables: a list of tensors with any of the dimensions batch, heads, length and
      memory_length.
    values: <float>[batch, heads, memory_length, d_kv]
    visible: a `Visibility`, of which the pairs are in the tables already.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[batch, heads, length, d_kv]
  """
  bias = [] if visible.keys is None else [visibility.bias(visible.keys)]
  features = _concat_features(products, inputs.query_dims, inputs.key_dims)
  query, key = features[:1], features[1:]
  biased_key = [_append_channel(*key, *bias)] if key and bias else key

  def product(query):
    if bias:
      query = _append_channel(query, mtf.ones(query.mesh, []))
    return _inner_product(query, *biased_key, inputs)

  def mean(length, rows):
    dims = inputs.batch_dims + [inputs.heads, length]
    features, tables = rows[:len(query)] + key, rows[len(query):]
    table = [_sum(tables)] if tables else []
    added = table + ([product(features[0])] if features else bias)
    weights = mtf.cast(softmax(_sum(added), gradient=0), values.dtype)
    watchers.show_weights(weights, visible, inputs)
    mean = mtf.einsum([weights, values], output_shape=dims + [inputs.d_kv])
    return WeightedMeanOperation(
        weights, mean, values, features, table).outputs[0]

  return in_turns.in_turns(
      mean, query + tables, inputs.length, _turn(inputs))


class WeightedMeanOperation(mtf.Operation):
  """Passes the mean on and has the gradient of all that made it.

  `mtf.custom_gradient` would do, but layers that run again in the backward pass
  (`LayerStack.recompute_grads`) cannot hold one.
  """

  def __init__(self, weights: mtf.Tensor, mean: mtf.Tensor, values: mtf.Tensor,
               features: list[mtf.Tensor], table: list[mtf.Tensor],
               padding: Sequence[mtf.Tensor] = ()):
    """Declares the inputs, where all but `table` may lack `batch`.

    Args:
      weights: <float>[batch, heads, length, memory_length]
      mean: <float>[batch, heads, length, d_kv]
      values: <float>[batch, heads, memory_length, d_kv], 0 where not seen.
      features: [] or [query, key], <float32>[batch, heads, length, channels] and
        <float32>[batch, heads, memory_length, channels].
      table: [] or [what was added to their products, with any dimensions].
      padding: (), where weights are 0 for padding, or [total, seen]: the sums
        of weights, <float>[batch, heads, length], which the mean was divided by,
        and <float>[batch, memory_length], which tells what they count.
    """
    super().__init__([weights, mean, values, *features, *table, *padding],
                     name="weighted_mean")
    self._outputs = [mtf.Tensor(self, mean.shape, mean.dtype)]
    self._sizes = [len(features), len(table), len(padding)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.tensors[self.inputs[1]])

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    grad_mean, = grad_ys
    weights, mean, values, *rest = self.inputs
    features, table, padding = (
        [rest.pop(0) for _ in range(size)] for size in self._sizes)
    if padding:
      grad_mean /= padding[0]
    grad_logits = _grad_logits(weights, values, mean, grad_mean, padding[1:])
    grads = [None, None,
             mtf.einsum([weights, grad_mean], output_shape=values.shape)]
    grads += [mtf.einsum([grad_logits, other], output_shape=feature.shape)
              for feature, other in zip(features, reversed(features))]
    grads += [mtf.reduce_sum(grad_logits, output_shape=t.shape) for t in table]
    return grads + [None] * len(padding)


def _append_channel(features, values):
  """One more channel, <float>[batch, heads, positions, channels + 1]."""
  channel = mtf.Dimension(features.shape.dims[-1].name, 1)
  values = mtf.broadcast(mtf.reshape(values, values.shape + channel),
                         features.shape.dims[:-1] + [channel])
  return mtf.concat([features, values], channel.name)


def _grad_logits(weights, values, mean, grad_mean, seen):
  """weights * (G - sum(weights * G)) with G the gradient of the weights.

  G is grad_mean . values, and sum(weights * G) is grad_mean . mean, which is
  subtracted, from what is seen, by one more channel of the same product.
  """
  delta = mtf.reduce_sum(grad_mean * mean, reduced_dim=values.shape.dims[-1])
  seen, = seen or [mtf.ones(values.mesh, [], values.dtype)]
  centered = mtf.einsum([_append_channel(grad_mean, -delta),
                         _append_channel(values, seen)],
                        output_shape=weights.shape)
  return mtf.cast(weights, tf.float32) * mtf.cast(centered, tf.float32)


def softmax(logits: mtf.Tensor, gradient: int | None = None) -> mtf.Tensor:
  """TensorFlow's fused softmax over the last dimension.

  Args:
    logits: <float32>[..., memory_length]
    gradient: as of `mtf.slicewise`: 0 for none, or None for TensorFlow's own.

  Returns:
    a tensor with the shape and dtype of logits.
  """
  def of_slice(x):
    # TensorFlow's kernel for CPUs takes at most five dimensions.
    shape = x.shape.as_list()
    return tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, shape[-1]])), shape)

  return mtf.slicewise(
      of_slice, [logits], splittable_dims=logits.shape.dims[:-1],
      grad_function=gradient)


def _inner_product(query, key, inputs):
  """<float32>[batch, heads, length, memory_length]; `batch` if either has it."""
  query, key = mtf.cast(query, tf.float32), mtf.cast(key, tf.float32)
  channels = query.shape.dims[-1]
  key = mtf.rename_dimension(key, key.shape.dims[-1].name, channels.name)
  alone = [d for d in key.shape.dims
           if d not in query.shape.dims and d != inputs.memory_length]
  return mtf.einsum([query, key], output_shape=(
      alone + query.shape.dims[:-1] + [inputs.memory_length]))


def _concat_features(products, query_dims, key_dims):
  """Makes several inner products one.

  Args:
    products: a list of `InnerProduct`, whose features may lack any dimension but
      for the channels.
    query_dims: [batch, heads, length]
    key_dims: [batch, heads, memory_length]

  Returns:
    [query, key], <float32>[batch, heads, length, channels] and
    <float32>[batch, heads, memory_length, channels]; [] without products.
  """
  if not products:
    return []

  def conform(feature, dims):
    feature = mtf.cast(
        mtf.rename_dimension(feature, feature.shape.dims[-1].name, "channels"),
        tf.float32)
    ordered = [d for d in dims if d in feature.shape.dims]
    feature = mtf.transpose(feature, ordered + feature.shape.dims[-1:])
    return mtf.broadcast(feature, dims + feature.shape.dims[-1:])

  def concat(features):
    return features[0] if len(features) == 1 else mtf.concat(features, "channels")

  return [concat([conform(p.query, query_dims) for p in products]),
          concat([conform(p.key, key_dims) for p in products])]


def _sum(tables):
  """Adds tables as float32, small ones first, so that a large one is read once.

  The dimensions are in the order of the largest table.
  """
  tables = sorted(
      (mtf.cast(t, tf.float32) for t in tables), key=lambda t: t.shape.size)
  total = tables[0]
  for table in tables[1:]:
    missing = [d for d in total.shape.dims if d not in table.shape.dims]
    total = mtf.add(table, total, output_shape=missing + table.shape.dims)
  return total
