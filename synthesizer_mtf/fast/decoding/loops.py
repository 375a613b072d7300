"""Loops over decoding steps.

Tensors that do not change from step to step, such as casts of variables, are computed
once, before the loop. Short outputs use short caches: each loop decodes one block of
positions, and the next loop has longer caches. MatMul multiplies the few tokens of a
step with matrices; it can take half the time of Einsum.
"""

from collections.abc import Callable
from collections.abc import Sequence
import copy

import mesh_tensorflow as mtf
from synthesizer_mtf.fast import between_products
import tensorflow.compat.v1 as tf

# The first block has at most twice this length. A step reads few keys there, compared
# with the weights of the model, so that shorter caches would save little. And each more
# block is one more copy of the loop in the graph.
FIRST_BLOCK = 32
# Operations that have to run in each step.
_EACH_STEP = (mtf.RandomOperation, mtf.PrintOperation, mtf.Assign)
# Packages whose other operations, and whose functions of slices, give the same result
# in each step. Those of a user's own may draw random numbers.
_PURE = ("mesh_tensorflow", "synthesizer_mtf", "tensorflow")


def block_ends(length: int) -> list[int]:
  """The ends of the blocks of `length` positions; each is half of the next end."""
  ends = [length]
  while ends[0] > 2 * FIRST_BLOCK:
    ends.insert(0, -(-ends[0] // 2))
  return ends


def while_loop(cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
  """Runs a loop as `mtf.while_loop` does, but computes loop invariants once."""
  return WhileLoopOperation(cond_fn, body_fn, inputs).outputs


class WhileLoopOperation(mtf.WhileLoopOperation):
  """A loop whose invariants are computed before it, and whose products are fast."""

  _body_ops: list[mtf.Operation]  # Of the base class.

  def __init__(self, cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]):
    super().__init__(cond_fn, body_fn, inputs)
    changes = set(self._body_inputs)
    kept, moved = [], []
    for op in self._body_ops:
      changing = not _is_pure(op) or any(x in changes for x in op.inputs)
      (kept if changing else moved).append(op)
      if changing:
        changes.update(op.outputs)
    self._body_ops = kept
    # As Mesh's constructor does with the operations of variables.
    *_, last = operations = self.graph.operations
    operations[-1:] = [*moved, last]

  def lower(self, lowering: mtf.Lowering) -> None:
    # The rewriter of mixed precision computes Einsum in bfloat16, MatMul in float32.
    if between_products.is_marked():
      super().lower(lowering)
      return
    mesh = self._body_inputs[0].mesh
    mesh_impl = copy.copy(lowering.mesh_impl(mesh))
    if type(mesh_impl).einsum is not mtf.MeshImpl.einsum or "einsum" in vars(mesh_impl):
      super().lower(lowering)  # A user's own product stays.
      return
    mesh_impl.einsum = _einsum  # Mesh TensorFlow lets its users override this.
    own = copy.copy(lowering)
    own.mesh_to_impl = {**lowering.mesh_to_impl, mesh: mesh_impl}
    super().lower(own)


def _is_pure(operation):
  """Whether an operation surely gives the same result in each step."""
  makers = [type(operation)]
  if isinstance(operation, mtf.SlicewiseOperation):
    makers.append(operation._tf_fn)
  return not isinstance(operation, _EACH_STEP) and all(
      getattr(made, "__module__", "").partition(".")[0] in _PURE for made in makers)


def _einsum(equation, *slices):
  """`tf.einsum`, by MatMul for a product of rows with a matrix."""
  inputs, _, output = equation.partition("->")
  rows, _, matrix = inputs.partition(",")
  if len(matrix) != 2 or (rows[-1], output) != (matrix[0], rows[:-1] + matrix[1]):
    return tf.einsum(equation, *slices)
  x, weights = slices
  lead, (reduced, last) = x.shape.as_list()[:-1], weights.shape.as_list()
  return tf.reshape(
      tf.matmul(tf.reshape(x, [-1, reduced]), weights), [*lead, last])
