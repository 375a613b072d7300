"""Loops over decoding steps.

Tensors that do not change from step to step, such as casts of variables, are computed
once, before the loop. Short outputs use short caches: each loop decodes one block of
positions, and the next loop has longer caches.
"""

from collections.abc import Callable
from collections.abc import Sequence

import mesh_tensorflow as mtf

# The length of the first block.
FIRST_BLOCK = 32


def block_ends(length: int) -> list[int]:
  """The ends of the blocks of `length` positions; each is half of the next."""
  ends = [length]
  while ends[0] > 2 * FIRST_BLOCK:
    ends.insert(0, -(-ends[0] // 2))
  return ends


def while_loop(cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
  """As `mtf.while_loop`, but computes loop invariants once."""
  return WhileLoopOperation(cond_fn, body_fn, inputs).outputs


class WhileLoopOperation(mtf.WhileLoopOperation):
  """A loop whose invariants are computed before it."""

  def __init__(self, cond_fn: Callable[..., mtf.Tensor],
               body_fn: Callable[..., Sequence[mtf.Tensor]],
               inputs: Sequence[mtf.Tensor]):
    super().__init__(cond_fn, body_fn, inputs)
    changes = set(self._body_inputs)
    kept, moved = [], []
    for op in self._body_ops:
      changing = isinstance(op, mtf.RandomOperation) or any(
          x in changes for x in op.inputs)
      (kept if changing else moved).append(op)
      if changing:
        changes.update(op.outputs)
    self._body_ops = kept
    *_, last = operations = self.graph.operations
    operations[-1:] = [*moved, last]
