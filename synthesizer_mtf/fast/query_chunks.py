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
    rows: a list of tensors; those with `length` are cut.
    length: the dimension of the queries.
    size: the number of queries in a chunk.

  Returns:
    the results of `make`, concatenated if there are several chunks.
  """
  if length.size <= size:
    return make(length, rows)
  sizes = [min(size, length.size - start)
           for start in range(0, length.size, size)]
  chunks, results = _Chunks(), []
  for chunk in zip(*[mtf.split(row, length, sizes) if length in row.shape.dims
                     else [row] * len(sizes) for row in rows]):
    entered = [chunks.enter(row) for row in chunk]
    part = mtf.Dimension(length.name, sizes[len(results)])
    results.append(chunks.leave(make(part, entered)))
  return mtf.concat(results, length.name)


def wait(x: mtf.Tensor, after: mtf.Tensor | None,
         gradient: Callable[[mtf.Tensor], mtf.Tensor] = lambda grad: grad
         ) -> mtf.Tensor:
  """Returns a tensor x, but only after another one has been computed.

  Args:
    after: a tensor to wait for, or None.
    gradient: a function from the gradient of the result to the gradient of x.
  """
  def identity(x, *after):
    with tf.control_dependencies(after):
      return tf.identity(x)

  tensors = [x] if after is None else [x, after]
  return mtf.slicewise(
      identity, tensors, splittable_dims=[d for t in tensors for d in t.shape.dims],
      grad_function=lambda operation, grad: [
          gradient(grad), *(None for _ in tensors[1:])], name="chunk")


class _Chunks:
  """Holds the tensors that the next chunk waits for, forward and backward."""

  def __init__(self):
    self._result = None
    self._gradient = None

  def enter(self, row):
    def remember(grad):
      self._gradient = grad
      return grad

    return wait(row, self._result, remember)

  def leave(self, result):
    self._result = wait(result, None, lambda grad: wait(grad, self._gradient))
    return self._result
