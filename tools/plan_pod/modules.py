"""Reads the modules that XLA's compilers make, as XLA prints them."""

import math
import re
from typing import Any

_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2,
               "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "f64": 8}
_SHAPE = re.compile(rf"\b({'|'.join(_ITEM_BYTES)})\[([\d,]*)\]")
_COLLECTIVE = re.compile(
    r" = (.*) (all-reduce|all-to-all|collective-permute|all-gather|reduce-scatter)"
    r"(?:-done)?\(")  # What "-start" begins, "-done" returns.
_LOOP = re.compile(r" while\(.*body=%([\w.-]+)")
_BRANCHES = re.compile(
    r"(?:branch_computations=\{|true_computation=|false_computation=)([%\w.-]+"
    r"(?:, *%[\w.-]+)*)")
# Operations that take no time of their own.
_FREE = re.compile(r" (?:tuple|while|conditional|call)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,18})"')  # Longer ones are no estimate.


def summarized(text: str) -> dict[str, Any]:
  """Returns the figures of an optimized module.

  Returns:
    a dict. "cycles" is the sum of the compiler's estimates outside of loops, and
    "loop_cycles" is their sum over one pass through each loop; of a conditional, the
    branch of fewer cycles counts, and in "most_cycles" and "most_loop_cycles" that of
    more. "collectives" is a dict from kind to [number, bytes of the results], where a
    loop counts once, and "loop_collectives" has those in loops.
  """
  computations, entry = _computations(text)
  (once, inside, unused), (most_once, most_inside, _) = (
      _run(computations, entry, choose) for choose in (min, max))
  return {
      "cycles": _cycles(once), "loop_cycles": _cycles(inside),
      "most_cycles": _cycles(most_once), "most_loop_cycles": _cycles(most_inside),
      "collectives": _collectives(
          line for name, lines in computations.items() if name not in unused
          for line in lines),
      "loop_collectives": _collectives(inside)}


def _run(computations, entry, choose):
  """Returns the lines that run once, those in loops, and the branches that do not run.

  Args:
    computations: a dict from computations to their lines.
    entry: the name of the first one.
    choose: `min` or `max`, which chooses a branch by its cycles.
  """
  once, inside, unused = list(computations[entry]), [], set()
  for lines in (once, inside):  # Both grow meanwhile.
    for line in lines:
      if loop := _LOOP.search(line):
        inside += computations[loop[1]]
      if " conditional(" in line:
        branches = [b for names in _BRANCHES.findall(line)
                    for b in re.findall(r"[\w.-]+", names)]
        chosen = choose(branches, key=lambda name: _cycles(computations[name]))
        unused.update({*branches} - {chosen})
        lines += computations[chosen]
  return once, inside, unused


def _computations(text):
  """Returns a dict from computations to their lines, and the entry's name."""
  computations, entry, lines = {}, None, []
  for line in text.splitlines():
    if begin := re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line):
      lines = computations.setdefault(begin[2], [])
      entry = begin[2] if begin[1] else entry
    elif " = " in line:
      lines.append(line)
  return computations, entry


def _cycles(lines):
  return sum(int(cycles[1]) for line in lines
             if not _FREE.search(line) and (cycles := _CYCLES.search(line)))


def _collectives(lines):
  collectives = {}
  for result, kind in (m.groups() for m in map(_COLLECTIVE.search, lines) if m):
    number, size = collectives.get(kind, (0, 0))
    collectives[kind] = [number + 1, size + sum(
        _ITEM_BYTES[dtype] * math.prod(map(int, filter(None, sizes.split(","))))
        for dtype, sizes in _SHAPE.findall(result))]
  return collectives
