"""Mesh TensorFlow's Adafactor, computed in few passes over each variable.

Mesh TensorFlow's update is a chain of operations that each write a tensor as large as
the variable. Here TensorFlow can write three of them into the gradient's memory.
Squares are computed block by block, and only their sums are kept.

Slots have the same names, so checkpoints stay compatible; gin bindings also stay the
same. Mesh TensorFlow's own update stays on TPUs, for split variables, and for other
optimizers.
"""

from collections.abc import Callable
import copy
import functools

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import switch
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


@gin.configurable(module="synthesizer_mtf")
def synthesizer_optimizer(fast: bool = True) -> bool:
  """Whether Adafactor's updates are computed in few passes.

  Args:
    fast: False leaves them to Mesh TensorFlow.

  Raises:
    ValueError: fast is not a boolean.
  """
  return switch.is_on("synthesizer_optimizer.fast", fast)


class FastAdafactor(optimize.AdafactorOptimizer):
  """Adafactor with fewer passes and the parameters of another one; `fast` makes it."""

  def __init__(self, other: optimize.AdafactorOptimizer, mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules):
    self.__dict__.update(vars(other))
    self._mesh_shape, self._layout = mesh_shape, layout

  def apply_grad(self, grad: mtf.Tensor | None,
                 var: mtf.Variable) -> list[mtf.Operation]:
    """Updates as the base class does, in few passes if no mesh splits the variable."""
    if (grad is None or grad.shape != var.shape or splits.is_compiled(var.mesh) or
        any(isinstance(rate, mtf.Tensor)
            for rate in (self._learning_rate, self._decay_rate)) or
        not splits.is_unsplit(var.shape, self._mesh_shape, self._layout)):
      return super().apply_grad(grad, var)
    slots = self._slots(var)
    now = copy.copy(self)  # Schedules change the learning rate for some variables.
    *new_slots, update = splits.slicewise(
        functools.partial(now._update, var), [grad, var.value, *slots],
        [x.shape for x in [*slots, var]], [tf.float32] * (len(slots) + 1),
        grad_function=0, name="adafactor",
        remedy=", or bind `synthesizer_optimizer.fast = False`")
    return [*map(mtf.assign, slots, new_slots),
            mtf.assign(var, update, subtract_slice)]

  def _slots(self, var):
    """The slot variables that Mesh's `apply_grad` would make."""
    factored = self._factored_dims(var.shape)
    shapes = ({"vr": var.shape - factored[0], "vc": var.shape - factored[1]}
              if factored else {"v": var.shape})
    if self._beta1:
      shapes["m"] = var.shape
    return [mtf.get_variable(
        var.mesh, f"{var.name}_slot_{name}", shape,
        initializer=tf.zeros_initializer(), trainable=False)
            for name, shape in shapes.items()]

  def _update(self, var, grad, value, *slots):
    """Computes the new slots and the update of an unsplit variable.

    The source is arXiv:1804.04235, algorithms 4 and 5, as implemented by Mesh
    TensorFlow: with a learning rate, and with averaged instead of summed moments.

    Args:
      grad: <float>[dims...], its gradient.
      value: <float>[dims...], the variable as the model reads it.
      *slots: <float32> vr [dims except the largest], vc [dims except the second
        largest]; or v [dims...]; followed, with beta1, by m [dims...].

    Returns:
      a tuple of <float32>: the new slots, and the update [dims...] to subtract.
    """
    grad = tf.cast(grad, tf.float32)
    factored = self._factored_dims(var.shape)
    x, *new_slots = (
        self._by_factors(grad, *slots[:2], *map(var.shape.dims.index, factored))
        if factored else self._by_all(grad, slots[0]))
    update = x * (self._scale(var, tf.cast(value, tf.float32)) / self._clipping(x))
    if self._beta1:
      update = slots[-1] * self._beta1 + update * (1.0 - self._beta1)
      new_slots.append(update)
    return *new_slots, update

  def _by_factors(self, grad, vr, vc, largest, second):
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
    return slot * self._decay_rate + (mean + self._epsilon1) * (1.0 - self._decay_rate)

  def _scale(self, var, value):
    """The step size: <float32>[], or one for each index of `stacked_dim_names`."""
    if not self._multiply_by_parameter_scale or any(
        part in var.name for part in self._exclude_from_parameter_scale):
      return self._learning_rate
    others = [i for i, dim in enumerate(var.shape.dims)
              if dim.name not in self._stacked_dim_names]
    scale = _root_mean_square(value) if len(others) == var.shape.ndims else tf.sqrt(
        tf.reduce_mean(tf.square(value), others, keepdims=True))
    return tf.maximum(scale, self._epsilon2) * self._learning_rate

  def _clipping(self, x):
    if self._clipping_threshold is None:
      return 1.0
    return tf.maximum(1.0, _root_mean_square(x) / self._clipping_threshold)


class FastAdafactorWithMultiLRSchedule(
    optimize.AdafactorWithMultiLRSchedule, FastAdafactor):
  """`FastAdafactor` with schedules for some variables."""

  __init__ = FastAdafactor.__init__


# Exact classes only, as a subclass may compute something else.
_FAST = {optimize.AdafactorOptimizer: FastAdafactor,
         optimize.AdafactorWithMultiLRSchedule: FastAdafactorWithMultiLRSchedule}

# If it is another one, somebody has replaced the method.
_APPLY_GRAD = optimize.AdafactorOptimizer.apply_grad


def fast(make: Callable[..., optimize.Optimizer],
         mesh_shape: mtf.Shape | str = "",
         layout: mtf.LayoutRules | str = "") -> Callable[..., optimize.Optimizer]:
  """Wraps an optimizer's constructor to return the fast optimizer, if there is one.

  Args:
    make: a class, or gin's wrapper of one, such as the value of `utils.run.optimizer`.
    mesh_shape: the mesh; with the layout, it determines which variables are split.
    layout: the layout rules.

  Returns:
    a function that returns the fast optimizer if its switch is on and `make` returns
    Adafactor; otherwise the result of `make`.
  """
  is_on = synthesizer_optimizer()

  def made(*args, **kwargs):
    optimizer = make(*args, **kwargs)
    if not is_on or type(optimizer) not in _FAST or (
        optimize.AdafactorOptimizer.apply_grad is not _APPLY_GRAD):
      return optimizer
    return _FAST[type(optimizer)](
        optimizer, mtf.convert_to_shape(mesh_shape),
        mtf.convert_to_layout_rules(layout))

  return made


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
    slice_var: <slice_dtype>[dims...], a slice of it.
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
