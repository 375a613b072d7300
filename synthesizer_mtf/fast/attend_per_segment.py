"""Attention within each segment of packed rows.

It shares the formulas of `attend`, but is written in TensorFlow, as only the running
graph knows the sizes of the segments (see `packed_segments.py`). Features of tokens
are laid out from position 0 on. All segments share the tables over positions; each
reads their first rows and columns. Logits that do not depend on tokens have one softmax
for all segments of a group; for its maximum see `kernels._without_batch`.
"""

import collections
from collections.abc import Sequence

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import cases
from synthesizer_mtf.fast import operands
from synthesizer_mtf.fast import packed_segments
import tensorflow.compat.v1 as tf


def attend_per_segment(inputs: cases.PackedSegments,
                       inner: list[logit_forms.InnerProduct],
                       tables: list[mtf.Tensor],
                       products: list[logit_forms.Products], values: mtf.Tensor,
                       mask: masks.AttentionMask) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    tables: a list of <float32> with any of the dimensions batch, heads and length,
      and with memory_length; they include the attention mask.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: an `AttentionMask`, for captured weights.

  Returns:
    <float>[batch, length, heads, d_kv] in the dtype of the values, 0 for padding.
  """
  terms = [
      *(operands.Priority.of(t, inputs) for t in inputs.own_order()),
      *(kind.of(t, inputs) for pair in inner
        for kind, t in zip([operands.Query, operands.Key], pair)),
      *(operands.Table.of(t, inputs) for t in tables),
      *(operands.Factor.of(t, inputs) for pair in products for t in pair),
      operands.Values.of(values, inputs)]
  mean, *weights = AttendPerSegmentOperation(
      terms, inputs, intermediates.are_captured()).outputs
  if weights:
    intermediates.sow_weights(lambda: weights[0], mask, inputs)
  return mean


class AttendPerSegmentOperation(mtf.Operation):
  """See `attend_per_segment`. Batch and heads can be split.

  Attributes:
    operands: the `Operand` of each input; the learned ones come last.
    saved: laid-out tensors of the groups, for the gradient.
  """

  def __init__(self, terms: list[operands.Operand], inputs: cases.PackedSegments,
               captured: bool):
    """Declares the inputs.

    Args:
      terms: the inputs; the values come last.
      captured: whether the weights are a second output: <float32>[batch, length,
        heads, memory_length] of whole rows, 0 for other segments and padding.
    """
    self.operands = terms
    self.segments = packed_segments.find(inputs.context)  # Lowered before this.
    tensors = [operand.tensor for operand in terms]
    super().__init__(tensors, name="attend_per_segment")
    self.batch_dims = inputs.batch_dims
    self._whole = [d for t in tensors for d in t.shape.dims
                   if d not in inputs.batch_dims + [inputs.heads]]
    rows = inputs.batch_dims + [inputs.length, inputs.heads]
    self._outputs = [mtf.Tensor(
        self, mtf.Shape(rows + [inputs.d_kv]), tensors[-1].dtype)]
    if captured:
      self._outputs.append(mtf.Tensor(
          self, mtf.Shape(rows + [inputs.memory_length]), tf.float32))
    self.saved: list = []

  @property
  def learned(self) -> list[operands.Operand]:
    """The operands that have a gradient; they are the last inputs."""
    return [operand for operand in self.operands if operand.learned]

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
    grads = AttendPerSegmentGradOperation(self, grad_ys[0]).outputs
    return [None] * (len(self.inputs) - len(grads)) + grads

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(self)
    splits.require_whole(lowering, self, self._whole)
    shapes = [mesh_impl.slice_shape(output.shape) for output in self.outputs]

    def compute(*slices):  # The outputs, and what the gradient needs.
      layout, tensors = self.split(slices)
      groups = [_Block(self, layout, group, tensors) for group in layout.groups]
      parts = [[block.mean() for block in groups]]
      parts += [[block.weights_in_rows(shape) for block in groups]
                for shape in shapes[1:]]
      joined = [tf.cast(tf.reshape(layout.join(part), shape), output.dtype)
                for part, shape, output in zip(parts, shapes, self.outputs)]
      return (*joined, *(t for block in groups for t in block.saved))

    results = mesh_impl.slicewise(compute, *self.slices(lowering))
    self.saved = results[len(shapes):]
    for output, result in zip(self.outputs, results):
      lowering.set_tensor_lowering(output, result)

  def slices(self, lowering: mtf.Lowering) -> list:
    """Laid-out tensors: the segments, and the inputs."""
    return [*self.segments.layout, *(lowering.tensors[t] for t in self.inputs)]

  def split(self, slices: Sequence[tf.Tensor]) -> tuple:
    """A `Layout`, and the inputs as [tokens, heads, last] or [heads, ...]."""
    count = len(self.inputs)
    tensors = []
    for tensor, operand in zip(slices[-count:], self.operands):
      tensor = tf.cast(tensor, tf.float32)
      if operand.of_tokens:
        tensor = tf.reshape(tensor, [-1] + tensor.shape.as_list()[-2:])
      tensors.append(tensor)
    return packed_segments.Layout.from_slices(slices[:-count]), tensors


class _Block:
  """The attention within the segments of one group.

  Attributes:
    terms: a dict from kinds of operands to lists of `Term`.
    saved: [weights, mean] and, without batch, [total], for the gradient.
  """

  def __init__(self, operation, layout, group, tensors, saved=None):
    self._layout, self._group = layout, group
    self.terms = collections.defaultdict(list)
    length = group.length
    for operand, tensor in zip(operation.operands, tensors):
      self.terms[type(operand)].append(operand.term(
          tensor, layout, group, length))
    self.has_batch = any(operand.of_tokens for operand in operation.operands[:-1])
    self.saved = saved

  def _features(self):
    """The queries and keys; if logits have a batch, one channel is the key mask."""
    if not self.has_batch:
      return [tf.concat([term.block for term in self.terms[kind]], -1)
              for kind in (operands.Query, operands.Key)]
    masked = (1 - self._group.is_token) * masks.MASK_VALUE
    query = self._concat(operands.Query, 1.)
    return query, self._concat(operands.Key, masked[None, :, :, None])

  def _concat(self, kind, channel):
    """All channels of a kind and one more; terms without a batch are repeated."""
    terms = self.terms[kind]
    count = tf.shape(self._group.indices)[0]
    blocks = [term.block for term in terms]
    if kind is operands.Key or any(term.of_tokens for term in terms):
      blocks = [block if term.of_tokens else tf.tile(block, [1, count, 1, 1])
                for block, term in zip(blocks, terms)]
    return tf.concat(blocks + [tf.zeros_like(blocks[0][..., :1]) + channel], -1)

  def _pairs(self, kind):
    """The blocks of an operand kind, in pairs."""
    blocks = [term.block for term in self.terms[kind]]
    return zip(blocks[::2], blocks[1::2])

  def _logits(self):
    """[heads, segments, positions, positions]; one segment if none has a batch."""
    tables = [term.block for term in sorted(
        self.terms[operands.Table], key=lambda term: term.of_tokens)]
    if self.terms[operands.Query]:
      tables.append(tf.matmul(*self._features(), transpose_b=True))
    elif self.has_batch:
      tables.append((1 - self._group.is_token)[None, :, None] * masks.MASK_VALUE)
    tables += [_columns(*pair) for pair in self._pairs(operands.Factor)]
    for reads, writes in self._pairs(operands.Priority):
      late = reads < tf.transpose(writes, [0, 1, 3, 2])
      tables.append(tf.cast(late, tf.float32) * masks.MASK_VALUE)
    return sum(tables[1:], tables[0])

  def mean(self):
    """[heads, segments, positions, d_kv]"""
    weights = tf.nn.softmax(self._logits())
    values = self.terms[operands.Values][0].block
    if self.has_batch:
      mean = tf.matmul(weights, values)
      self.saved = [weights, mean]
      return mean
    is_token = self._group.is_token
    total = tf.tensordot(weights[:, 0], is_token, [[2], [1]])
    total = tf.transpose(tf.where_v2(total > 0, total, 1.), [0, 2, 1])[..., None]
    mean = _without_batch(weights, values * is_token[None, :, :, None]) / total
    self.saved = [weights, mean, total]
    return mean

  def weights_in_rows(self, shape):
    """The weights as [heads, segments, positions, memory_length] of whole rows."""
    weights, _, *total = self.saved
    columns = (tf.one_hot(self._group.indices % shape[-1], shape[-1]) *
               self._group.is_token[..., None])
    # A product that broadcasts fails where a group is empty.
    rows = (tf.einsum("hij,ejk->heik", weights[:, 0], columns) / total[0] if total
            else tf.einsum("heij,ejk->heik", weights, columns))
    rows.set_shape([shape[-2], None, None, shape[-1]])
    return rows

  def gradients(self, grad):
    """The gradients of the terms, in their order, as [heads, segments, ...].

    Args:
      grad: [tokens, heads, d_kv], the gradient of the mean.
    """
    weights, mean, *total = self.saved
    is_token = self._group.is_token[None, :, :, None]
    values = self.terms[operands.Values][0].block
    scale = is_token / total[0] if total else is_token
    grad = self._layout.unjoin(grad, self._group) * scale
    if total:
      values *= is_token
    delta = -tf.reduce_sum(grad * mean, -1, keepdims=True)
    one = tf.zeros_like(values[..., :1]) + (is_token if total else 1.)
    grad_and_delta, values_and_one = (
        tf.concat([grad, delta], -1), tf.concat([values, one], -1))
    if self.has_batch:
      centered = tf.matmul(grad_and_delta, values_and_one, transpose_b=True)
      grad_values = tf.matmul(weights, grad, transpose_a=True)
    else:
      centered = _over_segments(grad_and_delta, values_and_one)
      # Nothing reads `grad_values` beyond the end of a segment.
      grad_values = _without_batch(tf.transpose(weights, [0, 1, 3, 2]), grad)
    grad_logits = weights * centered
    return {operands.Values: [grad_values], **self._feature_gradients(grad_logits),
            operands.Factor: [grad for pair in self._pairs(operands.Factor)
                              for grad in _column_gradients(grad_logits, *pair)],
            operands.Table: [_like(grad_logits, term)
                             for term in self.terms[operands.Table]]}

  def _feature_gradients(self, grad_logits):
    if not self.terms[operands.Query]:
      return {}
    query, key = self._features()
    gradients = {operands.Query: tf.matmul(grad_logits, key),
                 operands.Key: tf.matmul(grad_logits, query, transpose_a=True)}
    for kind, grads in gradients.items():
      sizes = [t.block.shape.as_list()[-1] for t in self.terms[kind]]
      parts = tf.split(grads, sizes + [1] * self.has_batch, axis=-1)
      gradients[kind] = [_like(part, term)
                         for part, term in zip(parts, self.terms[kind])]
    return gradients


def _columns(repeated, tiled):
  """Makes a column of products for each position: [heads, segments, positions, same].

  Args:
    repeated: [heads, segments, positions, a]
    tiled: [heads, segments, positions, b]
  """
  shape = tf.shape(tiled)
  rows = _repetitions(repeated, tiled)
  products = tf.reshape(rows[..., None] * tiled[..., None, :], tf.concat(
      [shape[:-1], [tf.shape(rows)[-1] * shape[-1]]], 0))
  return products[..., :shape[2]]


def _repetitions(repeated, tiled):
  """[heads, segments, positions, rows]: one factor for every b columns."""
  a, b = repeated.shape.as_list()[-1], tiled.shape.as_list()[-1]
  rows = (tf.shape(tiled)[2] + b - 1) // b
  return tf.gather(repeated, tf.range(rows) % a, axis=-1)


def _column_gradients(grad, repeated, tiled):
  """The gradients of both operands of `_columns`, given the gradient of its result."""
  a, b = repeated.shape.as_list()[-1], tiled.shape.as_list()[-1]
  rows = _repetitions(repeated, tiled)
  count = tf.shape(rows)[-1]
  turns = (count + a - 1) // a
  lead = tf.shape(tiled)[:-1]
  grad = tf.reshape(operands.pad(grad, [None, None, None, count * b]),
                    tf.concat([lead, [count, b]], 0))
  of_rows = operands.pad(tf.reduce_sum(grad * tiled[..., None, :], -1),
                 [None, None, None, turns * a])
  of_rows = tf.reduce_sum(
      tf.reshape(of_rows, tf.concat([lead, [turns, a]], 0)), -2)
  return of_rows, tf.reduce_sum(grad * rows[..., None], -2)


def _like(grad, term):
  """The gradient, summed over segments if the term has only one."""
  return grad if term.of_tokens else tf.reduce_sum(grad, 1, keepdims=True)


def _without_batch(weights, values):
  """The products of [heads, 1, rows, m] with [heads, segments, m, d_kv]."""
  shape = tf.shape(values)
  d_kv = values.shape.as_list()[-1]
  flat = tf.reshape(tf.transpose(values, [0, 2, 1, 3]),
                    [shape[0], shape[2], shape[1] * d_kv])
  mean = tf.reshape(tf.matmul(weights[:, 0], flat),
                    tf.stack([shape[0], tf.shape(weights)[2], shape[1], d_kv]))
  mean = tf.transpose(mean, [0, 2, 1, 3])
  mean.set_shape([values.shape[0], None, None, d_kv])
  return mean


def _over_segments(a, b):
  """Sums a . b^T over the segments: [heads, 1, positions, positions]."""
  shape = tf.shape(a)

  def flat(x):
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]),
                      tf.stack([shape[0], shape[2], shape[1] * x.shape.as_list()[-1]]))

  return tf.expand_dims(tf.matmul(flat(a), flat(b), transpose_b=True), 1)


class AttendPerSegmentGradOperation(mtf.Operation):
  """The gradients of the learned inputs of an `AttendPerSegmentOperation`."""

  def __init__(self, forward: AttendPerSegmentOperation, grad: mtf.Tensor):
    super().__init__([*forward.inputs, mtf.transpose(
        grad, forward.outputs[0].shape)], name="attend_per_segment_grad")
    self._forward = forward
    self._outputs = [mtf.Tensor(self, t.shape, t.dtype)
                     for t in forward.inputs[-len(forward.learned):]]

  def lower(self, lowering: mtf.Lowering) -> None:
    forward, mesh_impl = self._forward, lowering.mesh_impl(self)
    saved = len(forward.saved)

    def compute(grad, *slices):  # <float>[batch, length, ...] -> the gradients
      return self._gradients(grad, slices[:saved], slices[saved:], [
          mesh_impl.slice_shape(t.shape) for t in self.outputs])

    grads = mesh_impl.slicewise(
        compute, lowering.tensors[self.inputs[-1]], *forward.saved,
        *forward.slices(lowering))
    for output, grad, operand in zip(self.outputs, grads, forward.learned):
      lowering.set_tensor_lowering(
          output, grad if operand.of_tokens else splits.add_parts(
              lowering, self, forward.batch_dims, grad, output))

  def _gradients(self, grad, saved, slices, shapes):
    forward = self._forward
    layout, tensors = forward.split(slices)
    grad = tf.reshape(tf.cast(grad, tf.float32), [-1] + grad.shape.as_list()[-2:])
    size = len(saved) // len(layout.groups)
    by_group = []
    for i, group in enumerate(layout.groups):
      block = _Block(forward, layout, group, tensors,
                     list(saved[i * size:(i + 1) * size]))
      grads = block.gradients(grad)
      by_group.append([grads[type(operand)].pop(0) for operand in forward.learned])
    return tuple(
        tf.cast(tf.reshape(
            operand.join(layout, parts, shape) if operand.of_tokens else
            _add_corners(parts, shape), shape), output.dtype)
        for parts, operand, output, shape in zip(
            zip(*by_group), forward.learned, self.outputs, shapes))


def _add_corners(parts, shape):
  """Adds up the tensors [heads, 1, ...] of all groups, aligned at position 0."""
  *smaller, total = [part[:, 0] for part in parts]
  for part in reversed(smaller):
    sizes = tf.maximum(tf.shape(total), tf.shape(part))
    total = operands.pad(total, sizes) + operands.pad(part, sizes)
  return operands.pad(total, shape)
