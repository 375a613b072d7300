"""Mesh TensorFlow's Adafactor, computed in few passes over each variable.

Where an attention is chosen by gin, `AdafactorOptimizer` updates the variables that
no mesh splits by `ops/adafactor.py`: with the same slots under the same names, so
that checkpoints go on, and the same bindings. Mesh TensorFlow's own update stays on
TPUs, for variables that are split, and for other optimizers.
"""

from collections.abc import Callable
import functools

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from synthesizer_mtf import patches
from synthesizer_mtf import stack
from synthesizer_mtf.context import splits
from synthesizer_mtf.ops import adafactor

# A class that somebody derives from them may compute something else.
_CLASSES = (optimize.AdafactorOptimizer, optimize.AdafactorWithMultiLRSchedule)
_Update = Callable[[optimize.Optimizer, mtf.Tensor | None, mtf.Variable],
                   list[mtf.Operation]]


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


def apply() -> None:
  """Lets Mesh's Adafactor compute so wherever the choice says so."""
  patches.wrap("apply_grad", optimize.AdafactorOptimizer, _in_few_passes)


def _in_few_passes(original: _Update) -> _Update:
  @functools.wraps(original)
  def wrapped(self, grad, var):
    if (grad is None or grad.shape != var.shape or not _is_known(self) or
        splits.is_on_tpu(var.mesh) or not synthesizer_optimizer()):
      return original(self, grad, var)
    assignments, own = var.graph.capture_operations(
        lambda: original(self, grad, var))
    _take_out(var.graph, own)
    slots = [a.variables[0] for a in assignments[:-1]]
    values = adafactor.AdafactorOperation(
        _rule(self, var), [grad, var.value, *[slot.value for slot in slots]],
        [op for op in own if not isinstance(op, (mtf.Variable, mtf.Assign))],
        [a.inputs[0] for a in assignments]).outputs
    return [*map(mtf.assign, slots, values[:-1]),
            mtf.assign(var, values[-1], adafactor.subtract_slice)]

  return wrapped


def _is_known(optimizer):
  rates = optimizer._learning_rate, optimizer._decay_rate
  return type(optimizer) in _CLASSES and not any(
      isinstance(rate, mtf.Tensor) for rate in rates)


def _take_out(graph, operations):
  """Takes the last operations out of a graph, but for the variables they made."""
  del graph.operations[len(graph.operations) - len(operations):]
  graph.operations.extend(op for op in operations if isinstance(op, mtf.Variable))


def _rule(optimizer, var):
  """What Mesh's `apply_grad` would do with a variable."""
  dims = var.shape.dims
  factored = optimizer._factored_dims(var.shape)
  return adafactor.Rule(
      factored=factored and tuple(map(dims.index, factored)),
      kept=tuple(i for i, dim in enumerate(dims)
                 if dim.name in optimizer._stacked_dim_names),
      parameter_scale=optimizer._multiply_by_parameter_scale and not any(
          part in var.name for part in optimizer._exclude_from_parameter_scale),
      learning_rate=optimizer._learning_rate,
      decay_rate=optimizer._decay_rate,
      beta1=optimizer._beta1,
      clipping_threshold=optimizer._clipping_threshold,
      epsilon1=optimizer._epsilon1,
      epsilon2=optimizer._epsilon2)
