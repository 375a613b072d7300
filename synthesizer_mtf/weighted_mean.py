"""The mean of the values, weighted by the softmax of the logits.

The tensors [batch, heads, length, memory_length] are the large ones, and all is
arranged to read and write them as rarely as possible:

* Inner products are concatenated: any mixture of V, D and FR is one matrix
  product. The padding mask is one more channel of it.
* The gradient is written by hand: it keeps the weights alone, and gets
  (gradient of the weights - its weighted mean) from one matrix product.
* Logits which no part computes from the tokens have no batch: their softmax is
  computed once for all examples. Padding is then masked in the values, the sum of the
  weights is a product with the mask, and the division comes last.
* No layout that a matrix product needs makes it transpose a large tensor.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf import visibility
from synthesizer_mtf import watch
from synthesizer_mtf.synthesizers import base
import tensorflow.compat.v1 as tf


def weighted_mean(logits, values, visible, inputs):
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    logits: a list of `InnerProduct` and `Table`.
    values: <float>[batch, heads, memory_length, d_kv]
    visible: a `Visibility`.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[batch, heads, length, d_kv], in any order of dimensions and in the
    dtype of the values. The softmax is computed in float32. A query which may
    see nothing gets finite values.
  """
  products = [term for term in logits if isinstance(term, base.InnerProduct)]
  tables = [term.values for term in logits if isinstance(term, base.Table)]
  if visible.pairs is not None:
    tables.append(visibility.bias(visible.pairs))
  order = inputs.query_dims + [inputs.memory_length]
  tables = [mtf.transpose(t, [d for d in order if d in t.shape.dims])
            for t in tables]
  if any(inputs.has_batch(t) for t in sum(map(list, products), tables)):
    return _with_batch(products, tables, values, visible, inputs)
  tables += [_inner_product(*product, inputs) for product in products]
  return _without_batch(_sum(tables), values, visible, inputs)


def _without_batch(logits, values, visible, inputs):
  """The weighted mean for logits that all examples share.

  The maximum of a row is taken over padding, too. A row is exact as long as no
  padding exceeds all that the row may see by more than 80, where the exponential
  comes near the smallest float32.

  Args:
    logits: <float32>[heads, length, memory_length]
    values: <float>[batch, heads, memory_length, d_kv]
    visible: a `Visibility`, of which the pairs are in the logits already.
    inputs: an `AttentionInputs`.

  Returns:
    <float>[heads, length, batch, d_kv]
  """
  # What follows does not change with the scale of a row of weights, so that the
  # gradient of the exponential alone is enough.
  weights = mtf.cast(
      _softmax(logits, inputs, lambda op, grad: [grad * op.outputs[0]]),
      values.dtype)
  watch.show_weights(weights, visible, inputs)
  if visible.keys is None:
    total = mtf.reduce_sum(weights, reduced_dim=inputs.memory_length)
  else:
    seen = mtf.cast(visible.keys, values.dtype)
    values *= seen
    total = mtf.einsum([weights, seen], output_shape=(
        logits.shape - inputs.memory_length) + seen.shape.dims[:-1])
    total += mtf.cast(mtf.equal(total, 0), total.dtype)
  lead = [d for d in logits.shape.dims
          if d not in (inputs.length, inputs.memory_length)]
  batch = [d for d in inputs.batch_dims if d not in lead]
  values = mtf.transpose(
      values, lead + [inputs.memory_length] + batch + [inputs.d_kv])
  return mtf.einsum([weights, values], output_shape=(
      lead + inputs.length_dims + batch + [inputs.d_kv])) / total


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
  features = []
  if products:
    features = [
        _concat_channels([p.query for p in products], inputs.query_dims),
        _concat_channels([p.key for p in products], inputs.key_dims)]
  table = [_sum(tables)] if tables else []
  bias = None if visible.keys is None else visibility.bias(visible.keys)
  weights = mtf.cast(
      _softmax(_logits(features, table, bias, inputs), inputs), values.dtype)
  watch.show_weights(weights, visible, inputs)
  mean = mtf.einsum(
      [weights, values], output_shape=inputs.query_dims + [inputs.d_kv])
  return WeightedMeanOperation(
      weights, mean, values, features, table).outputs[0]


class WeightedMeanOperation(mtf.Operation):
  """Passes the mean on and has the gradient of all that made it.

  `mtf.custom_gradient` would do, but layers that run again in the backward pass
  (`LayerStack.recompute_grads`) cannot hold one.
  """

  def __init__(self, weights, mean, values, features, table):
    """Declares the inputs.

    Args:
      weights: <float>[batch, heads, length, memory_length]
      mean: <float>[batch, heads, length, d_kv]
      values: <float>[batch, heads, memory_length, d_kv]
      features: [] or [query, key], <float32>[batch, heads, length, channels] and
        <float32>[batch, heads, memory_length, channels].
      table: [] or [what was added to their products, with any dimensions].
    """
    super().__init__([weights, mean, values] + features + table,
                     name="weighted_mean")
    self._outputs = [mtf.Tensor(self, mean.shape, mean.dtype)]
    self._has_features = bool(features)

  def lower(self, lowering):
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.tensors[self.inputs[1]])

  def gradient(self, grad_ys):
    grad_mean, = grad_ys
    weights, mean, values, *rest = self.inputs
    grad_logits = _grad_logits(weights, values, mean, grad_mean)
    grads = [None, None,
             mtf.einsum([weights, grad_mean], output_shape=values.shape)]
    if self._has_features:
      query, key, *rest = rest
      grads += [mtf.einsum([grad_logits, key], output_shape=query.shape),
                mtf.einsum([grad_logits, query], output_shape=key.shape)]
    return grads + [
        mtf.reduce_sum(grad_logits, output_shape=t.shape) for t in rest]


def _logits(features, table, bias, inputs):
  """Sum of the inner product of features, the table and the padding's bias."""
  total = list(table)
  if features:
    query, key = features
    if bias is not None:
      query, key = _with_padding_channel(query, key, bias)
      bias = None
    total.append(mtf.einsum(
        [query, key], output_shape=inputs.query_dims + [inputs.memory_length]))
  if bias is not None:
    total.append(bias)
  return _sum(total)


def _with_padding_channel(query, key, bias):
  """Adds a channel whose product is the bias."""
  channel = mtf.Dimension(query.shape.dims[-1].name, 1)

  def append(features, values):
    dims = features.shape.dims[:-1] + [channel]
    values = mtf.broadcast(mtf.reshape(values, values.shape + channel), dims)
    return mtf.concat([features, values], channel.name)

  return append(query, mtf.ones(query.mesh, [])), append(key, bias)


def _grad_logits(weights, values, mean, grad_mean):
  """weights * (G - sum(weights * G)) with G the gradient of the weights.

  G is grad_mean . values, and sum(weights * G) is grad_mean . mean, which is
  subtracted by one more channel of the same product.
  """
  d_kv = values.shape.dims[-1]
  one = mtf.Dimension(d_kv.name, 1)
  delta = mtf.reduce_sum(grad_mean * mean, reduced_dim=d_kv)
  left = mtf.concat(
      [grad_mean, mtf.reshape(-delta, delta.shape + one)], d_kv.name)
  right = mtf.concat(
      [values, mtf.ones(values.mesh, (values.shape - d_kv) + one, values.dtype)],
      d_kv.name)
  centered = mtf.einsum([left, right], output_shape=weights.shape)
  return mtf.cast(weights, tf.float32) * mtf.cast(centered, tf.float32)


def _softmax(logits, inputs, gradient=0):
  """TensorFlow's fused softmax over the last dimension; 0 is no gradient."""
  splittable = [d for d in logits.shape.dims if d != inputs.memory_length]
  return mtf.slicewise(
      tf.nn.softmax, [logits], splittable_dims=splittable,
      grad_function=gradient)


def _inner_product(query, key, inputs):
  """<float32>[heads, length, memory_length] of features without `batch`."""
  query, key = mtf.cast(query, tf.float32), mtf.cast(key, tf.float32)
  key = mtf.rename_dimension(
      key, key.shape.dims[-1].name, query.shape.dims[-1].name)
  return mtf.einsum([query, key], output_shape=(
      (query.shape - query.shape.dims[-1]) + inputs.memory_length))


def _concat_channels(features, dims):
  """Concatenates features along their last dimensions, as float32.

  Args:
    features: a list of <float>[batch, heads, positions, channels] with any order
      of dimensions but for the channels, and any but the channels absent.
    dims: [batch, heads, positions]

  Returns:
    <float32>[batch, heads, positions, channels]
  """
  def conform(feature):
    feature = mtf.cast(
        mtf.rename_dimension(feature, feature.shape.dims[-1].name, "channels"),
        tf.float32)
    ordered = [d for d in dims if d in feature.shape.dims]
    feature = mtf.transpose(feature, ordered + feature.shape.dims[-1:])
    return mtf.broadcast(feature, dims + feature.shape.dims[-1:])

  features = [conform(feature) for feature in features]
  return features[0] if len(features) == 1 else mtf.concat(features, "channels")


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
