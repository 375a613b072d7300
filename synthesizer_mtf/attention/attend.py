"""Attention: the softmax of the logits, times the values.

`attend` is the plain formula in Mesh TensorFlow's own operations. It holds on every
mesh, in packed rows and while decoding. `fast/kernels.py` attaches kernels that compute
the same in fewer operations, each for a class of inputs. `weighted_sum` is the formula
without the softmax.
"""

from collections.abc import Callable
import functools

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

# A function with the arguments and the result of `attend`.
Kernel = Callable[..., mtf.Tensor]
_kernels: dict[type, Kernel] = {}

# Added to the logits of masked keys, as in Mesh TensorFlow.
MASK_VALUE = -1e9


def attach(case: type, kernel: Kernel) -> None:
  """Lets a kernel compute attention for inputs of exactly the class `case`."""
  _kernels[case] = kernel


def attend(inputs: attention_inputs.AttentionInputs,
           logits: list[logit_forms.Logits], values: mtf.Tensor,
           mask: attention_inputs.AttentionMask) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    inputs: an `AttentionInputs`.
    logits: a list of results of `AttentionInputs.read`.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: an `AttentionMask`.

  Returns:
    <float>[batch, heads, length, d_kv], in any order of dimensions and in the
    dtype of the values; `length` is absent in incremental mode. The softmax is
    computed in float32. A query whose keys are all masked gets finite values.
  """
  return _kernels.get(type(inputs), _plain)(inputs, logits, values, mask)


def _plain(inputs, logits, values, mask):
  bias = [logit_forms.Table(mask_bias(part)) for part in mask if part is not None]
  # [batch, heads, length, memory_length]
  weights = mtf.softmax(total([*logits, *bias], inputs), inputs.memory_length)
  intermediates.sow_weights(lambda: weights, mask, inputs)
  return mtf.einsum(  # [batch, heads, length, d_kv]
      [mtf.cast(weights, values.dtype), values],
      output_shape=inputs.query_dims + [inputs.d_kv])


def mask_bias(mask: mtf.Tensor, dtype: tf.DType = tf.float32) -> mtf.Tensor:
  """0 where `mask` is True and `MASK_VALUE` elsewhere: <dtype> in the mask's shape."""
  return mtf.cast(mtf.logical_not(mask), dtype) * MASK_VALUE


def total(logits: list[logit_forms.Logits],
          inputs: attention_inputs.AttentionInputs) -> mtf.Tensor:
  """The sum of logits.

  Args:
    logits: a list of results of `AttentionInputs.read`, without `Products`.
    inputs: an `AttentionInputs`.

  Returns:
    <float32>, with those of `inputs.logit_dims()` that a term has.
  """
  return functools.reduce(
      lambda a, b: mtf.add(a, b, output_shape=inputs.logit_dims(a, b)),
      [_table(term, inputs) for term in logits])


def _table(term, inputs):
  """A term as <float32>, with some of the dimensions of logits."""
  if isinstance(term, logit_forms.Table):
    return mtf.cast(term.values, tf.float32)
  if isinstance(term, logit_forms.ByPosition):
    return mtf.cast(inputs.rows_and_columns(term.values), tf.float32)
  query, key = (mtf.cast(t, tf.float32) for t in term)
  channels = query.shape.dims[-1]
  key = mtf.rename_dimension(key, key.shape.dims[-1].name, channels.name)
  return mtf.einsum([query, key], output_shape=inputs.logit_dims(query, key))


def weighted_sum(inputs: attention_inputs.AttentionInputs,
                 logits: list[logit_forms.Logits], values: mtf.Tensor,
                 mask: attention_inputs.AttentionMask) -> mtf.Tensor:
  """The sum of the values, weighted by the logits themselves: no softmax.

  The Random Synthesizer without its softmax is the token mixing of an MLP-Mixer
  (arXiv:2005.00743, section 2, "MLP-Mixers are Random Synthesizers"): one linear map
  over the positions, with one map for each head.

  Args:
    inputs: an `AttentionInputs`.
    logits: a list of results of `AttentionInputs.read`.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: an `AttentionMask`. Masked keys have the weight 0.

  Returns:
    <float>[batch, heads, length, d_kv] in the dtype of the values; `length` is
    absent in incremental mode. The weights are computed in float32. A query whose
    keys are all masked gets zeros.
  """
  weights = total(logits, inputs)
  if mask.pairs is not None:
    visible = mtf.cast(mask.pairs, tf.float32)
    weights = mtf.multiply(
        weights, visible, output_shape=inputs.logit_dims(weights, visible))
  if mask.keys is not None:
    # The key mask is the same for all queries, so it masks the smaller tensor.
    values *= mtf.cast(mask.keys, values.dtype)
  return mtf.einsum([mtf.cast(weights, values.dtype), values],
                    output_shape=inputs.query_dims + values.shape.dims[-1:])


def softmax(logits: mtf.Tensor, gradient: int | None = None) -> mtf.Tensor:
  """TensorFlow's fused softmax over the last dimension.

  Args:
    logits: <float32>[..., memory_length]
    gradient: as in `mtf.slicewise`: 0 for none, or None for TensorFlow's own.

  Returns:
    a tensor with the shape and dtype of logits.
  """
  def of_slice(x):  # [..., memory_length] -> the same
    shape = x.shape.as_list()
    if len(shape) <= 5:  # The most that TensorFlow's kernel for CPUs takes.
      return tf.nn.softmax(x)
    return tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, shape[-1]])), shape)

  return splits.slicewise(
      of_slice, [logits], splittable_dims=logits.shape.dims[:-1],
      grad_function=gradient)
