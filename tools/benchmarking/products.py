"""What the products of a step take alone: a limit for what the step can reach."""

import collections
import statistics
import time

import tensorflow.compat.v1 as tf

_WARMUP, _REPEATS, _IN_A_CALL = 1, 5, 10


def bare_seconds(graph: tf.Graph, dtype: tf.DType) -> float:
  """How long all products of a graph take, each by itself with both operands there.

  Args:
    graph: of which every `Einsum` runs once.
    dtype: of operands and results.

  Returns:
    the sum of the medians, in seconds.
  """
  found = collections.Counter(
      (op.get_attr("equation").decode(), *(tuple(x.shape.as_list()) for x in op.inputs))
      for op in graph.get_operations() if op.type == "Einsum")
  with tf.Graph().as_default(), tf.Session() as session:
    return sum(count * _median(session, dtype, *product)
               for product, count in found.items())


def _median(session, dtype, equation, *shapes):
  """The median of one product, in seconds.

  Each call runs it often, one after the other, because a call takes as long as a small
  product does.
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
