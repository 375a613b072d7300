"""Kernels of attention: the softmax of the logits, times the values, fast.

The tensors [batch, heads, length, memory_length] are the large ones. This module reads
and writes them as rarely as possible:

* Inner products are concatenated: any mixture of V, D and FR is one matrix
  product. The padding mask is one more channel of it, which has no gradient.
* The gradient is written by hand. It keeps only the weights, and one matrix product
  yields (gradient of the weights - its weighted mean).
* Logits that do not depend on tokens have no batch: their softmax is computed once
  for all examples. The values then mask padding, a product with the mask sums the
  weights, and the division comes last.
* On TPUs the mean is divided by the row sums. The exponentials are written once and
  summed at the same time; a softmax would read the logits again.
* Long sequences are computed in chunks of queries. Tensors that the gradient does not
  need exist for one chunk at a time.
* No matrix product has to transpose a large tensor.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import segments
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import attend_by_position
from synthesizer_mtf.fast import attend_per_segment
from synthesizer_mtf.fast import cases
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.fast import one_hot_tables
from synthesizer_mtf.fast import query_chunks
from synthesizer_mtf.fast import weighted_mean
from synthesizer_mtf.fast.decoding import caches
from synthesizer_mtf.fast.decoding import loops
import tensorflow.compat.v1 as tf

# The most queries of a chunk, so that the logits of a head take 2 KiB for each key,
# however long the sequence is. T5's 512 tokens are one chunk.
_QUERY_CHUNK_SIZE = 512


def attach() -> None:
  """Lets `attention/attend.py` compute the cases of `cases.py` with the kernels here.

  Each kernel has the arguments and the result of `attention.attend.attend`.
  """
  for case, kernel in (
      (cases.Rows, _rows), (cases.RowsOnTpu, _rows),
      (cases.RowsCompiled, _rows),
      (cases.FirstPartOfBeams, _rows), (cases.MaskedRows, _rows),
      (cases.RowsByIndex, _rows), (cases.RowsByIndexCompiled, _rows),
      (cases.RowsByIndexOnTpu, _by_position),
      (cases.PackedRowsOnTpu, _by_position), (cases.PackedSegments, _segments),
      (cases.StepOfMesh, _one_query), (cases.DecodingStepInPlace, _one_query),
      (cases.DecodingStepOfBeams, _beams)):
    attend.attach(case, kernel)


def _rows(inputs, logits, values, mask):
  products, tables = _products_and_tables(inputs, logits, mask)
  if any(map(inputs.has_batch, sum(map(list, products), tables))):
    mean, chunks = _with_batch(inputs, products, tables, values, mask.keys, bool(
        _select(logits, logit_forms.BiasTable)))
  else:
    mean, chunks = _without_batch(
        products, tables, values, mask.keys, inputs.query_dims)
  intermediates.sow_weights(lambda: _concat(
      [make() for make in chunks], inputs.length.name), mask, inputs)
  return mean


def _by_position(inputs, logits, values, mask):
  """Attention in packed rows on TPUs, for logits that depend on no token.

  Such logits depend only on the positions of query and key in their segment. So the
  exponential is computed once for all segments, by position. Each row gathers its
  entries, the attention mask hides other segments, and the division by the row sums
  comes last. A softmax of each row would read and write several tensors
  [batch, heads, length, memory_length] in float32. As in `_without_batch`, the maximum
  of a row includes positions beyond the end of its segment.
  """
  positions = _select(logits, logit_forms.ByPosition)
  terms = [term.values for term in _select(logits, logit_forms.Table) + positions]
  if len(terms) < len(logits) or any(map(inputs.has_batch, terms)):
    return _rows(inputs, logits, values, mask)
  table = _sum(terms)
  ensemble = [d for d in inputs.batch_dims if d in table.shape.dims]
  weights = mtf.cast(weighted_mean.exponential(mtf.broadcast(
      table, [*ensemble, inputs.heads, inputs.length, inputs.memory_length])),
                     values.dtype)
  # Logits by distance are the same in each segment.
  read_at = inputs.one_hot_positions() if positions else None
  if read_at and attend_by_position.is_possible(inputs, read_at):
    return attend_by_position.attend(
        weights, terms, values, segments.segment_id(inputs.context), read_at)
  if read_at:
    weights = one_hot_tables.pick(weights, read_at)
  weights = mtf.multiply(
      weights, mtf.cast(mask.pairs, weights.dtype), output_shape=inputs.logit_dims())
  mean, total = weighted_mean.divided_mean(
      weights, values, inputs.query_dims + [inputs.d_kv], [], terms, read_at)
  intermediates.sow_weights(lambda: weights / total, mask, inputs)
  return mean


def _segments(inputs, logits, values, mask):
  products, tables = _products_and_tables(inputs, logits, mask)
  shared = [t for t in tables if not inputs.has_batch(t)]
  return attend_per_segment.attend_per_segment(
      inputs, products, ([_sum(shared)] if shared else []) +
      [mtf.cast(t, tf.float32) for t in tables if inputs.has_batch(t)],
      _select(logits, logit_forms.Products), values, mask)


def _one_query(inputs, logits, values, mask):
  """Attention while decoding: <float>[batch, heads, d_kv].

  The queries and tables have no `length`, so they get one of size 1. Without it Mesh
  TensorFlow would compute an element-wise product, as large as all keys or values.
  """
  one = mtf.Dimension(inputs.length.name, 1)

  def with_length(tensor):
    *dims, last = tensor.shape.dims
    return mtf.reshape(tensor, dims + [one, last])

  products, tables = _products_and_tables(inputs, logits, mask)
  bias = [] if mask.keys is None else [masks.mask_bias(mask.keys)]
  # Concatenating the keys would cost more than multiplying with them. The fused
  # softmax of a single row would take longer than the operations here.
  weights = weighted_mean.exponential(_sum(
      list(map(with_length, tables)) + bias +
      [_inner_product(with_length(query), key) for query, key in products]))
  total = mtf.reduce_sum(weights, reduced_dim=inputs.memory_length)
  dims = inputs.query_dims + [inputs.d_kv]
  # For weights without `batch` the product would transpose the values first.
  weights = mtf.broadcast(
      mtf.cast(weights, values.dtype), dims[:-1] + [one, inputs.memory_length])
  mean = mtf.einsum([weights, values], output_shape=dims[:-1] + [one, inputs.d_kv])
  return mtf.reshape(mean / mtf.cast(total, values.dtype), dims)


def _beams(inputs, logits, values, mask):
  """Attention of beam search: <float>[batch, beam, heads, d_kv].

  The queries of all beams multiply with the keys and values of all beams, which are
  read once. Each beam then keeps the products with its ancestors. To reorder the caches
  would cost more.
  """
  ancestors = inputs.ancestors()
  memory_beam, memory_length = ancestors.shape.dims[-2:]
  *batch, beam, heads = inputs.query_dims
  lead = batch + [heads, beam]

  def in_order(tensor):
    return [d for d in lead if d in tensor.shape.dims] + tensor.shape.dims[-1:]

  def product(query, key):
    query = caches.reorder_rows(query, in_order(query))
    if memory_beam not in key.shape.dims:
      return _inner_product(query, key)
    every = mtf.einsum(
        [mtf.cast(query, tf.float32), mtf.cast(key, tf.float32)],
        output_shape=lead + [memory_beam, memory_length])
    return mtf.reduce_sum(mtf.multiply(
        every, ancestors, output_shape=every.shape), reduced_dim=memory_beam)

  products, tables = _products_and_tables(inputs, logits, mask)
  bias = [] if mask.keys is None else [masks.mask_bias(mask.keys)]
  tables = [mtf.transpose(table, in_order(table)) for table in tables + bias]
  weights = weighted_mean.exponential(
      _sum(tables + [product(query, key) for query, key in products]))
  total = mtf.reduce_sum(weights, reduced_dim=inputs.memory_length)
  if memory_beam in values.shape.dims:
    weights = mtf.multiply(
        weights, ancestors, output_shape=lead + [memory_beam, memory_length])
  dims = lead + [inputs.d_kv]
  mean = mtf.einsum([mtf.cast(weights, values.dtype), values], output_shape=dims)
  return caches.reorder_rows(
      mean / mtf.cast(total, values.dtype), inputs.query_dims + [inputs.d_kv])


def _select(logits, form):
  return [term for term in logits if isinstance(term, form)]


def _products_and_tables(inputs, logits, mask):
  """A list of `InnerProduct`, and a list of tables, including the mask of pairs.

  The tables have any of the dimensions batch, heads, length and memory_length, in
  this order.
  """
  tables = [term.values for term in _select(logits, logit_forms.Table)]
  tables += [inputs.rows_and_columns(term.values)
             for term in _select(logits, logit_forms.ByPosition)]
  if mask.pairs is not None:
    tables.append(masks.mask_bias(mask.pairs))
  return _select(logits, logit_forms.InnerProduct), [
      mtf.transpose(t, inputs.logit_dims(t)) for t in tables]


def _without_batch(products, tables, values, key_mask, query_dims):
  """Attention with logits that all examples share.

  The maximum of a row includes padding. A row loses accuracy only if a logit of padding
  exceeds all its other logits by more than 80: their exponentials then come near the
  smallest float32.

  Args:
    tables: a list of tensors with any of the dimensions heads, length and
      memory_length; they include the mask of pairs.
    values: <float>[batch, heads, memory_length, d_kv]
    key_mask: `keys` of an `AttentionMask`.
    query_dims: [batch, heads, length]

  Returns:
    <float>[heads, length, batch, d_kv]; and a list of functions, each of which returns
    the weights of one chunk of queries.
  """
  known = [d for t in sum(map(list, products), tables) for d in t.shape.dims]
  *others, heads, whole_length = query_dims
  memory_length, d_kv = values.shape.dims[-2:]
  lead = [d for d in others + [heads] if d in known]
  batch = [d for d in others if d not in lead]
  seen = None
  if key_mask is not None:
    seen = mtf.cast(key_mask, values.dtype)
    values *= seen
  values = mtf.transpose(values, lead + [memory_length] + batch + [d_kv])
  features = _concat_features(products, lead + [whole_length], lead + [memory_length])
  query, key = features[:1], features[1:]
  chunks = []

  def mean(length, rows):
    features, tables = rows[:len(query)] + key, rows[len(query):]
    table = [_sum(tables)] if tables else []
    product = [_inner_product(*features)] if features else []
    weights = mtf.cast(
        attend.softmax(_sum(table + product), gradient=0), values.dtype)
    chunks.append(lambda: weights)
    mean = mtf.einsum([weights, values], output_shape=lead + [length] + batch + [d_kv])
    total = [] if seen is None else [_total(weights, seen)]
    return weighted_mean.WeightedMeanOperation(
        weights, mean / total[0] if total else mean, values, features, table,
        total + [seen] if total else []).outputs[0]

  # Slicing a table and joining its gradient would cost more than chunks save.
  is_whole = not query or splits.is_compiled(values.mesh)
  size = whole_length.size if is_whole else _QUERY_CHUNK_SIZE
  return query_chunks.by_query_chunks(mean, query + tables, whole_length, size), chunks


def _total(weights, seen):
  """The row sums of the weights; 1 for rows whose keys are all masked.

  Args:
    weights: <float>[heads, length, memory_length]
    seen: <float>[batch, memory_length], 0 for padding and 1 elsewhere.

  Returns:
    <float>[heads, length, batch]
  """
  total = mtf.einsum([weights, seen], output_shape=(
      weights.shape.dims[:-1] + seen.shape.dims[:-1]))
  return total + mtf.cast(mtf.equal(total, 0), total.dtype)


def _with_batch(inputs, products, tables, values, key_mask, has_bias):
  """Attention with logits that differ between examples.

  The arguments and results are as in `_without_batch`, but any of them may have
  `batch`. The mean is <float>[batch, heads, length, d_kv]. In mixed precision the sum
  with a relative position bias stays in float32.
  """
  *lead, whole_length = inputs.query_dims
  memory_length, d_kv = values.shape.dims[-2:]
  bias = [] if key_mask is None else [masks.mask_bias(key_mask)]
  features = _concat_features(products, inputs.query_dims, lead + [memory_length])
  query, key = features[:1], features[1:]
  chunks = []
  by_xla = isinstance(inputs, cases.RowsCompiled)
  if by_xla and key:
    tables, bias = tables + bias, []
  size = whole_length.size if by_xla else _QUERY_CHUNK_SIZE
  biased_key = [weighted_mean.append_channel(*key, *bias)] if key and bias else key

  def product(query):
    if bias:
      query = weighted_mean.append_channel(query, mtf.ones(query.mesh, []))
    key, = biased_key
    return _inner_product(query, key, values.dtype if by_xla else tf.float32)

  def mean(length, rows):
    features, tables = rows[:len(query)] + key, rows[len(query):]
    table = [_sum(tables)] if tables else []
    add = _sum if has_bias else _sum_of_product
    logits = add(table + ([product(features[0])] if features else bias))
    mean, weights = _mean(
        inputs, logits, values, lead + [length, d_kv], features, table)
    chunks.append(weights)
    return mean

  return query_chunks.by_query_chunks(mean, query + tables, whole_length, size), chunks


def _mean(inputs, logits, values, shape, features, table):
  """The mean of the values, and a function that returns their weights."""
  if isinstance(inputs, cases.RowsOnTpu):
    weights = mtf.cast(weighted_mean.exponential(logits), values.dtype)
    mean, total = weighted_mean.divided_mean(weights, values, shape, features, table)
    return mean, lambda: weights / total
  weights = mtf.cast(attend.softmax(logits, gradient=0), values.dtype)
  mean = mtf.einsum([weights, values], output_shape=shape)
  return weighted_mean.WeightedMeanOperation(
      weights, mean, values, features, table).outputs[0], lambda: weights


def _inner_product(query, key, dtype=tf.float32):
  """<float32>[batch, heads, length, memory_length], with `batch` if either has it."""
  query = mtf.cast(query, dtype)
  channels = query.shape.dims[-1]
  # Once, so that a loop knows the key as a tensor that no step changes.
  named = loops.once(lambda: mtf.rename_dimension(
      mtf.cast(key, dtype), key.shape.dims[-1].name, channels.name))
  *lead, memory_length, _ = named.shape.dims
  alone = [d for d in lead if d not in query.shape.dims]
  return mtf.cast(mtf.einsum([query, named], output_shape=(
      alone + query.shape.dims[:-1] + [memory_length])), tf.float32)


def _concat_features(products, query_dims, key_dims):
  """Concatenates the channels of several inner products.

  Args:
    products: a list of `InnerProduct`, whose features may lack any dimension except
      the channels.
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

  return [_concat([conform(p.query, query_dims) for p in products], "channels"),
          _concat([conform(p.key, key_dims) for p in products], "channels")]


def _concat(tensors, name):
  return tensors[0] if len(tensors) == 1 else mtf.concat(tensors, name)


def _sum_of_product(tables):
  """Adds tables to the last one, the product; in mixed precision in bfloat16."""
  *table, product = tables
  if not table or not mixed_precision.is_marked() or (
      product.shape.dims[-table[0].shape.ndims:] != table[0].shape.dims):
    return _sum(tables)
  return splits.slicewise(
      mixed_precision.add, [product, *table], output_shape=product.shape,
      splittable_dims=product.shape.dims, grad_function=0)


def _sum(tables):
  """Adds tables as float32, small ones first, so that large ones are read once.

  The dimensions are in the order of the largest table.
  """
  tables = sorted(
      (mtf.cast(t, tf.float32) for t in tables), key=lambda t: t.shape.size)
  total = tables[0]
  for table in tables[1:]:
    missing = [d for d in total.shape.dims if d not in table.shape.dims]
    total = mtf.add(table, total, output_shape=missing + table.shape.dims)
  return total
