"""ListOps: nested lists of digits, each list with an operator (arXiv:1804.06028).

An expression is a sequence of words,

  [MAX 2 9 [MIN 4 7 ] 0 ]

whose value is a digit: the least, the greatest, the median (rounded down) or the sum
modulo 10 of the list. Expressions are drawn as in Long Range Arena (arXiv:2011.04006,
2.2.1). A list has 2 to `max_arguments` members. A member is a list with probability
1/4, and otherwise a digit; at `max_depth` it is always a digit. An expression shorter
than `min_length` words or longer than `max_length` is drawn again. The seed decides all
expressions.
"""

from collections.abc import Callable
from collections.abc import Iterator
import hashlib
import random
import statistics
from typing import NamedTuple

from synthesizer_mtf import checks

DIGITS = tuple("0123456789")
END = "]"
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
WORDS = (*DIGITS, *OPERATORS, END)

_LIST_PROBABILITY = 0.25
_DEEPEST = 100  # Python's stack is a few times deeper.
_TRIES = 200_000  # Failures in a row after which no expressions seem to be left.


class Expression(NamedTuple):
  """An expression: its words, with spaces between, and its value."""
  text: str
  value: int


class Grammar(NamedTuple):
  """The limits of the expressions to draw.

  Attributes:
    max_depth: the largest depth, at which there are only digits. An expression of
      depth 2 is one list of digits.
    max_arguments: the largest number of members of a list; the smallest is 2.
    min_length: the smallest number of words of an expression.
    max_length: the largest number of words of an expression.
  """
  max_depth: int
  max_arguments: int
  min_length: int
  max_length: int

  def check(self, parameter: str) -> None:
    """Raises a ValueError if no expression fits these limits.

    Args:
      parameter: the gin configurable whose parameters these are, for messages.
    """
    for name, least, most in (("max_depth", 2, _DEEPEST), ("max_arguments", 2, 1000),
                              ("min_length", 1, None), ("max_length", 4, None)):
      value = getattr(self, name)
      if not checks.is_whole(value, least) or most and value > most:
        raise checks.Error(
            f"`{parameter}.{name}` is {value!r} but must be {checks.integer(least)}"
            f"{f' and at most {most}' if most else ''}; change it.")
    if self.min_length > self.max_length:
      raise checks.Error(
          f"`{parameter}.min_length` is {self.min_length}, more than "
          f"`{parameter}.max_length`, which is {self.max_length}; change one of them.")
    if self.min_length > self._longest():
      raise checks.Error(
          f"`{parameter}.min_length` is {self.min_length}, but with `max_depth` = "
          f"{self.max_depth} and `max_arguments` = {self.max_arguments} no expression "
          f"is longer than {self._longest()} words; lower it, or raise one of these.")

  def _longest(self):
    """The number of words of the longest expression."""
    length = 1
    for _ in range(self.max_depth - 1):
      length = 2 + self.max_arguments * length
    return length


class _TooLong(Exception):
  """The expression that is being drawn has too many words."""


class _Drawing:
  """One expression, while it is drawn.

  It uses only `random()` of Python's generators, which returns the same numbers in all
  versions of Python.
  """

  def __init__(self, grammar, generator):
    self._grammar, self._random = grammar, generator.random
    self.words = []

  def draw(self, depth=1):
    """Adds the words of one list or digit, and returns its value."""
    is_list = depth == 1 or (depth < self._grammar.max_depth and
                             self._random() < _LIST_PROBABILITY)
    if not is_list:
      value = self._below(10)
      self._add(DIGITS[value])
      return value
    operator = list(OPERATORS)[self._below(len(OPERATORS))]
    self._add(operator)
    members = 2 + self._below(self._grammar.max_arguments - 1)
    values = [self.draw(depth + 1) for _ in range(members)]
    self._add(END)
    return OPERATORS[operator](values)

  def _add(self, word):
    self.words.append(word)
    if len(self.words) > self._grammar.max_length:
      raise _TooLong

  def _below(self, number):
    return int(self._random() * number)


def expressions(grammar: Grammar, seed: int) -> Iterator[Expression]:
  """Yields expressions without end, no two of them the same.

  Args:
    grammar: a `Grammar` that has been checked.
    seed: a whole number.

  Raises:
    ValueError: no more expressions seem to be left.
  """
  generator, seen, last = random.Random(seed), set(), 0
  for number in range(2 ** 62):
    if number - last > _TRIES:
      raise checks.Error(
          f"ListOps found only {len(seen)} different expressions of "
          f"{grammar.min_length} to {grammar.max_length} words with max_depth = "
          f"{grammar.max_depth} and max_arguments = {grammar.max_arguments}; ask for "
          "fewer examples, or for lengths that are less rare.")
    expression = _draw(grammar, generator)
    key = expression and _digest(expression.text)
    if key and key not in seen:
      seen.add(key)
      last = number
      yield expression


def _draw(grammar, generator):
  """Returns an `Expression`, or None if its length is outside the limits."""
  drawing = _Drawing(grammar, generator)
  try:
    value = drawing.draw()
  except _TooLong:
    return None
  if len(drawing.words) < grammar.min_length:
    return None
  return Expression(" ".join(drawing.words), value)


def _digest(text):
  return hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()
