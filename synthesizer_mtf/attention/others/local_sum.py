"""Weighted sums over the neighbours of each token, for convolutions.

The large tensor here is [batch, length, kernel, channels]. Only kernels that a layer
predicts for every channel have this size. Sums and their gradients run over the entries
of the kernel, one [batch, length, channels] at a time. If all tokens share a kernel,
TensorFlow's depthwise convolution computes the sums, unless rows hold several segments.

`first` is the offset of a kernel's first entry from its token: -(kernel - 1) reads no
later tokens, and -((kernel - 1) // 2) is centred. Values beyond the ends of a row are
zeros. `length` cannot be split.
"""

import functools
import operator

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def shared_kernel(values: mtf.Tensor, kernel: mtf.Tensor, first: int,
                  same: mtf.Tensor | None = None) -> mtf.Tensor:
  """Sums with one kernel for all tokens.

  Args:
    values: <float>[batch, length, heads, d_kv]
    kernel: <float>[kernel, heads], or with some dimensions of the batch first.
    first: the offset of the first entry.
    same: <float32>[batch, length, kernel], 0 where a kernel reaches into another
      segment; or None.

  Returns:
    a tensor with the shape and dtype of values.
  """
  dims = values.shape.dims
  fast = same is None and kernel.shape.ndims == 2
  # With `batch` in the kernel, Mesh TensorFlow sums its gradient over the mesh.
  kernel = mtf.broadcast(kernel, dims[:-3] + kernel.shape.dims[-2:])
  if fast:
    def convolve(values, kernel):
      # All examples have this kernel.
      kernel = tf.reshape(kernel, [-1] + kernel.shape.as_list()[-2:])[0]
      return _depthwise(values, kernel, first)

    return _slicewise(convolve, [values, kernel])

  def add(values, kernel, same=None):
    weights = _entries(_float32(kernel)[..., None, :, :, None])
    return _local_sum(values, weights, first, _per_entry(same=same))

  return _slicewise(add, [values, kernel], same=same)


def predicted_kernel(values: mtf.Tensor, logits: mtf.Tensor, first: int,
                     noise: mtf.Tensor | None = None,
                     same: mtf.Tensor | None = None) -> mtf.Tensor:
  """Sums with the softmax of logits as each token's kernel, in float32.

  Args:
    values: <float>[batch, length, heads, d_kv]
    logits: <float>[batch, length, kernel, heads]
    first: the offset of the first entry.
    noise: <float32>[batch, kernel, heads], factors of the normalized kernel; or None.
    same: as in `shared_kernel`.

  Returns:
    a tensor with the shape and dtype of values.
  """
  def add(values, logits, noise=None, same=None):
    weights = _softmax(*_entries(_float32(logits)[..., None]))
    return _local_sum(values, weights, first, _per_entry(noise, same))

  # Mesh TensorFlow would follow the gradient of `values` through the logits, which
  # depend on them, and count that path twice. No logits depend on the copy.
  return _slicewise(add, [mtf.identity(values), logits], noise=noise, same=same)


def same_segment(ids: mtf.Tensor, kernel_dim: mtf.Dimension, first: int) -> mtf.Tensor:
  """Marks the entries of each token's kernel that lie in the token's segment.

  Args:
    ids: <int32>[batch, length]
    kernel_dim: the dimension `kernel`.
    first: the offset of the first entry.

  Returns:
    <float32>[batch, length, kernel], 1 or 0.
  """
  def compare(ids):
    padded = _pad(ids[..., None, None], -first, kernel_dim.size - 1 + first)
    near = [padded[..., j:j + ids.shape[-1], 0, 0]
            for j in range(kernel_dim.size)]
    return tf.cast(tf.equal(tf.stack(near, -1), ids[..., None]), tf.float32)

  return splits.slicewise(
      compare, [ids], output_shape=ids.shape + kernel_dim,
      output_dtype=tf.float32, splittable_dims=ids.shape.dims[:-1],
      grad_function=0)


def _slicewise(fn, tensors, **optional):
  """Runs fn(*tensors, **optional) on slices, without arguments that are None."""
  names = [name for name, tensor in optional.items() if tensor is not None]

  def positional(*slices):
    required = slices[:len(tensors)]
    return fn(*required, **dict(zip(names, slices[len(tensors):])))

  dims = tensors[0].shape.dims
  return splits.slicewise(
      positional, tensors + [optional[name] for name in names],
      splittable_dims=dims[:-3] + [dims[-2]])


def _depthwise(values, kernel, first):
  """TensorFlow's depthwise convolution of [..., length, heads, d_kv]."""
  length, heads, d_kv = values.shape.as_list()[-3:]
  size = kernel.shape.as_list()[0]
  # Positions are the rows of an image one pixel wide, the faster orientation on CPUs.
  rows = tf.reshape(values, [-1, length, 1, heads * d_kv])
  rows = _pad(rows, -first, size - 1 + first)
  filters = tf.repeat(kernel, d_kv, axis=-1)[:, None, :, None]
  return tf.reshape(
      tf.nn.depthwise_conv2d(rows, filters, [1, 1, 1, 1], "VALID"),
      values.shape)


def _per_entry(noise=None, same=None):
  """Constant factors of the weights, one tensor for each entry; or None."""
  factors = []
  if noise is not None:
    factors.append(_entries(noise[..., None, :, :, None]))
  if same is not None:
    factors.append(_entries(same[..., None, None]))
  return [functools.reduce(operator.mul, f) for f in zip(*factors)] or None


def _local_sum(values, weights, first, factors=None):
  """sum_j weights[j] * factors[j] * values[i + first + j], for each token i.

  Args:
    values: <float>[..., length, heads, d_kv]
    weights: a list of <float32>[..., length, heads, 1], one for each entry of
      the kernel; a `length` of 1 stands for all tokens.
    first: an integer.
    factors: None or a list of <float32>[..., length, heads, 1], constant, where
      `length` and `heads` can be 1.

  Returns:
    a tensor with the shape and dtype of values.
  """
  size, length = len(weights), values.shape.as_list()[-3]

  @tf.custom_gradient
  def add(values, *weights):
    padded = _pad(values, -first, size - 1 + first)

    def near(j):
      return padded[..., j:j + length, :, :]

    def times_factor(tensor, j):
      return tensor if factors is None else tensor * factors[j]

    def gradient(grad):
      grad_weights = [
          _sum_like(times_factor(tf.reduce_sum(grad * near(j), -1, True), j), w)
          for j, w in enumerate(weights)]
      spread = [_pad(grad * times_factor(w, j), j, size - 1 - j)
                for j, w in enumerate(weights)]
      return [_total(spread)[..., -first:length - first, :, :]] + grad_weights

    return _total([near(j) * times_factor(w, j)
                   for j, w in enumerate(weights)]), gradient

  return tf.cast(add(_float32(values), *weights), values.dtype)


@tf.custom_gradient
def _softmax(*logits):
  """The softmax over a list of tensors; its gradient keeps the weights."""
  maximum = functools.reduce(tf.maximum, logits)
  weights = [tf.exp(x - maximum) for x in logits]
  scale = 1 / _total(weights)
  weights = [x * scale for x in weights]

  def gradient(*grads):
    mean = _total([w * g for w, g in zip(weights, grads)])
    return [w * (g - mean) for w, g in zip(weights, grads)]

  return weights, gradient


def _entries(tensor):
  """The entries of the third dimension from the end.

  With TensorFlow 2.15's graph optimizer, `tf.unstack` of a broadcast tensor returns
  the first entry twice.
  """
  size = tensor.shape.as_list()[-3]
  return [tf.squeeze(t, -3) for t in tf.split(tensor, size, axis=-3)]


def _total(tensors):
  return functools.reduce(operator.add, tensors)


def _float32(tensor):
  return tf.cast(tensor, tf.float32)


def _pad(tensor, before, after):
  """Pads the third dimension from the end with zeros."""
  around = [[0, 0]] * (tensor.shape.ndims - 3)
  return tf.pad(tensor, around + [[before, after], [0, 0], [0, 0]])


def _sum_like(tensor, like):
  """Sums over `length` where `like` has one entry for all tokens."""
  if like.shape.as_list()[-3] == 1:
    return tf.reduce_sum(tensor, -3, keepdims=True)
  return tensor
