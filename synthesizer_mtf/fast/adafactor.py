"""Adafactor's update of one variable in few passes over it.

Mesh TensorFlow's update is a chain of operations that each write a tensor as large as
the variable. Here TensorFlow can write three of them into the gradient's memory.
Squares are computed block by block, and only their sums are kept.
"""

from collections.abc import Sequence
import dataclasses

import mesh_tensorflow as mtf
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf

# Numbers in a block of squares: 1 MB, which fits into a core's L2 cache. No size from
# 2^17 to 2^22 was measurably faster on a busy machine.
_BLOCK = 2 ** 18
# Operations that write a variable or query its state, as at the start of a session.
_WRITES = "Assign", "AssignAdd", "AssignSub", "IsVariableInitialized"
# Operations whose results may share the memory of their inputs.
_VIEWS = ("ExpandDims", "Identity", "Reshape", "Slice", "Split", "SplitV", "Squeeze",
          "StridedSlice", "Transpose")
# Blocks in flight at once. Without a limit TensorFlow makes all squares first.
_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Rule:
  """How to update a variable, with the names of Mesh's `AdafactorOptimizer`.

  Attributes:
    factored: the axes of the largest and the second largest dimension if second
      moments are factored into rows and columns; else None.
    stacked_axes: the axes of `stacked_dim_names`; each index has its own scale.
    parameter_scale: whether the update is relative to the variable's scale.
    learning_rate: <float>[] or a number.
    decay_rate: <float>[] or a number.
    beta1: a number; 0 for no momentum.
    clipping_threshold: a number or None.
    epsilon1: a number.
    epsilon2: a number.
  """
  factored: tuple[int, int] | None
  stacked_axes: tuple[int, ...]
  parameter_scale: bool
  learning_rate: tf.Tensor | float
  decay_rate: tf.Tensor | float
  beta1: float
  clipping_threshold: float | None
  epsilon1: float
  epsilon2: float

  def update(self, grad: tf.Tensor, value: tf.Tensor,
             *slots: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Computes the new slots and the update.

    The source is arXiv:1804.04235, algorithms 4 and 5, as implemented by Mesh
    TensorFlow: with a learning rate, and with averaged instead of summed moments.

    Args:
      grad: <float>[dims...], the gradient of an unsplit slice.
      value: <float>[dims...], the variable as the model reads it.
      *slots: <float32> vr [dims except the largest], vc [dims except the second
        largest]; or v [dims...]; followed, with beta1, by m [dims...].

    Returns:
      a tuple of <float32>: the new slots, and the update [dims...] to subtract.
    """
    grad = tf.cast(grad, tf.float32)
    normalize = self._by_factors if self.factored else self._by_all
    x, *new_slots = normalize(grad, *slots[:2 if self.factored else 1])
    subtrahend = x * (self._scale(tf.cast(value, tf.float32)) / self._clipping(x))
    if self.beta1:
      subtrahend = slots[-1] * self.beta1 + subtrahend * (1.0 - self.beta1)
      new_slots.append(subtrahend)
    return *new_slots, subtrahend

  def _by_factors(self, grad, vr, vc):
    assert self.factored is not None
    largest, second = self.factored
    new_vr, new_vc = [
        self._decayed(slot, mean) for slot, mean in zip(
            (vr, vc), _mean_squares(grad, largest, second))]
    rows, columns = tf.expand_dims(new_vr, largest), tf.expand_dims(new_vc, second)
    rows /= tf.reduce_mean(rows, second, keepdims=True)
    return grad * tf.rsqrt(rows) * tf.rsqrt(columns), new_vr, new_vc

  def _by_all(self, grad, v):
    new_v = self._decayed(v, tf.square(grad))
    return grad * tf.rsqrt(new_v), new_v

  def _decayed(self, slot, mean):
    return slot * self.decay_rate + (mean + self.epsilon1) * (1.0 - self.decay_rate)

  def _scale(self, value):
    """The step size: <float32>[], or [dims...] of size 1 except in `stacked_axes`."""
    if not self.parameter_scale:
      return self.learning_rate
    others = [i for i in range(value.shape.ndims) if i not in self.stacked_axes]
    scale = _root_mean_square(value) if not self.stacked_axes else tf.sqrt(
        tf.reduce_mean(tf.square(value), others, keepdims=True))
    return tf.maximum(scale, self.epsilon2) * self.learning_rate

  def _clipping(self, x):
    if self.clipping_threshold is None:
      return 1.0
    return tf.maximum(1.0, _root_mean_square(x) / self.clipping_threshold)


def _root_mean_square(x):
  """Reads x once and writes no tensor of its size."""
  return tf.sqrt(tf.nn.l2_loss(x) * (2.0 / x.shape.num_elements()))


def _mean_squares(grad, largest, second):
  """The mean squares over each of two axes: <float32>[dims except that axis]."""
  last = grad.shape.ndims - 1
  # GPUs may round matrix products, and blocks save nothing there.
  if {largest, second} != {last - 1, last} or tf.config.list_physical_devices("GPU"):
    squares = tf.square(grad)
    return [tf.reduce_mean(squares, axis) for axis in (largest, second)]
  means = _mean_squares_of_blocks(grad)
  return means if largest < second else means[::-1]


def _mean_squares_of_blocks(grad):
  """The mean squares over each of the last two axes, by blocks of rows.

  Args:
    grad: <float32>[lead..., rows, columns]

  Returns:
    <float32>[lead..., columns] and [lead..., rows].
  """
  *lead, rows, columns = grad.shape.as_list()
  count = min(rows, -(-rows * columns // _BLOCK))
  sizes = [rows // count + (i < rows % count) for i in range(count)]
  blocks = tf.split(tf.reshape(grad, [-1, columns]), sizes * mtf.list_product(lead))
  sums = []
  for i, block in enumerate(blocks):
    with tf.control_dependencies(sums[i - _AT_ONCE] if i >= _AT_ONCE else []):
      squares = tf.square(block)
    sums.append([tf.matmul(tf.ones([1, block.shape[0]]), squares),
                 tf.matmul(squares, tf.ones([columns, 1]))])
  by_column, by_row = [tf.concat(parts, 0) for parts in zip(*sums)]
  by_column = tf.reduce_sum(tf.reshape(by_column, lead + [count, columns]), -2)
  return by_column / rows, tf.reshape(by_row, lead + [rows]) / columns


def subtract_slice(variable: mtf.Variable, slice_var: tf.Variable,
                   value: tf.Tensor) -> tf.Tensor:
  """Subtracts as `mtf.assign_sub_slice` does, but in place and after all reads.

  Mesh's update waits only for its gradient. TensorFlow may run it before it computes
  the gradients of the layer's inputs, which would then use the new value.

  Args:
    variable: a `mtf.Variable`.
    slice_var: <slice_dtype>[dims...], a slice of the variable.
    value: <float32>[dims...]

  Returns:
    the slice, once it is updated.
  """
  with tf.control_dependencies(_readers(slice_var)):
    if variable.slice_dtype != tf.float32:  # In place only on some devices.
      return mtf.assign_sub_slice(variable, slice_var, value)
    return tf.assign_sub(slice_var, value)


def _readers(slice_var):
  """The operations outside of loops that read a slice in a step.

  Updates of resource variables need not wait, as TensorFlow copies the value for its
  readers. Loops over microbatches return their gradients when they end.
  """
  if slice_var.op.type != "VariableV2":
    return []
  tensors = list(slice_var.op.outputs)
  for tensor in tensors:  # The loop appends tensors that share the memory.
    tensors.extend(out for op in tensor.consumers() if op.type in _VIEWS
                   for out in op.outputs)
  here = tf.get_default_graph()._get_control_flow_context()
  return [op for tensor in tensors for op in tensor.consumers()
          if op._get_control_flow_context() is here and not _is_for_a_master(op)]


def _is_for_a_master(op):
  """Whether an operation writes a variable, or only feeds operations that do."""
  users = [user for out in op.outputs for user in out.consumers()]
  return op.type in _WRITES or bool(users) and all(
      user.type in _WRITES for user in users)


class AdafactorOperation(mtf.Operation):
  """Mesh's Adafactor for a variable that no mesh splits: slots and update."""

  def __init__(self, rule: Rule, inputs: Sequence[mtf.Tensor]):
    """Declares the inputs.

    Args:
      rule: a `Rule`.
      inputs: <float>[dims...], the gradient and the variable, and the slots.
    """
    super().__init__(list(inputs), name="adafactor")
    self._rule = rule
    # The new slots and the update to subtract.
    shapes = [x.shape for x in [*inputs[2:], inputs[1]]]
    self._outputs = [mtf.Tensor(self, shape, tf.float32, index=i)
                     for i, shape in enumerate(shapes)]

  def lower(self, lowering: mtf.Lowering) -> None:
    splits.require_whole(
        lowering, self, self.inputs[0].shape.dims,
        ", or bind `synthesizer_optimizer.fast = False`")
    results = lowering.mesh_impl(self).slicewise(
        self._rule.update, *[lowering.tensors[x] for x in self.inputs])
    for output, result in zip(self.outputs, results):
      lowering.set_tensor_lowering(output, result)
