"""Query chunking: few queries at a time, so that few large tensors exist at once."""

from collections.abc import Callable

import mesh_tensorflow as mtf
import tensorflow.compat.v1 as tf


def by_query_chunks(
    make: Callable[[mtf.Dimension, list[mtf.Tensor]], mtf.Tensor],
    rows: list[mtf.Tensor], length: mtf.Dimension, size: int) -> mtf.Tensor:
  """Calls `make` for `size` queries at a time, one chunk after the other.

  TensorFlow would run all chunks at once, as all are ready. Therefore each chunk waits
  for the previous chunk, and its gradient waits for the gradient of the next chunk.

  Args:
    make: a function (length, rows) that returns a tensor with `length`.
    rows: a list of tensors with `length`.
    length: the dimension of the queries.
    size: an integer, the queries of a chunk.

  Returns:
    the results of `make`, concatenated if there are several chunks.
  """
  if length.size <= size:
    return make(length, rows)
  sizes = [min(size, length.size - start)
           for start in range(0, length.size, size)]
  chunks, results = _Chunks(), []
  for chunk in zip(*[mtf.split(row, length, sizes) for row in rows]):
    entered = [chunks.enter(row) for row in chunk]
    part = mtf.Dimension(length.name, sizes[len(results)])
    results.append(chunks.leave(make(part, entered)))
  return mtf.concat(results, length.name)


def wait(x: mtf.Tensor, after: mtf.Tensor | None) -> mtf.Tensor:
  """Returns x, which waits until `after`, if it is given, has been computed."""
  return ChunkOperation(x, after, lambda grad: grad).outputs[0]


class _Chunks:
  """Holds the tensors that the next chunk waits for, forward and backward."""

  def __init__(self):
    self._result = None
    self._gradient = None

  def enter(self, row):
    def remember(grad):
      self._gradient = grad
      return grad

    return ChunkOperation(row, self._result, remember).outputs[0]

  def leave(self, result):
    self._result = ChunkOperation(
        result, None, lambda grad: wait(grad, self._gradient)).outputs[0]
    return self._result


class ChunkOperation(mtf.Operation):
  """Returns a tensor once another tensor has been computed."""

  def __init__(self, x: mtf.Tensor, after: mtf.Tensor | None,
               gradient: Callable[[mtf.Tensor], mtf.Tensor]):
    """Declares the inputs.

    Args:
      x: a tensor.
      after: a tensor to wait for, or None.
      gradient: a function from the gradient of the output to that of x.
    """
    super().__init__([x] if after is None else [x, after], name="chunk")
    self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]
    self._gradient = gradient

  def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
    return [self._gradient(grad_ys[0])] + [None] * (len(self.inputs) - 1)

  def lower(self, lowering: mtf.Lowering) -> None:
    def identity(x, *after):
      with tf.control_dependencies(after):
        return tf.identity(x)

    lowering.set_tensor_lowering(
        self.outputs[0],
        lowering.mesh_impl(self).slicewise(
            identity, *[lowering.tensors[t] for t in self.inputs]))
