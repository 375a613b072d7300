"""What the products of a step take alone: a limit for what the step can reach."""

import collections
import statistics
import time

import tensorflow.compat.v1 as tf

_WARMUP, _REPEATS = 2, 5


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
  """The median of one product, in seconds."""
  operands = [tf.Variable(tf.ones(shape, dtype), use_resource=True)
              for shape in shapes]
  product = tf.einsum(equation, *operands).op
  session.run([x.initializer for x in operands])
  seconds = []
  for _ in range(_WARMUP + _REPEATS):
    began = time.perf_counter()
    session.run(product)
    seconds.append(time.perf_counter() - began)
  return statistics.median(seconds[_WARMUP:])
