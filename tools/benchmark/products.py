"""Times the products of a step alone, as a limit for the speed of the step."""

import collections
import statistics
import time

import tensorflow.compat.v1 as tf

_WARMUP, _REPEATS, _IN_A_CALL = 1, 5, 10


def bare_seconds(graph: tf.Graph, dtype: tf.DType) -> float:
  """Returns how long all products of a graph take, each alone on existing operands.

  Args:
    graph: a graph; each of its `Einsum` operations is timed.
    dtype: the dtype of operands and results.

  Returns:
    the sum of the medians, in seconds.
  """
  counts = collections.Counter(
      (op.get_attr("equation").decode(), *(tuple(x.shape.as_list()) for x in op.inputs))
      for op in graph.get_operations() if op.type == "Einsum")
  with tf.Graph().as_default(), tf.Session() as session:
    return sum(count * _median(session, dtype, *product)
               for product, count in counts.items())


def _median(session, dtype, equation, *shapes):
  """Returns the median time of one product, in seconds.

  Each call runs the product many times in a row, because the call itself takes as long
  as a small product.
  """
  operands = [tf.Variable(tf.ones(shape, dtype), use_resource=True)
              for shape in shapes]
  products = []
  for _ in range(_IN_A_CALL):
    with tf.control_dependencies(products[-1:]):
      products.append(tf.einsum(equation, *operands).op)
  session.run([x.initializer for x in operands])
  seconds = []
  for _ in range(_WARMUP + _REPEATS):
    began = time.perf_counter()
    session.run(products)
    seconds.append((time.perf_counter() - began) / _IN_A_CALL)
  return statistics.median(seconds[_WARMUP:])
