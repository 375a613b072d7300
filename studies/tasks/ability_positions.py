"""Tasks of finding a symbol by its position: at a fixed position, or a fixed distance.

`synth_ability_parity` is for decoder-only models. `synth_ability_same_offset` and
`synth_ability_first_last` are for an encoder with a classifier.
`synth_ability_reverse` is for an encoder-decoder. If all examples have one length, an
attention that does not look at tokens can solve all of these tasks.
"""

import gin
import numpy as np
from studies.tasks import ability
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import labels

FIRST = ability.FIRST
YES, NO = 1, 2
_ANSWERS = labels.LabelVocabulary(("yes", "no"))


@gin.configurable("ability_parity", module="synthesizer_mtf.tasks")
class Parity(ability.Ability):
  """1 0 1 1 = [odd] [odd] [even] [odd]: the parity of the bits up to each bit.

  An answer follows from the answer before it and from one bit. The distance to this
  bit is the number of bits plus one.
  """

  def __init__(self, length: int = 20, shortest: int | None = None) -> None:
    """Declares the sizes.

    Args:
      length: the number of bits.
      shortest: the smallest length; None for `length` in each example.
    """
    super().__init__("ability_parity.length", length, shortest)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    bits = rng.integers(2, size=(count, size))
    parity = np.bitwise_xor.accumulate(bits, axis=1)
    equals = np.full((count, 1), FIRST + 2)
    return {"targets": np.concatenate(
        [-(FIRST + bits), -equals, FIRST + 3 + parity], axis=1)}

  def different(self, size: int) -> float:
    return 2.0 ** size

  @property
  def chance(self) -> float:
    return 0.5

  @property
  def symbols(self) -> list[str]:
    return ["0", "1", "=", "even", "odd"]


class _Letters(ability.Ability):
  """A text of letters."""
  features = ("inputs", "targets")
  is_decoded = True

  def __init__(self, name: str, length: int, shortest: int | None, alphabet: int,
               least: int = 2) -> None:
    super().__init__(f"{name}.length", length, shortest, least)
    checks.check_whole(f"{name}.alphabet", alphabet, 2)
    self.alphabet = alphabet

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("a", self.alphabet)


@gin.configurable("ability_first_last", module="synthesizer_mtf.tasks")
class FirstLast(_Letters):
  """Are the first and the last letter the same?

  The first letter occurs exactly once more: at the end, or anywhere before it.
  """

  def __init__(self, length: int = 24, shortest: int | None = None,
               alphabet: int = 8) -> None:
    """Declares the sizes.

    Args:
      length: the number of letters.
      shortest: the smallest length; None for `length` in each example.
      alphabet: the number of different letters.
    """
    super().__init__("ability_first_last", length, shortest, alphabet, least=3)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    first = rng.integers(self.alphabet, size=(count, 1))
    others = rng.integers(1, self.alphabet, size=(count, size - 1))
    text = np.concatenate([first, (first + others) % self.alphabet], axis=1)
    agree = rng.integers(2, size=count).astype(bool)
    again = np.where(agree, size - 1, rng.integers(1, size - 1, size=count))
    text[np.arange(count), again] = first[:, 0]
    return {"inputs": FIRST + text, "targets": np.where(agree, YES, NO)[:, None]}

  def different(self, size: int) -> float:
    return float(self.alphabet) * (self.alphabet - 1.0) ** (size - 2)

  @property
  def chance(self) -> float:
    return 0.5


@gin.configurable("ability_same_offset", module="synthesizer_mtf.tasks")
class SameOffset(_Letters):
  """Are the letters that occur twice `offset` positions apart?

  All other letters occur once. Two equal letters are twins. Either all twins are
  `offset` positions apart, or no twins are.
  """

  def __init__(self, length: int = 24, shortest: int | None = None, offset: int = 5,
               twins: int = 4, alphabet: int = 24) -> None:
    """Declares the sizes.

    Args:
      length: the number of letters.
      shortest: the smallest length; None for `length` in each example.
      offset: the distance between the positions of twins.
      twins: the number of letters that occur twice.
      alphabet: the number of different letters.
    """
    name = "ability_same_offset"
    super().__init__(name, length, shortest, alphabet, least=3)
    checks.check_whole(f"{name}.offset", offset)
    checks.check_whole(f"{name}.twins", twins)
    ability.check_at_most(f"{name}.length", length, f"{name}.alphabet",
                          alphabet + twins)
    at_least = f"{name}.{'length' if shortest is None else 'shortest'}"
    # With this many twins the last pair still fits, wherever the others stand.
    ability.check_at_most(f"{name}.twins", twins, at_least,
                          max(0, self.sizes[0] - offset - 1) // 4)
    self.offset, self.twins = offset, twins

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    text = ability.choose(rng, count, self.alphabet, self.alphabet)
    text = np.pad(text, ((0, 0), (0, max(0, size - self.alphabet))))[:, :size]
    same = rng.integers(2, size=count).astype(bool)
    for row, is_same in zip(text, same):
      self._pair(rng, row, is_same)
    return {"inputs": FIRST + text, "targets": np.where(same, YES, NO)[:, None]}

  def _pair(self, rng, row, is_same):
    """Puts twins into a text, which it changes in place."""
    free = np.ones(len(row), bool)
    pairs = []
    while len(pairs) < self.twins:
      one, other = sorted(rng.choice(len(row), 2, replace=False))
      if is_same:
        other = one + self.offset
      fits = other < len(row) and (other - one == self.offset) == is_same
      if fits and free[one] and free[other]:
        free[[one, other]] = False
        pairs.append((one, other))
    letters = rng.permutation(self.alphabet)
    row[free] = letters[self.twins:self.twins + free.sum()]
    for letter, pair in zip(letters, pairs):
      row[list(pair)] = letter

  def different(self, size: int) -> float:
    return ability.arrangements(self.alphabet, size - self.twins)

  @property
  def chance(self) -> float:
    return 0.5


@gin.configurable("ability_reverse", module="synthesizer_mtf.tasks")
class Reverse(_Letters):
  """inputs: a3 a1 a7; targets: [a7] [a1] [a3]."""

  def __init__(self, length: int = 16, shortest: int | None = None,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      length: the number of letters.
      shortest: the smallest length; None for `length` in each example.
      alphabet: the number of different letters.
    """
    super().__init__("ability_reverse", length, shortest, alphabet)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    text = FIRST + rng.integers(self.alphabet, size=(count, size))
    return {"inputs": text, "targets": text[:, ::-1]}

  def different(self, size: int) -> float:
    return float(self.alphabet) ** size

  @property
  def chance(self) -> float:
    return 1 / self.alphabet


ability.add("synth_ability_parity", Parity)
ability.add("synth_ability_first_last", FirstLast, _ANSWERS)
ability.add("synth_ability_same_offset", SameOffset, _ANSWERS)
ability.add("synth_ability_reverse", Reverse)
