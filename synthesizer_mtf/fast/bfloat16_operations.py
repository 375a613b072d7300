"""Elementwise operations that mixed precision computes in bfloat16.

TensorFlow's rewriter chooses the precision by the type of an operation, for the whole
graph. Norms and optimizers need float32, so every `tf.add` and `tf.multiply` of two
tensors stays in float32 (see `mixed_precision.py`). Next to matrix products this costs
a cast of each large operand and one of the result, so these tensors are read and
written two or three times. The functions of this module use other types of operations,
which the rewriter computes in bfloat16 next to a matrix product. Each number is then
computed in float32 and rounded to 8 bits, as by a cast.
"""

import tensorflow.compat.v1 as tf

# The types that mixed precision adds to the rewriter's list of operations that follow
# their neighbours. Nothing else in a graph of T5 has them.
OPERATIONS = ("Add", "MulNoNan")

_MARK = "synthesizer_mtf/mixed_precision"


def mark_graph() -> None:
  """Declares that the rewriter is on for TensorFlow's default graph."""
  tf.add_to_collection(_MARK, True)


def is_marked() -> bool:
  """Whether the rewriter is on for TensorFlow's default graph."""
  return bool(tf.get_collection(_MARK))


def multiply(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x * y, but 0 where y is 0 even if x is not finite.

  In float32 the operation takes longer than a plain product, so unmarked graphs use the
  plain product.
  """
  return tf.raw_ops.MulNoNan(x=x, y=y) if is_marked() else x * y


def add(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x + y, for marked graphs."""
  return tf.raw_ops.Add(x=x, y=y)


def padding_of_channels(channels: int) -> int:
  """How many more channels make a product faster.

  Products in bfloat16 take blocks of 32 channels: oneDNN takes 1.5 times as long for 65
  channels as for 96.
  """
  return -channels % 32 if is_marked() else 0


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
  """The sum over the first dimension of [rows, columns].

  In mixed precision it is a product with ones, which reads the rows without a cast.
  """
  if not is_marked():
    return tf.reduce_sum(x, 0)
  ones = tf.ones([1, 1, x.shape.as_list()[0]], x.dtype)
  return tf.reshape(tf.raw_ops.BatchMatMulV2(x=ones, y=x[None]), [-1])


def dropped_relu(x: tf.Tensor, keep_mask: tf.Tensor | None) -> tf.Tensor:
  """max(x, 0) * keep_mask; relu's gradient at the result is also its gradient.

  Args:
    x: <float>
    keep_mask: <float>, 0 or 1, which broadcasts to the shape of x; None is 1.

  Returns:
    a tensor with the shape and dtype of x.
  """
  if not is_marked():
    return tf.nn.relu(x) if keep_mask is None else tf.nn.relu(x) * keep_mask
  # In bfloat16 TensorFlow computes relu's gradient in half the time of relu.
  return tf.raw_ops.ReluGrad(
      gradients=x if keep_mask is None else multiply(x, keep_mask), features=x)
