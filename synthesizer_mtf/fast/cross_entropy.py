"""The cross entropy of ids. It passes over the logits as rarely as possible.

Mesh TensorFlow's function makes one-hot targets and several tensors
[batch, length, vocabulary], forward and backward. They take longer than all attention
of a small model. Here the softmax is the only such tensor: in training the target is
subtracted from one entry of each row, in place. The gradient of the loss scales whole
rows. So this module scales the small operands and results of the products with the
vocabulary instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import query_chunks
import tensorflow.compat.v1 as tf

# A probability whose logarithm is exact; the smallest normal float32 is 1e-38.
_LEAST_EXACT = 1e-30


def cross_entropy(logits: mtf.Tensor, ids: mtf.Tensor, vocabulary: mtf.Dimension,
                  on_value: float = 1.0, off_value: float = 0.0, z_loss: float = 0.0,
                  factors: Sequence[mtf.Tensor] = ()) -> mtf.Tensor:
  """Computes the same as `mtf.layers.softmax_cross_entropy_with_logits`.

  The loss is sum_v target_v * (log_z - logits_v) + z_loss * log_z^2. It is computed in
  float32; Mesh TensorFlow computes it in the dtype of the logits.

  Args:
    logits: <float>[batch, length, vocabulary]
    ids: <int32>[batch, length]
    vocabulary: a dimension of the logits, which no layout splits.
    on_value: the target of an id.
    off_value: the target of all others, and of ids outside the vocabulary.
    z_loss: the weight of log_z^2.
    factors: (), or [hidden, table] if the logits are their product:
      <float>[batch, length, d_model] and <float>[vocabulary, d_model].

  Returns:
    <float>[batch, length] in the dtype of the logits.
  """
  logits = mtf.transpose(logits, ids.shape + vocabulary)
  targets = _Targets(on_value, off_value, z_loss)
  compute = targets.by_xla if splits.is_compiled(logits.mesh) else targets.in_place
  # Only the gradient uses the second and the third output.
  return splits.slicewise(
      lambda logits, ids, *factors: compute(logits, ids), [logits, ids, *factors],
      [ids.shape, logits.shape, ids.shape], [logits.dtype, tf.float32, tf.float32],
      splittable_dims=[d for t in (ids, *factors) for d in t.shape.dims
                       if d != vocabulary], grad_function=_gradient,
      name="cross_entropy", remedy=splits.NAME_A_LAYOUT)[0]


def _gradient(operation, grad, *_):
  logits, _, *factors = operation.inputs
  _, errors, slope = operation.outputs
  scale = mtf.cast(grad, tf.float32) * slope

  def scaled(x):
    return mtf.cast(mtf.cast(x, tf.float32) * scale, logits.dtype)

  if not factors:
    return [scaled(errors), None]
  hidden, table = factors
  errors = mtf.cast(errors, logits.dtype)
  grad_hidden = mtf.einsum([errors, table], output_shape=hidden.shape)
  # Two large products at the same time would take longer than one after the other.
  errors = query_chunks.wait(errors, grad_hidden)
  return [None, None, scaled(grad_hidden),
          mtf.einsum([errors, scaled(hidden)], output_shape=table.shape)]


class _Targets(NamedTuple):
  """The targets of an id and of all others, and the weight of log_z^2."""
  on: float
  off: float
  z_loss: float

  def in_place(self, logits, ids):
    """The loss; its gradient by the logits, divided by the slope; and the slope."""
    shape, size = ids.shape.as_list(), logits.shape.as_list()[-1]
    dtype = logits.dtype
    logits = tf.reshape(tf.cast(logits, tf.float32), [-1, size])
    ids = tf.reshape(ids, [-1])
    is_id = (ids >= 0) & (ids < size)
    ids = tf.where_v2(is_id, ids, 0)
    picked = tf.gather(logits, ids, batch_dims=1)
    # The softmax is changed in place below. Because it waits for `picked`, TensorFlow
    # cannot join it with the softmax of another operation.
    with tf.control_dependencies([picked]):
      softmax = tf.nn.softmax(logits)
    probability = tf.gather(softmax, ids, batch_dims=1)
    log_z = _log_z(logits, softmax, picked, probability)
    more, loss, slope = self.loss_and_slope(logits, is_id, picked, log_z)
    with tf.control_dependencies([log_z]):
      errors = softmax - tf.expand_dims(
          self.off / slope, -1) if self.off else softmax
      errors = _with_entries(errors, ids, probability - (more + self.off) / slope)
    return (tf.reshape(tf.cast(loss, dtype), shape),
            tf.reshape(errors, shape + [size]), tf.reshape(slope, shape))

  def by_xla(self, logits, ids):
    """As `in_place`, for XLA, which writes nothing in place and joins operations."""
    size, dtype = logits.shape.as_list()[-1], logits.dtype
    logits = tf.cast(logits, tf.float32)
    is_target = tf.equal(tf.range(size), tf.expand_dims(ids, -1))
    picked = tf.reduce_sum(tf.where_v2(is_target, logits, 0.), -1)
    log_z = tf.reduce_logsumexp(logits, -1)
    _, loss, slope = self.loss_and_slope(
        logits, (ids >= 0) & (ids < size), picked, log_z)
    targets = self.off + tf.where_v2(is_target, self.on - self.off, 0.)
    errors = tf.exp(logits - tf.expand_dims(log_z, -1)) - (
        targets / tf.expand_dims(slope, -1))
    return tf.cast(loss, dtype), errors, slope

  def loss_and_slope(self, logits, is_id, picked, log_z):
    """The weight of the target beyond that of all ids, the loss, and its slope."""
    more = tf.where_v2(is_id, self.on - self.off, 0.)
    total = more + self.off * logits.shape.as_list()[-1]
    loss = total * log_z - more * picked + self.z_loss * tf.square(log_z)
    if self.off:
      loss -= self.off * tf.reduce_sum(logits, -1)
    slope = total + 2 * self.z_loss * log_z
    # It is a divisor.
    return more, loss, tf.where_v2(tf.equal(slope, 0), _LEAST_EXACT, slope)


def _with_entries(matrix, columns, values):
  """Returns the matrix with a new value in one column of each row.

  The values are written in place, unless an int32 cannot count the matrix's entries.
  """
  rows, size = tf.range(columns.shape[0]), matrix.shape[1]
  if matrix.shape.num_elements() >= 2**31:
    return tf.tensor_scatter_nd_update(matrix, tf.stack([rows, columns], -1), values)
  return tf.raw_ops.InplaceUpdate(
      x=tf.reshape(matrix, [-1]), i=rows * size + columns, v=values)


def _log_z(logits, softmax, picked, probability):
  """The logarithm of the sum of exponentials: <float32>[rows].

  An entry of the softmax is exp(logit - log_z). The function reads the entries of the
  ids. If one of these is so small that it has lost bits, it reads each row's greatest
  entry instead.
  """
  return tf.cond(
      tf.reduce_min(probability) > _LEAST_EXACT,
      lambda: picked - tf.log(probability),
      lambda: tf.reduce_max(logits, -1) - tf.log(tf.reduce_max(softmax, -1)))
