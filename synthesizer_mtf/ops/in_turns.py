"""Some queries at a time, so that few large tensors are held at once."""

from collections.abc import Callable

import mesh_tensorflow as mtf
import tensorflow.compat.v1 as tf


def in_turns(
    make: Callable[[mtf.Dimension, list[mtf.Tensor]], mtf.Tensor],
    rows: list[mtf.Tensor], length: mtf.Dimension, size: int) -> mtf.Tensor:
  """Calls `make` for `size` queries at a time, one turn after the other.

  TensorFlow runs whatever is ready, which would be all turns at once. So each
  turn waits for the one before it, and its gradient for the one after it.

  Args:
    make: a function (length, rows) -> a tensor with `length`.
    rows: a list of tensors with `length`.
    length: the dimension of the queries.
    size: an integer, the queries of a turn.

  Returns:
    what `make` returns for all of `rows`; several turns are concatenated.
  """
  if length.size <= size:
    return make(length, rows)
  sizes = [min(size, length.size - start)
           for start in range(0, length.size, size)]
  turns, results = _Turns(), []
  for turn in zip(*[mtf.split(row, length, sizes) for row in rows]):
    entered = [turns.enter(row) for row in turn]
    part = mtf.Dimension(length.name, sizes[len(results)])
    results.append(turns.leave(make(part, entered)))
  return mtf.concat(results, length.name)


class _Turns:
  """Remembers what the next turn has to wait for, forward and backward."""

  def __init__(self):
    self._result = None
    self._gradient = None

  def enter(self, row):
    def remember(grad):
      self._gradient = grad
      return grad

    return TurnOperation(row, self._result, remember).outputs[0]

  def leave(self, result):
    def wait(grad):
      return TurnOperation(grad, self._gradient, lambda g: g).outputs[0]

    self._result = TurnOperation(result, None, wait).outputs[0]
    return self._result


class TurnOperation(mtf.Operation):
  """Passes a tensor on, once another one has been computed."""

  def __init__(self, x: mtf.Tensor, after: mtf.Tensor | None,
               gradient: Callable[[mtf.Tensor], mtf.Tensor]):
    """Declares the inputs.

    Args:
      x: a tensor.
      after: a tensor to wait for, or None.
      gradient: a function from the gradient of the output to that of x.
    """
    super().__init__([x] if after is None else [x, after], name="turn")
    self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]
    self._gradient = gradient

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    return [self._gradient(grad_ys[0])] + [None] * (len(self.inputs) - 1)

  def lower(self, lowering: mtf.Lowering) -> None:
    def wait(x, *after):
      with tf.control_dependencies(after):
        return tf.identity(x)

    lowering.set_tensor_lowering(
        self.outputs[0],
        lowering.mesh_impl(self).slicewise(
            wait, *[lowering.tensors[t] for t in self.inputs]))
