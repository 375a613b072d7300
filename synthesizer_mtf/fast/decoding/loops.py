"""Loops over decoding steps.

What `once` makes is computed before the loop, such as the transposed table of the
vocabulary. Short outputs use short caches: each loop decodes one block of
positions, and the next loop has longer caches. MatMul multiplies the few tokens of a
step with matrices; it can take half the time of Einsum.
"""

from collections.abc import Callable
from collections.abc import Sequence
import copy
import math
import os
from typing import Any

import mesh_tensorflow as mtf
from synthesizer_mtf.fast import mixed_precision
import tensorflow.compat.v1 as tf

# The first block has at most twice this length. A step reads few keys there, compared
# with the weights of the model, so that shorter caches would save little. And each more
# block is one more copy of the loop in the graph.
FIRST_BLOCK = 32
# Up to this number, products of several rows with each of several matrices are made as
# those of one row. oneDNN takes .08 ms to begin such a product. TensorFlow's kernel of
# BatchMatMulV3, which oneDNN does not replace, begins at once, but its products of
# several rows are slower.
_FEW_MULTIPLICATIONS = 2 ** 19
# The loops whose bodies are being made, the innermost last.
_bodies: list["_Body"] = []


def block_ends(length: int) -> list[int]:
  """The ends of the blocks of `length` positions; each is half of the next end."""
  ends = [length]
  while ends[0] > 2 * FIRST_BLOCK:
    ends.insert(0, -(-ends[0] // 2))
  return ends


def while_loop(cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
  """Runs a loop as `mtf.while_loop` does, but what `once` makes runs before it."""
  return WhileLoopOperation(cond_fn, body_fn, inputs).outputs


def once(make: Callable[[], Any]) -> Any:
  """Calls `make`; in the body of a loop, its operations run once, before the loop.

  Args:
    make: a function without arguments, which makes the same in each step. If it reads
      what the loop computes, its operations stay in the loop.
  """
  return _bodies[-1].once(make) if _bodies else make()


class _Body:
  """The body of a loop while it is made.

  Attributes:
    before: the operations that run before the loop.
  """

  def __init__(self, graph: mtf.Graph, variables: Sequence[mtf.Tensor]):
    self._operations = graph.operations
    self._start = len(self._operations)
    self._variables = set(variables)
    self.before: list[mtf.Operation] = []

  def once(self, make):
    start = len(self._operations)
    result = make()
    made = self._operations[start:]
    changing = self._variables.union(*[
        op.outputs for op in self._operations[self._start:start]
        if not isinstance(op, mtf.Variable)])  # They stand before the loop.
    if changing.isdisjoint(x for op in made for x in op.inputs):
      del self._operations[start:]
      self.before += made
    return result


class WhileLoopOperation(mtf.WhileLoopOperation):
  """A loop that runs what `once` makes before it, and whose products are fast."""

  def __init__(self, cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]):
    graph, before = inputs[0].mesh.graph, []

    def body(*variables):
      _bodies.append(_Body(graph, variables))
      try:
        return body_fn(*variables)
      finally:
        before.extend(_bodies.pop().before)

    super().__init__(cond_fn, body, inputs)
    # As Mesh's constructor does with the operations of variables.
    *_, last = operations = graph.operations
    operations[-1:] = [*before, last]

  def lower(self, lowering: mtf.Lowering) -> None:
    mesh = self.inputs[0].mesh
    mesh_impl = copy.copy(lowering.mesh_impl(mesh))
    if type(mesh_impl).einsum is not mtf.MeshImpl.einsum or "einsum" in vars(mesh_impl):
      super().lower(lowering)  # A user's own product stays.
      return
    # Mesh TensorFlow lets its users override this.
    mesh_impl.einsum = (_RoundedProducts(lowering).einsum
                        if mixed_precision.is_marked() else _einsum)
    own = copy.copy(lowering)
    own.mesh_to_impl = {**lowering.mesh_to_impl, mesh: mesh_impl}
    super().lower(own)


class _RoundedProducts:
  """The products of a loop in mixed precision.

  TensorFlow's rewriter would round weights in each step, which takes longer than the
  product of a few tokens. Here, what was made before the loop is rounded before it.
  """

  def __init__(self, lowering):
    self._outside = {
        part.ref() for tensor in lowering.tensors.values()
        if not isinstance(tensor, mtf.LazyAllreduceSum)
        for part in tensor.tensor_list if part.dtype == tf.float32}
    self._rounded, self._exact = {}, {}

  def einsum(self, equation, *slices):
    """A product with sums in float32; one of what the loop made is the rewriter's."""
    is_constant = any(x.ref() in self._outside for x in slices)
    # Small ones are faster in float32. Large ones take as long as it takes to read the
    # keys or the values of all texts, which bfloat16 halves.
    product = (None if is_constant and not _is_small(equation, *slices) else
               _few_rows(equation, *map(self._in_float32, slices)))
    if product is not None:
      return product
    if math.prod(slices[0].shape.as_list()[:-1]) == 1:
      return _einsum(equation, *slices)
    if not is_constant:
      return tf.einsum(equation, *slices)
    rounded = [self._round(x) for x in slices]
    product = _with_matrix(equation, *rounded)
    return tf.cast(tf.einsum(equation, *rounded) if product is None else product,
                   tf.float32)

  def _round(self, x):
    return (self._before(self._rounded, x, lambda: tf.cast(x, tf.bfloat16))
            if x.ref() in self._outside else tf.cast(x, tf.bfloat16))

  def _in_float32(self, x):
    # The rewriter would keep what a product made, as the keys of cross-attention, in
    # bfloat16, and cast it in each step. It leaves this type of operation alone.
    return (self._before(self._exact, x, lambda: tf.raw_ops.DeepCopy(x=x))
            if x.ref() in self._outside else x)

  def _before(self, made, x, make):
    if x.ref() not in made:
      with tf.init_scope():  # Outside of the loop.
        made[x.ref()] = make()
    return made[x.ref()]


def _einsum(equation, *slices):
  """`tf.einsum`, faster for products with one matrix, and for few rows with each."""
  for faster in _with_matrix, _few_rows:
    product = faster(equation, *slices)
    if product is not None:
      return product
  return tf.einsum(equation, *slices)


def _with_matrix(equation, x, weights):
  """The product of rows with one matrix; None for all others."""
  inputs, _, output = equation.partition("->")
  rows, _, matrix = inputs.partition(",")
  if len(matrix) != 2 or (rows[-1], output) != (matrix[0], rows[:-1] + matrix[1]):
    return None
  lead, (reduced, last) = x.shape.as_list()[:-1], weights.shape.as_list()
  return tf.reshape(tf.matmul(tf.reshape(x, [-1, reduced]), weights), [*lead, last])


def _is_small(equation, *slices):
  """Whether a product has at most `_FEW_MULTIPLICATIONS`."""
  names = equation.partition("->")[0].replace(",", "")
  sizes = dict(zip(names, sum((x.shape.as_list() for x in slices), [])))
  return math.prod(sizes.values()) <= _FEW_MULTIPLICATIONS


def _few_rows(equation, *slices):
  """The products of few rows with each of several matrices; None for all others."""
  inputs, _, output = equation.partition("->")
  rows, _, matrix = inputs.partition(",")
  sizes = dict(zip(rows + matrix, sum((x.shape.as_list() for x in slices), [])))
  lead = os.path.commonprefix([rows, matrix, output])
  reduced = "".join(d for d in rows if d not in output)
  row = rows[len(lead):len(rows) - len(reduced)]
  columns = output[len(lead + row):]
  is_known = (rows, output) == (lead + row + reduced, lead + row + columns) and (
      matrix in (lead + reduced + columns, lead + columns + reduced))
  if not lead or not is_known or not (
      _is_small(equation, *slices) or math.prod(sizes[d] for d in row) == 1):
    return None

  def joined(x, *parts):  # One dimension for each part.
    return tf.reshape(x, [math.prod(sizes[d] for d in part) for part in parts])

  x, matrices = slices
  is_transposed = matrix == lead + columns + reduced
  product = tf.raw_ops.BatchMatMulV3(
      x=joined(x, lead, row, reduced), adj_y=is_transposed, Tout=x.dtype,
      y=joined(matrices, lead, *((columns, reduced) if is_transposed
                                 else (reduced, columns))))
  return tf.reshape(product, [sizes[d] for d in output])
