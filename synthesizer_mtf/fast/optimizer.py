"""Mesh TensorFlow's Adafactor, computed in few passes over each variable.

`FastAdafactor` replaces Mesh's `AdafactorOptimizer`. It updates variables that no mesh
splits with `fast/adafactor.py`. Slots have the same
names, so checkpoints stay compatible. gin bindings also stay the same. Mesh
TensorFlow's own update stays on TPUs, for split variables, and for other optimizers.
"""

from collections.abc import Callable

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.fast import adafactor
from synthesizer_mtf.fast import switch
import tensorflow.compat.v1 as tf


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
  """Adafactor with fewer passes; `fast` makes it."""

  def __init__(self, other: optimize.AdafactorOptimizer, mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules):
    """Takes over the parameters of another optimizer.

    Args:
      other: an optimizer made by Mesh TensorFlow or gin.
      mesh_shape: the mesh; with the layout, it determines which variables are split.
      layout: the layout rules.
    """
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
    values = adafactor.AdafactorOperation(
        self._rule(var), [grad, var.value, *slots]).outputs
    return [*map(mtf.assign, slots, values[:-1]),
            mtf.assign(var, values[-1], adafactor.subtract_slice)]

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

  def _rule(self, var):
    """The `Rule` by which Mesh's `apply_grad` would update a variable."""
    dims = var.shape.dims
    factored = self._factored_dims(var.shape)
    return adafactor.Rule(
        factored=factored and tuple(map(dims.index, factored)),
        stacked_axes=tuple(i for i, dim in enumerate(dims)
                   if dim.name in self._stacked_dim_names),
        parameter_scale=self._multiply_by_parameter_scale and not any(
            part in var.name for part in self._exclude_from_parameter_scale),
        learning_rate=self._learning_rate,
        decay_rate=self._decay_rate,
        beta1=self._beta1,
        clipping_threshold=self._clipping_threshold,
        epsilon1=self._epsilon1,
        epsilon2=self._epsilon2)


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
