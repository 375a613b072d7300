"""Attention: the softmax of the logits, times the values.

`attend` is the plain formula in Mesh TensorFlow's own operations. It holds on every
mesh, in packed rows and while decoding. `fast/kernels.py` attaches kernels that compute
the same in fewer operations, each for a class of inputs. `weighted_sum` is the formula
without the softmax.
"""

from collections.abc import Callable
import functools

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import attend_near
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf

# A function with the arguments and the result of `attend`, which gets logits in the
# forms `logit_forms.Readable`, and always a mask.
Kernel = Callable[..., mtf.Tensor]
_kernels: dict[type, Kernel] = {}


def attach(case: type, kernel: Kernel) -> None:
  """Lets a kernel compute attention for inputs of exactly the class `case`."""
  _kernels[case] = kernel


def attend(inputs: AttentionInputs, logits: list[logit_forms.Logits],
           values: mtf.Tensor, mask: masks.AttentionMask | None = None) -> mtf.Tensor:
  """The mean of the values, weighted by the softmax of the logits.

  Args:
    inputs: the inputs of the call.
    logits: forms of logits, which are added.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: which keys a query attends to; None for `inputs.mask()`.

  Returns:
    <float>[batch, heads, length, d_kv], in any order of dimensions and in the
    dtype of the values; `length` is absent in incremental mode. The softmax is
    computed in float32. A query whose keys are all masked gets finite values.
  """
  near = attend_near.lone(logits)
  if near and attend_near.is_possible(inputs):
    return attend_near.attend_near(inputs, logits, values)
  if near:
    logits = [*logits, attend_near.outside(inputs, near)]
  kernel = _kernels.get(type(inputs), _plain)
  return kernel(inputs, [*map(inputs.read, logits)], values,
                inputs.mask() if mask is None else mask)


def _plain(inputs, logits, values, mask):
  bias = [logit_forms.Table(masks.mask_bias(part)) for part in mask if part is not None]
  # [batch, heads, length, memory_length]
  weights = mtf.softmax(total([*logits, *bias], inputs), inputs.memory_length)
  intermediates.sow_weights(lambda: weights, mask, inputs)
  return mtf.einsum(  # [batch, heads, length, d_kv]
      [mtf.cast(weights, values.dtype), values],
      output_shape=inputs.query_dims + [inputs.d_kv])


def total(logits: list[logit_forms.Readable], inputs: AttentionInputs) -> mtf.Tensor:
  """The sum of logits other than `Products`.

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


def weighted_sum(inputs: AttentionInputs, logits: list[logit_forms.Logits],
                 values: mtf.Tensor) -> mtf.Tensor:
  """The sum of the values, weighted by the logits themselves: no softmax.

  The Random Synthesizer without its softmax is the token mixing of an MLP-Mixer
  (arXiv:2005.00743, section 2, "MLP-Mixers are Random Synthesizers"): one linear map
  over the positions, with one map for each head.

  The arguments and the result are as in `attend`. Masked keys have the weight 0, so a
  query whose keys are all masked gets zeros.
  """
  weights, mask = total([*map(inputs.read, logits)], inputs), inputs.mask()
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
  def softmax_slice(x):  # [..., memory_length] -> the same
    shape = x.shape.as_list()
    if len(shape) <= 5:  # The most that TensorFlow's kernel for CPUs takes.
      return tf.nn.softmax(x)
    return tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, shape[-1]])), shape)

  return splits.slicewise(
      softmax_slice, [logits], splittable_dims=logits.shape.dims[:-1],
      grad_function=gradient)
