"""Splits a step's time into attention, feed-forward, embedding, loss and optimizer.

Mesh TensorFlow names TensorFlow's operations after its own operations, and names these
after the layers. So the name of an operation shows its part. The gradient of an
operation belongs to the part of that operation.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import re
from typing import Any

import mesh_tensorflow as mtf

PRODUCTS = "products"  # The matrix products of all parts.
REST = "rest"  # Norms, dropout and sums between layers, and time without any work.
PARTS = ("self-attention", "cross-attention", "feed-forward", "embedding",
         "logits and loss", "optimizer", REST)

# Matches the class of a layer; operations around the layer have names in small letters.
_LAYER = re.compile(r"\w+/block_\d+/layer_\d+/([A-Z]\w*)/")
_OF_LAYERS = {"EncDecAttention": "cross-attention", "DenseReluDense": "feed-forward"}
_PRODUCT = re.compile(r" = (_Mkl)?(Einsum|BatchMatMul\w*)\(")
_OPTIMIZER = re.compile(r"(^|/)adafactor(_\d+)?/|^assign(_\d+)?/|_slot_\w+_slice")


def parts(operations: Iterable[mtf.Operation]) -> dict[str, str]:
  """Returns the part of each operation whose name alone does not show the part.

  Args:
    operations: the operations of a Mesh TensorFlow graph, in the order of creation.

  Returns:
    a dict from names of operations to names of parts. In each stack, operations before
    the blocks are the embedding. Logits and loss begin with the first product with
    the table of the logits.
  """
  parts_, seen, in_loss = {}, set(), False
  for op in operations:
    if "/gradients/" in op.name or isinstance(op, mtf.Variable):
      continue
    stack, _, inner = op.name.partition("/")
    if inner.startswith("block_"):
      seen.add(stack)
      continue
    in_loss = in_loss or (stack in seen and any(map(_is_logits_table, op.inputs)))
    if in_loss:
      parts_[op.name] = "logits and loss"
    elif inner and stack not in seen:
      parts_[op.name] = "embedding"
  return parts_


def _is_logits_table(tensor):
  made = tensor.operation
  return isinstance(made, mtf.Variable) and (
      made.name.endswith("/embedding") or "/logits/" in made.name)


def part(node: str, known: dict[str, str]) -> str:
  """Returns the part that a node of TensorFlow's graph belongs to.

  Args:
    node: the name of the node.
    known: what `parts` returned.

  Returns:
    one of `PARTS`.
  """
  if _OPTIMIZER.search(node):
    return "optimizer"
  layer = _LAYER.match(node)
  if layer:
    return _OF_LAYERS.get(layer[1], "self-attention")
  return known.get(re.split("/gradients/|/parallel", node)[0], REST)


def seconds(stats: Any,
            known: dict[str, str]) -> dict[str, float]:
  """Returns how long each part took in one traced step.

  If several operations run at the same time, each gets an equal share of that time, so
  all parts add up to the time of the step.

  Args:
    stats: the `step_stats` of a run that TensorFlow traced.
    known: what `parts` returned.

  Returns:
    a dict with all of `PARTS`, in seconds.
  """
  return _shared(stats, PARTS, lambda node: part(node.node_name, known))


def product_seconds(stats: Any) -> float:
  """Returns how long a traced step's matrix products took, shared as in `seconds`."""
  return _shared(stats, (PRODUCTS, REST), lambda node: (
      PRODUCTS if _PRODUCT.search(node.timeline_label) else REST))[PRODUCTS]


def _shared(stats, names: Iterable[str],
            part_of: Callable[[Any], str]) -> dict[str, float]:
  """Returns the seconds of each part; `part_of` returns the part of a traced node."""
  total = dict.fromkeys(names, 0.0)
  running = collections.Counter()
  before = None
  for microseconds, name, change in sorted(_events(stats, part_of)):
    if before is not None:
      elapsed = (microseconds - before) / 1e6
      count = sum(running.values())
      for p, n in running.items() if count else [(REST, 1)]:
        total[p] += elapsed * n / max(count, 1)
    running[name] += change
    running += collections.Counter()  # Drops zeros.
    before = microseconds
  return total


def _events(stats, part_of) -> Iterator[tuple[int, str, int]]:
  """Yields when the operations of each part begin (1) and end (-1)."""
  for device in stats.dev_stats:
    for node in device.node_stats:
      start = node.all_start_micros + node.op_start_rel_micros
      end = node.all_start_micros + node.op_end_rel_micros
      if end > start:
        name = part_of(node)
        yield start, name, 1
        yield end, name, -1
