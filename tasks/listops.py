"""ListOps: nested lists of digits with an operator each (arXiv:1804.06028).

An expression is a sequence of words,

  [MAX 2 9 [MIN 4 7 ] 0 ]

whose value is a digit: the least, the greatest, the median (rounded down) or the sum
modulo 10 of the list. They are drawn as in Long Range Arena (arXiv:2011.04006, 2.2.1):
a list has 2 to `max_arguments` members, each of which is a list with probability 1/4
and else a digit, and always a digit at `max_depth`; what is shorter than `min_length`
words or longer than `max_length` is drawn again. The seed decides all of them.
"""

from collections.abc import Iterator
import hashlib
import random
import statistics
from typing import NamedTuple

from synthesizer_mtf import checks

DIGITS = tuple("0123456789")
END = "]"
OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
WORDS = (*DIGITS, *OPERATORS, END)

_LIST_PROBABILITY = 0.25
_DEEPEST = 100  # Python's stack is a few times deeper.
_TRIES = 200_000  # In a row, before there seem to be no more expressions.


class Expression(NamedTuple):
  """An expression: its words, with spaces between, and its value."""
  text: str
  value: int


class Grammar(NamedTuple):
  """Which expressions there are.

  Attributes:
    max_depth: of lists within lists; at it there are digits only, so that 2 is one
      list.
    max_arguments: of a list; at least there are 2.
    min_length: of an expression, in words.
    max_length: likewise.
  """
  max_depth: int
  max_arguments: int
  min_length: int
  max_length: int

  def check(self, parameter: str) -> None:
    """Raises a ValueError if there is no such expression.

    Args:
      parameter: what the names of the attributes belong to, for messages.
    """
    for name, least, most in (("max_depth", 2, _DEEPEST), ("max_arguments", 2, 1000),
                              ("min_length", 1, None), ("max_length", 4, None)):
      value = getattr(self, name)
      if not checks.is_whole(value, least) or most and value > most:
        raise checks.Error(
            f"`{parameter}.{name}` is {value!r} but must be a whole number of at least "
            f"{least}{f' and at most {most}' if most else ''}; change it.")
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
  """What was drawn has more words than it may."""


class _Drawing:
  """One expression, while it is drawn.

  Of Python's random numbers only `random()` is used, which is the same in all
  versions.
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
    ValueError: there seem to be no more of them.
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
  """Returns an `Expression`; None if it has not the length."""
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
