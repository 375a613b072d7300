"""The cross entropy of ids. It reads the logits and writes their gradient once.

Mesh TensorFlow's function makes one-hot targets and several tensors
[batch, length, vocabulary], forward and backward. They take longer than all attention
of a small model.
"""

import mesh_tensorflow as mtf
import tensorflow.compat.v1 as tf


def cross_entropy(logits: mtf.Tensor, ids: mtf.Tensor, vocabulary: mtf.Dimension,
                  on_value: float = 1.0, off_value: float = 0.0,
                  z_loss: float = 0.0) -> mtf.Tensor:
  """Computes the same as `mtf.layers.softmax_cross_entropy_with_logits`.

  The loss is sum_v target_v * (log_z - logits_v) + z_loss * log_z^2. It is computed in
  float32; Mesh TensorFlow computes it in the dtype of the logits.

  Args:
    logits: <float>[batch, length, vocabulary]
    ids: <int32>[batch, length]
    vocabulary: a dimension of the logits, which no layout splits.
    on_value: a float, the target of an id.
    off_value: a float, the target of all others, and of ids outside the vocabulary.
    z_loss: a float.

  Returns:
    <float>[batch, length] in the dtype of the logits.
  """
  logits = mtf.transpose(logits, ids.shape + vocabulary)
  return CrossEntropyOperation(
      logits, ids, on_value, off_value, z_loss).outputs[0]


class CrossEntropyOperation(mtf.Operation):
  """See `cross_entropy`. All dimensions except the vocabulary can be split."""

  def __init__(self, logits: mtf.Tensor, ids: mtf.Tensor, on_value: float,
               off_value: float, z_loss: float):
    super().__init__([logits, ids], name="cross_entropy")
    self._on, self._off, self._z_loss = on_value, off_value, z_loss
    # Only the gradient uses the second and the third output.
    self._outputs = [mtf.Tensor(self, ids.shape, logits.dtype),
                     mtf.Tensor(self, logits.shape, tf.float32),
                     mtf.Tensor(self, ids.shape, tf.float32)]

  def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
    logits, ids = self.inputs
    _, softmax, slope = self.outputs
    grad = CrossEntropyGradOperation(
        softmax, slope, ids, grad_ys[0], self._on - self._off, self._off)
    return [mtf.cast(grad.outputs[0], logits.dtype), None]

  def lower(self, lowering: mtf.Lowering) -> None:
    values = lowering.mesh_impl(self).slicewise(
        self._of_slice, *[lowering.tensors[x] for x in self.inputs])
    for output, value in zip(self.outputs, values):
      lowering.set_tensor_lowering(output, value)

  def _of_slice(self, logits, ids):
    """The loss, the softmax, and the factor of the softmax in the gradient."""
    shape = ids.shape.as_list()
    size = logits.shape.as_list()[-1]
    dtype = logits.dtype
    logits, ids = _rows(tf.cast(logits, tf.float32)), tf.reshape(ids, [-1])
    softmax = tf.nn.softmax(logits)
    # The greatest entry of the softmax is 1 / sum(exp(logits - greatest)). So the next
    # line needs no further tensor as large as the logits.
    log_z = tf.reduce_max(logits, -1) - tf.log(tf.reduce_max(softmax, -1))
    is_id = (ids >= 0) & (ids < size)
    picked = tf.gather(logits, tf.where_v2(is_id, ids, 0), batch_dims=1)
    more = tf.where_v2(is_id, self._on - self._off, 0.)
    total = more + self._off * size
    loss = total * log_z - more * picked + self._z_loss * tf.square(log_z)
    if self._off:
      loss -= self._off * tf.reduce_sum(logits, -1)
    slope = total + 2 * self._z_loss * log_z
    return (tf.reshape(tf.cast(loss, dtype), shape),
            tf.reshape(softmax, shape + [size]), tf.reshape(slope, shape))


def _rows(tensor):
  return tf.reshape(tensor, [-1, tensor.shape.as_list()[-1]])


class CrossEntropyGradOperation(mtf.Operation):
  """The gradient of the loss: grad * (slope * softmax - targets)."""

  def __init__(self, softmax: mtf.Tensor, slope: mtf.Tensor, ids: mtf.Tensor,
               grad: mtf.Tensor, more: float, off_value: float):
    """Declares the inputs.

    Args:
      softmax: <float32>[batch, length, vocabulary]
      slope: <float32>[batch, length]
      ids: <int32>[batch, length]
      grad: <float>[batch, length], the gradient of the loss.
      more: a float, the target of an id minus `off_value`.
      off_value: a float, the target of all others.
    """
    super().__init__([softmax, slope, ids, grad], name="cross_entropy_grad")
    self._more, self._off = more, off_value
    self._outputs = [mtf.Tensor(self, softmax.shape, tf.float32)]

  def lower(self, lowering: mtf.Lowering) -> None:
    lowering.set_tensor_lowering(
        self.outputs[0], lowering.mesh_impl(self).slicewise(
            self._of_slice, *[lowering.tensors[x] for x in self.inputs]))

  def _of_slice(self, softmax, slope, ids, grad):
    shape = softmax.shape.as_list()
    slope, ids, grad = (tf.reshape(x, [-1]) for x in (slope, ids, grad))
    grad = tf.cast(grad, tf.float32)
    grads = _rows(softmax) * tf.expand_dims(grad * slope, -1)
    if self._off:
      grads -= tf.expand_dims(grad * self._off, -1)
    is_id = (ids >= 0) & (ids < shape[-1])
    indices = tf.stack([tf.range(tf.size(ids)), tf.where_v2(is_id, ids, 0)], -1)
    # Nothing else has read the gradients yet, so TensorFlow changes them in place.
    grads = tf.tensor_scatter_nd_sub(
        grads, indices, tf.where_v2(is_id, grad * self._more, 0.))
    return tf.reshape(grads, shape)
