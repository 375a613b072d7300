"""Tasks of selecting, counting and memorizing.

`synth_ability_selective_copying` (Mamba, arXiv:2312.00752; MAD, arXiv:2403.17844),
`synth_ability_most_frequent` and `synth_ability_memorization` are for decoder-only
models. `synth_ability_missing` is for an encoder with a classifier. Any attention can
count, even one that weighs all tokens alike. Memorizing needs no attention.
"""

import gin
import numpy as np
from studies.tasks import ability
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import labels

FIRST = ability.FIRST


@gin.configurable("ability_selective_copying", module="synthesizer_mtf.tasks")
class SelectiveCopying(ability.Ability):
  """. a3 . . a1 . = [a3] [a1]: the letters without the blanks, in their order."""

  def __init__(self, length: int = 24, shortest: int | None = None, letters: int = 6,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      length: the number of blanks and letters together.
      shortest: the smallest length; None for `length` in each example.
      letters: the number of letters in an example.
      alphabet: the number of different letters.
    """
    name = "ability_selective_copying"
    super().__init__(f"{name}.length", length, shortest)
    checks.check_whole(f"{name}.letters", letters)
    checks.check_whole(f"{name}.alphabet", alphabet, 2)
    ability.check_at_most(
        f"{name}.letters", letters,
        f"{name}.{'length' if shortest is None else 'shortest'}", self.sizes[0])
    self.letters, self.alphabet = letters, alphabet

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    letters = FIRST + 2 + rng.integers(self.alphabet, size=(count, self.letters))
    text = np.full((count, size), FIRST)
    positions = np.sort(ability.choose(rng, count, size, self.letters), axis=1)
    np.put_along_axis(text, positions, letters, axis=1)
    return {"targets": np.concatenate(
        [-text, np.full((count, 1), -FIRST - 1), letters], axis=1)}

  def different(self, size: int) -> float:
    return float(self.alphabet) ** self.letters

  @property
  def chance(self) -> float:
    return 1 / self.alphabet

  @property
  def symbols(self) -> list[str]:
    return [".", "=", *ability.numbered("a", self.alphabet)]


@gin.configurable("ability_most_frequent", module="synthesizer_mtf.tasks")
class MostFrequent(ability.Ability):
  """a1 a2 a1 a0 = [a1]: one letter occurs more often than any other."""

  def __init__(self, length: int = 32, shortest: int | None = None,
               alphabet: int = 8) -> None:
    """Declares the sizes.

    Args:
      length: the number of letters.
      shortest: the smallest length; None for `length` in each example.
      alphabet: the number of different letters.
    """
    super().__init__("ability_most_frequent.length", length, shortest, least=3)
    checks.check_whole("ability_most_frequent.alphabet", alphabet, 2)
    self.alphabet = alphabet

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    text, found = np.zeros((0, size), int), np.zeros(0, int)
    while len(text) < count:
      drawn = rng.integers(self.alphabet, size=(count, size))
      counts = (drawn[:, :, None] == np.arange(self.alphabet)).sum(axis=1)
      alone = (counts == counts.max(axis=1, keepdims=True)).sum(axis=1) == 1
      text = np.concatenate([text, drawn[alone]])[:count]
      found = np.concatenate([found, counts.argmax(axis=1)[alone]])[:count]
    return {"targets": np.concatenate([
        -(FIRST + 1 + text), np.full((count, 1), -FIRST), FIRST + 1 + found[:, None]],
                                      axis=1)}

  def different(self, size: int) -> float:
    return float(self.alphabet) ** (size - 1)

  @property
  def chance(self) -> float:
    return 1 / self.alphabet

  @property
  def symbols(self) -> list[str]:
    return ["=", *ability.numbered("a", self.alphabet)]


@gin.configurable("ability_memorization", module="synthesizer_mtf.tasks")
class Memorization(ability.Ability):
  """k3 [v7] k1 [v2] ...: a map from keys to values that all splits share.

  All keys of an example are different, so no value can be read off the example.
  """

  def __init__(self, pairs: int = 16, shortest: int | None = None, alphabet: int = 60,
               map_seed: int = 0) -> None:
    """Declares the sizes.

    Args:
      pairs: the number of pairs of a key and its value.
      shortest: the smallest number of pairs; None for `pairs` in each example.
      alphabet: the number of different keys, and of different values.
      map_seed: the seed of the map, at least 0.
    """
    super().__init__("ability_memorization.pairs", pairs, shortest)
    checks.check_whole("ability_memorization.alphabet", alphabet, 2)
    checks.check_whole("ability_memorization.map_seed", map_seed, 0)
    ability.check_at_most("ability_memorization.pairs", pairs,
                          "ability_memorization.alphabet", alphabet)
    self.alphabet = alphabet
    self.values = np.random.default_rng(map_seed).integers(alphabet, size=alphabet)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    keys = ability.choose(rng, count, self.alphabet, size)
    return {"targets": ability.interleave(
        -(FIRST + keys), FIRST + self.alphabet + self.values[keys])}

  def different(self, size: int) -> float:
    return ability.arrangements(self.alphabet, size)

  @property
  def chance(self) -> float:
    return 1 / self.alphabet

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("kv", self.alphabet)


@gin.configurable("ability_missing", module="synthesizer_mtf.tasks")
class Missing(ability.Ability):
  """All letters in any order, but one occurs twice and one is missing: which?"""
  features = ("inputs", "targets")
  is_decoded = True

  def __init__(self, alphabet: int = 24) -> None:
    """Declares the size.

    Args:
      alphabet: the number of different letters, which is also the length.
    """
    super().__init__("ability_missing.alphabet", alphabet, None)
    self.alphabet = alphabet

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    text = ability.choose(rng, count, size, size)
    missing, rows = text[:, 0].copy(), np.arange(count)
    text[:, 0] = text[rows, rng.integers(1, size, size=count)]
    text = rng.permuted(text, axis=1)
    return {"inputs": FIRST + text, "targets": 1 + missing[:, None]}

  def different(self, size: int) -> float:
    return ability.arrangements(size, size)

  @property
  def chance(self) -> float:
    return 1 / self.alphabet

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("a", self.alphabet)


ability.add("synth_ability_selective_copying", SelectiveCopying)
ability.add("synth_ability_most_frequent", MostFrequent)
ability.add("synth_ability_memorization", Memorization)
ability.add("synth_ability_missing", Missing,
            labels.LabelVocabulary(lambda: Missing().symbols))
