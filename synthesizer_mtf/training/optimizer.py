"""Mesh TensorFlow's Adafactor, computed in few passes over each variable.

Where an attention is chosen by gin, `FastAdafactor` takes the place of Mesh's
`AdafactorOptimizer`. It updates the variables that no mesh splits by
`ops/adafactor.py`: with the same slots under the same names, so that checkpoints go
on, and the same bindings. Mesh TensorFlow's own update stays on
TPUs, for variables that are split, and for other optimizers.
"""

from collections.abc import Callable

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from synthesizer_mtf import stack
from synthesizer_mtf.context import splits
from synthesizer_mtf.ops import adafactor
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
def synthesizer_optimizer(fast: bool = True) -> bool:
  """Whether Adafactor's updates are computed in few passes.

  Args:
    fast: False leaves them to Mesh TensorFlow.

  Returns:
    fast, where an attention is chosen by `synthesizer_stack.attention`; else
    False.

  Raises:
    ValueError: fast is no boolean.
  """
  return stack.is_faster("synthesizer_optimizer.fast", fast)


class FastAdafactor(optimize.AdafactorOptimizer):
  """Adafactor with other operations; `fast` makes it."""

  def __init__(self, other: optimize.AdafactorOptimizer, mesh_shape: mtf.Shape,
               layout: mtf.LayoutRules):
    """Takes the parameters of another.

    Args:
      other: what Mesh TensorFlow or gin has made.
      mesh_shape: tells, with the layout, which variables are split.
      layout: the layout rules.
    """
    vars(self).update(vars(other))
    self._mesh_shape, self._layout = mesh_shape, layout

  def apply_grad(self, grad: mtf.Tensor | None,
                 var: mtf.Variable) -> list[mtf.Operation]:
    """As the base class; where no mesh splits the variable, in few passes."""
    if (grad is None or grad.shape != var.shape or splits.is_on_tpu(var.mesh) or
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
    """The variables that Mesh's `apply_grad` would make."""
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
    """What Mesh's `apply_grad` would do with a variable."""
    dims = var.shape.dims
    factored = self._factored_dims(var.shape)
    return adafactor.Rule(
        factored=factored and tuple(map(dims.index, factored)),
        kept=tuple(i for i, dim in enumerate(dims)
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
  """The same with schedules for some variables."""

  __init__ = FastAdafactor.__init__


# A class that somebody derives from them may compute something else.
_FAST = {optimize.AdafactorOptimizer: FastAdafactor,
         optimize.AdafactorWithMultiLRSchedule: FastAdafactorWithMultiLRSchedule}


def fast(make: Callable[..., optimize.Optimizer],
         mesh_shape: mtf.Shape | str = "",
         layout: mtf.LayoutRules | str = "") -> Callable[..., optimize.Optimizer]:
  """Makes what makes an optimizer make the fast one, where there is one.

  Args:
    make: a class, or what gin makes of one, such as that of `utils.run.optimizer`.
    mesh_shape: tells, with the layout, which variables are split.
    layout: the layout rules.

  Returns:
    a function that returns the fast optimizer where an attention is chosen and
    `make` returns Adafactor; otherwise what `make` returns.
  """
  def made(*args, **kwargs):
    optimizer = make(*args, **kwargs)
    if type(optimizer) not in _FAST or not synthesizer_optimizer():
      return optimizer
    return _FAST[type(optimizer)](
        optimizer, mtf.convert_to_shape(mesh_shape),
        mtf.convert_to_layout_rules(layout))

  return made
