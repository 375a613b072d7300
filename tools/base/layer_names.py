"""Names of layers as the tools print them: the stack and the block, as "encoder/0"."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def short_name(place: str) -> str:
  """Returns a layer's name, as "encoder/0", from its scope, as "encoder/block_000"."""
  stack, _, block = place.rpartition("/block_")
  return f"{stack}/{int(block)}" if block.isdigit() else place


def stack_of(name: str) -> str:
  """Returns the stack of a layer, as "encoder" for "encoder/0"."""
  return name.rpartition("/")[0]


def by_stack(named: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
  """Groups what belongs to layers by their stacks, in the order of the layers.

  Args:
    named: pairs of a layer's name and what belongs to it.

  Returns:
    a dict from the names of the stacks.
  """
  stacks: dict[str, list[T]] = {}
  for name, member in named:
    stacks.setdefault(stack_of(name), []).append(member)
  return stacks
