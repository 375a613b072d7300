"""The weighted mean of the values within each example of packed rows.

As `weighted_mean`, whose formulas it shares, but in TensorFlow: examples have sizes
which only the running graph knows (see `context/examples.py`). Tokens of features
that differ between examples are laid out from position 0 on; what is the same for
all examples is a table over positions, of which the corner is read. Logits which no
part computes from the tokens have one softmax for all examples of a group; for its
maximum see `weighted_mean._without_batch`.
"""

from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.context import cases
from synthesizer_mtf.context import examples
from synthesizer_mtf.context import splits
from synthesizer_mtf.context import visibility
from synthesizer_mtf.ops import logit_forms
import tensorflow.compat.v1 as tf


def mean_of_examples(inputs: cases.PackedExamples,
                     inner: list[logit_forms.InnerProduct],
                     tables: list[mtf.Tensor],
                     products: list[logit_forms.Products],
                     values: mtf.Tensor) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Tensors with `batch` belong to tokens, those without to positions in an example;
  only `memory_length` of a table with `batch` is a position, too.

  Args:
    inputs: what the call sees.
    inner: a list of `InnerProduct`.
    tables: a list of <float32> with any of the dimensions batch, heads and length,
      and with memory_length; what may not be seen is in them.
    products: a list of `Products`.
    values: <float>[batch, heads, memory_length, d_kv]

  Returns:
    <float>[batch, length, heads, d_kv] in the dtype of the values, 0 for padding.
  """
  names = ["query", "key"] * len(inner) + ["table"] * len(tables) + [
      "repeated", "tiled"] * len(products) + ["values"]
  tensors = [*sum(map(list, inner), []), *tables,
             *sum(map(list, products), []), values]
  order = [_of_one_head(t, inputs) for t in inputs.own_order()]
  return MeanOfExamplesOperation(
      _ORDER[:len(order)] + names,
      order + [_in_order(*pair, inputs) for pair in zip(names, tensors)],
      inputs).outputs[0]


def _of_one_head(priority, inputs):
  """<float32>[batch, length, one, last] of whole numbers."""
  dims = [*inputs.batch_dims, inputs.length]
  return mtf.reshape(
      mtf.cast(mtf.transpose(priority, dims), tf.float32),
      dims + [mtf.Dimension("one", 1), mtf.Dimension("last", 1)])


def _in_order(name, tensor, inputs):
  """[batch, length, heads, last], or without `batch` [heads, length, last]."""
  *others, last = tensor.shape.dims
  tensor = mtf.rename_dimension(tensor, last.name, "last")
  place = inputs.memory_length if name in ("key", "values") else inputs.length
  order = ([*inputs.batch_dims, place, inputs.heads] if inputs.has_batch(tensor)
           else [inputs.heads, place])
  last = tensor.shape.dims[-1:]
  ordered = mtf.transpose(tensor, [d for d in order if d in others] + last)
  return mtf.broadcast(ordered, order + last)


# What has no gradient: when a query reads, and when a key is written.
_ORDER = ["reads", "writes"]


class _Term(NamedTuple):
  """One input, in one group.

  Attributes:
    block: [heads, examples, positions, last]; one example if it has no batch.
    of_tokens: whether it has a batch.
  """
  block: tf.Tensor
  of_tokens: bool


class MeanOfExamplesOperation(mtf.Operation):
  """See `mean_of_examples`. Batch and heads can be split.

  Attributes:
    names: what each input is: "reads", "writes", "query", "key", "table",
      "repeated", "tiled" or "values".
    learned: how many inputs, the last ones, have a gradient.
    kept: laid-out tensors of the groups, for the gradient.
  """

  def __init__(self, names: list[str], tensors: list[mtf.Tensor],
               inputs: cases.PackedExamples):
    self.names = names
    self.learned = sum(name not in _ORDER for name in names)
    self.examples = examples.examples(inputs.context)  # Which is lowered before.
    super().__init__(tensors, name="mean_of_examples")
    self.of_tokens = [inputs.has_batch(t) for t in tensors]
    self.batch_dims = inputs.batch_dims
    shape = inputs.batch_dims + [inputs.length, inputs.heads, inputs.d_kv]
    self._outputs = [mtf.Tensor(self, mtf.Shape(shape), tensors[-1].dtype)]
    self.kept = None

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
    grads = MeanOfExamplesGradOperation(self, grad_ys[0]).outputs
    return [None] * (len(self.inputs) - self.learned) + grads

  def lower(self, lowering: mtf.Lowering) -> None:
    output, = self.outputs
    mesh_impl = lowering.mesh_impl(self)
    sliced = mesh_impl.slice_shape(output.shape)

    def of_slice(*slices):
      layout, tensors = self.split(slices)
      groups = [_Block(self, layout, group, tensors) for group in layout.groups]
      means = [block.mean() for block in groups]
      mean = tf.cast(tf.reshape(layout.join(means), sliced), output.dtype)
      return (mean, *(t for block in groups for t in block.kept))

    mean, *self.kept = mesh_impl.slicewise(of_slice, *self.slices(lowering))
    lowering.set_tensor_lowering(output, mean)

  def slices(self, lowering: mtf.Lowering) -> list:
    """Laid-out tensors: the examples, and the inputs."""
    return [*self.examples.layout, *(lowering.tensors[t] for t in self.inputs)]

  def split(self, slices: list[tf.Tensor]) -> tuple:
    """A `Layout`, and the inputs as [tokens, heads, last] or [heads, ...]."""
    count = len(self.inputs)
    tensors = []
    for tensor, of_tokens in zip(slices[-count:], self.of_tokens):
      tensor = tf.cast(tensor, tf.float32)
      if of_tokens:
        tensor = tf.reshape(tensor, [-1] + tensor.shape.as_list()[-2:])
      tensors.append(tensor)
    return examples.Layout.of_slices(slices[:-count]), tensors


class _Block:
  """The attention within the examples of one group.

  Attributes:
    kept: [weights, mean] and, without batch, [total], for the gradient.
  """

  def __init__(self, operation, layout, group, tensors, kept=None):
    self._layout, self._group = layout, group
    length = group.length
    self.terms = {name: [] for name in [
        *_ORDER, "query", "key", "table", "repeated", "tiled", "values"]}
    for name, tensor, of_tokens in zip(
        operation.names, tensors, operation.of_tokens):
      self.terms[name].append(self._term(name, tensor, of_tokens, length))
    self.has_batch = any(operation.of_tokens[:-1])
    self.kept = kept

  def _term(self, name, tensor, of_tokens, length):
    if of_tokens:
      block = self._layout.unjoin(tensor, self._group)
      return _Term(block[..., :length] if name == "table" else block, True)
    block = tensor[:, :length, :length] if name == "table" else tensor[:, :length]
    return _Term(tf.expand_dims(block, 1), False)

  def _features(self):
    """The queries and the keys, of tokens with the mask of the keys as a channel."""
    if not self.has_batch:
      return [tf.concat([term.block for term in self.terms[name]], -1)
              for name in ("query", "key")]
    hidden = (1 - self._group.seen) * visibility.HIDDEN
    query = self._concat("query", 1.)
    return query, self._concat("key", hidden[None, :, :, None])

  def _concat(self, name, channel):
    """All channels and one more; with as many examples as any of them has."""
    terms = self.terms[name]
    count = tf.shape(self._group.slots)[0]
    blocks = [term.block for term in terms]
    if name == "key" or any(term.of_tokens for term in terms):
      blocks = [block if term.of_tokens else tf.tile(block, [1, count, 1, 1])
                for block, term in zip(blocks, terms)]
    return tf.concat(blocks + [tf.zeros_like(blocks[0][..., :1]) + channel], -1)

  def _logits(self):
    """[heads, examples, positions, positions]; one example if none has a batch."""
    tables = [term.block for term in sorted(
        self.terms["table"], key=lambda term: term.of_tokens)]
    if self.terms["query"]:
      tables.append(tf.matmul(*self._features(), transpose_b=True))
    elif self.has_batch:
      tables.append((1 - self._group.seen)[None, :, None] * visibility.HIDDEN)
    tables += [_columns(repeated.block, tiled.block) for repeated, tiled in zip(
        self.terms["repeated"], self.terms["tiled"])]
    for reads, writes in zip(self.terms["reads"], self.terms["writes"]):
      late = reads.block < tf.transpose(writes.block, [0, 1, 3, 2])
      tables.append(tf.cast(late, tf.float32) * visibility.HIDDEN)
    return sum(tables[1:], tables[0])

  def mean(self):
    """[heads, examples, positions, d_kv]"""
    weights = tf.nn.softmax(self._logits())
    values = self.terms["values"][0].block
    if self.has_batch:
      mean = tf.matmul(weights, values)
      self.kept = [weights, mean]
      return mean
    seen = self._group.seen
    total = tf.tensordot(weights[:, 0], seen, [[2], [1]])
    total = tf.transpose(tf.where_v2(total > 0, total, 1.), [0, 2, 1])[..., None]
    mean = _without_batch(weights, values * seen[None, :, :, None]) / total
    self.kept = [weights, mean, total]
    return mean

  def gradients(self, grad):
    """The gradients of the terms, in their order, as [heads, examples, ...].

    Args:
      grad: [tokens, heads, d_kv], the gradient of the mean.
    """
    weights, mean, *total = self.kept
    seen = self._group.seen[None, :, :, None]
    values = self.terms["values"][0].block
    scale = seen / total[0] if total else seen
    grad = self._layout.unjoin(grad, self._group) * scale
    if total:
      values *= seen
    delta = -tf.reduce_sum(grad * mean, -1, keepdims=True)
    one = tf.zeros_like(values[..., :1]) + (seen if total else 1.)
    grad_and_delta, values_and_one = (
        tf.concat([grad, delta], -1), tf.concat([values, one], -1))
    if self.has_batch:
      centered = tf.matmul(grad_and_delta, values_and_one, transpose_b=True)
      grad_values = tf.matmul(weights, grad, transpose_a=True)
    else:
      centered = _over_examples(grad_and_delta, values_and_one)
      # What it has beyond the end of an example is not read.
      grad_values = _without_batch(tf.transpose(weights, [0, 1, 3, 2]), grad)
    grad_logits = weights * centered
    return {"values": [grad_values], **self._of_features(grad_logits),
            **self._of_products(grad_logits),
            "table": [_like(grad_logits, term) for term in self.terms["table"]]}

  def _of_products(self, grad_logits):
    grads = [_of_columns(grad_logits, repeated.block, tiled.block)
             for repeated, tiled in zip(self.terms["repeated"], self.terms["tiled"])]
    return {"repeated": [pair[0] for pair in grads],
            "tiled": [pair[1] for pair in grads]}

  def _of_features(self, grad_logits):
    if not self.terms["query"]:
      return {"query": [], "key": []}
    query, key = self._features()
    found = {"query": tf.matmul(grad_logits, key),
             "key": tf.matmul(grad_logits, query, transpose_a=True)}
    for name, grads in found.items():
      sizes = [t.block.shape.as_list()[-1] for t in self.terms[name]]
      parts = tf.split(grads, sizes + [1] * self.has_batch, axis=-1)
      found[name] = [_like(part, term)
                     for part, term in zip(parts, self.terms[name])]
    return found


def _columns(repeated, tiled):
  """Columns of products, as many as positions: [heads, examples, positions, same].

  Args:
    repeated: [heads, examples, positions, a]
    tiled: [heads, examples, positions, b]
  """
  shape = tf.shape(tiled)
  rows = _repetitions(repeated, tiled)
  products = tf.reshape(rows[..., None] * tiled[..., None, :], tf.concat(
      [shape[:-1], [tf.shape(rows)[-1] * shape[-1]]], 0))
  return products[..., :shape[2]]


def _repetitions(repeated, tiled):
  """[heads, examples, positions, rows]: what stands in each b columns."""
  a, b = repeated.shape.as_list()[-1], tiled.shape.as_list()[-1]
  rows = (tf.shape(tiled)[2] + b - 1) // b
  return tf.gather(repeated, tf.range(rows) % a, axis=-1)


def _of_columns(grad, repeated, tiled):
  """The gradients of both operands of `_columns`, given that of its result."""
  a, b = repeated.shape.as_list()[-1], tiled.shape.as_list()[-1]
  rows = _repetitions(repeated, tiled)
  count = tf.shape(rows)[-1]
  turns = (count + a - 1) // a
  lead = tf.shape(tiled)[:-1]
  grad = tf.reshape(_pad(grad, [None, None, None, count * b]),
                    tf.concat([lead, [count, b]], 0))
  of_rows = _pad(tf.reduce_sum(grad * tiled[..., None, :], -1),
                 [None, None, None, turns * a])
  of_rows = tf.reduce_sum(
      tf.reshape(of_rows, tf.concat([lead, [turns, a]], 0)), -2)
  return of_rows, tf.reduce_sum(grad * rows[..., None], -2)


def _like(grad, term):
  """The gradient with the examples that a term has."""
  return grad if term.of_tokens else tf.reduce_sum(grad, 1, keepdims=True)


def _without_batch(weights, values):
  """The products of [heads, 1, rows, m] with [heads, examples, m, d_kv]."""
  shape = tf.shape(values)
  d_kv = values.shape.as_list()[-1]
  flat = tf.reshape(tf.transpose(values, [0, 2, 1, 3]),
                    [shape[0], shape[2], shape[1] * d_kv])
  mean = tf.reshape(tf.matmul(weights[:, 0], flat),
                    tf.stack([shape[0], tf.shape(weights)[2], shape[1], d_kv]))
  mean = tf.transpose(mean, [0, 2, 1, 3])
  mean.set_shape([values.shape[0], None, None, d_kv])
  return mean


def _over_examples(a, b):
  """Sums a . b^T over the examples: [heads, 1, positions, positions]."""
  shape = tf.shape(a)

  def flat(x):
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]),
                      tf.stack([shape[0], shape[2], shape[1] * x.shape.as_list()[-1]]))

  return tf.expand_dims(tf.matmul(flat(a), flat(b), transpose_b=True), 1)


class MeanOfExamplesGradOperation(mtf.Operation):
  """The gradients of all inputs of a `MeanOfExamplesOperation`."""

  def __init__(self, forward: MeanOfExamplesOperation, grad: mtf.Tensor):
    super().__init__([*forward.inputs, mtf.transpose(
        grad, forward.outputs[0].shape)], name="mean_of_examples_grad")
    self._forward = forward
    self._outputs = [mtf.Tensor(self, t.shape, t.dtype)
                     for t in forward.inputs[-forward.learned:]]

  def lower(self, lowering: mtf.Lowering) -> None:
    forward, mesh_impl = self._forward, lowering.mesh_impl(self)
    kept = len(forward.kept)

    def of_slice(grad, *slices):
      return self._of_slice(grad, slices[:kept], slices[kept:], [
          mesh_impl.slice_shape(t.shape) for t in self.outputs])

    grads = mesh_impl.slicewise(
        of_slice, lowering.tensors[self.inputs[-1]], *forward.kept,
        *forward.slices(lowering))
    for output, grad, of_tokens in zip(
        self.outputs, grads, forward.of_tokens[-forward.learned:]):
      lowering.set_tensor_lowering(
          output, grad if of_tokens else splits.add_parts(
              lowering, self, forward.batch_dims, grad, output))

  def _of_slice(self, grad, kept, slices, shapes):
    forward = self._forward
    layout, tensors = forward.split(slices)
    grad = tf.reshape(tf.cast(grad, tf.float32), [-1] + grad.shape.as_list()[-2:])
    size = len(kept) // len(layout.groups)
    names = forward.names[-forward.learned:]
    found = []
    for i, group in enumerate(layout.groups):
      block = _Block(forward, layout, group, tensors,
                     list(kept[i * size:(i + 1) * size]))
      grads = block.gradients(grad)
      found.append([grads[name].pop(0) for name in names])
    return tuple(
        tf.cast(tf.reshape(
            _join_table(layout, parts, shape, name) if of_tokens else
            _add_corners(parts, shape), shape), output.dtype)
        for parts, name, of_tokens, output, shape in zip(
            zip(*found), names, forward.of_tokens[-forward.learned:], self.outputs,
            shapes))


def _join_table(layout, parts, shape, name):
  """Rows of all tokens; those of a table are filled up with zeros."""
  if name == "table":
    width = shape[-1]
    parts = [_pad(part, [None, None, None, width]) for part in parts]
    for part in parts:
      part.set_shape([shape[-2], None, None, width])
  return layout.join(list(parts))


def _add_corners(parts, shape):
  """The sum of [heads, 1, ...] for each group, each in the first corner of all."""
  *smaller, total = [part[:, 0] for part in parts]
  for part in reversed(smaller):
    sizes = tf.maximum(tf.shape(total), tf.shape(part))
    total = _pad(total, sizes) + _pad(part, sizes)
  return _pad(total, shape)


def _pad(tensor, sizes):
  """Zeros after the end of each dimension; None in a list leaves it as it is."""
  shape = tf.shape(tensor)
  if isinstance(sizes, list):
    sizes = tf.stack([shape[i] if size is None else size
                      for i, size in enumerate(sizes)])
  return tf.pad(tensor, tf.stack([tf.zeros_like(sizes), sizes - shape], 1))
