"""Reads the modules that XLA's compilers make, as XLA prints them."""

import math
import re
from typing import Any

_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2,
               "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "f64": 8}
# Operations that take no time of their own.
_FREE = frozenset((
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", "iota",
    "after-all", "while", "conditional", "call"))
_COLLECTIVES = ("all-reduce", "all-to-all", "collective-permute", "all-gather",
                "reduce-scatter")
# The registers of a TPU hold 1,024 entries. If a gather or scatter has fewer entries at
# a time than `_FEW`, a TPU treats them like scalars.
_FEW = 128


def summarized(text: str) -> dict[str, Any]:
  """Returns the figures of an optimized module.

  Returns:
    a dict. "cycles" is the sum of the compiler's estimates outside of loops, and
    "loop_cycles" is their sum over one pass through each loop. "collectives" is a dict
    from kind to [number, bytes that a core puts in], where a loop counts once, and
    "loop_collectives" has those in loops.
    "gathers" and "scatters" are [entries that are read or added a few at a time, all
    entries].
  """
  computations, entry = _computations(text)
  inside = []
  for operations in (computations[entry], inside):  # `inside` grows meanwhile.
    for _, _, line in operations:
      found = re.search(r" while\(.*body=%([\w.-]+)", line)
      if found:
        inside += computations[found[1]]
  every = [operation for found in computations.values() for operation in found]
  return {"cycles": _cycles(computations[entry]), "loop_cycles": _cycles(inside),
          "collectives": _collectives(every), "loop_collectives": _collectives(inside),
          **_scattered(every)}


def _cycles(operations):
  """Returns the sum of the compiler's estimates; an operation without one counts 0."""
  found = [re.search(r'"estimated_cycles":"(\d+)"', line)
           for opcode, _, line in operations if opcode not in _FREE]
  return sum(int(cycles[1]) for cycles in found if cycles and int(cycles[1]) < 2**62)


def _computations(text):
  """Returns a dict from computations to their operations, and the entry's name.

  An operation is (opcode, type of the result, line).
  """
  found, entry, operations = {}, None, []
  for line in text.splitlines():
    begin = re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line)
    if begin:
      operations = found.setdefault(begin[2], [])
      entry = begin[2] if begin[1] else entry
    elif " = " in line:
      operations.append((*_opcode(line), line))
  return found, entry


def _opcode(line):
  """Returns the opcode of a line, and the type of its result."""
  result = line.partition(" = ")[2]
  found = re.search(r"(?<![\w%.()-])([a-z][a-z-]*)\((?![\d,]+\))", result)
  return (found[1], result[:found.start()]) if found else ("", result)


def _collectives(operations):
  found = {}
  for opcode, result, _ in operations:
    kind = opcode.removesuffix("-start")
    if kind in _COLLECTIVES:
      number, size = found.get(kind, (0, 0))
      found[kind] = [number + 1, size + _bytes(result)]
  return found


_SHAPE = r"\[([\d,]*)\]"


def _scattered(operations):
  found = {"gathers": [0, 0], "scatters": [0, 0]}
  for opcode, result, line in operations:
    if opcode == "gather":
      at_once = _product(_found(r"slice_sizes=\{([\d,]*)\}", line))
    elif opcode == "scatter":
      window = _found(r"update_window_dims=\{([\d,]*)\}", line)
      shape = _found(_SHAPE, result).split(",")
      # In our programs, the window dimensions of the updates are the last dimensions of
      # the operand.
      at_once = _product(",".join(shape[-len(window.split(",")):])) if window else 1
    else:
      continue
    entries = _product(_found(_SHAPE, result))
    few, every = found[f"{opcode}s"]
    found[f"{opcode}s"] = [few + entries * (at_once < _FEW), every + entries]
  return found


def _found(pattern, text):
  """The group of a pattern that each program of XLA has."""
  match = re.search(pattern, text)
  assert match, f"{pattern} is not in {text}"
  return match[1]


def _product(sizes):
  return math.prod(int(size or 1) for size in sizes.split(","))


def _bytes(result):
  return sum(_ITEM_BYTES[kind] * _product(sizes) for kind, sizes in re.findall(
      rf"\b({'|'.join(_ITEM_BYTES)})\[([\d,]*)\]", result))
