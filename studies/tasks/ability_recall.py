"""Tasks of finding a symbol by content: the value of a key, or a symbol's successor.

`synth_ability_recall` is multi-query associative recall (MQAR, Zoology,
arXiv:2312.04927). `synth_ability_two_hops` asks for two look-ups in a row: the result
of the first is the key of the second. `synth_ability_induction` shows a piece of the
text again (arXiv:2209.11895). These three are for decoder-only models.
`synth_ability_look_up` is for an encoder-decoder. Its cross-attention compares the
question with the keys, whatever the self-attention does.
"""

import gin
import numpy as np
from studies.tasks import ability
from synthesizer_mtf import checks

FIRST = ability.FIRST


class _Pairs(ability.Ability):
  """Keys, each with its value, and questions for some of the keys."""

  def __init__(self, name: str, pairs: int, shortest: int | None, questions: int,
               alphabet: int) -> None:
    super().__init__(f"{name}.pairs", pairs, shortest)
    checks.check_whole(f"{name}.questions", questions)
    checks.check_whole(f"{name}.alphabet", alphabet, 2)
    ability.check_at_most(f"{name}.pairs", pairs, f"{name}.alphabet", alphabet)
    self.questions, self.alphabet = questions, alphabet

  def _choose(self, rng, count, size, number):
    """Returns different symbols of the alphabet `number`, <int>[count, size]."""
    chosen = ability.choose(rng, count, self.alphabet, size)
    return FIRST + number * self.alphabet + chosen

  def _ask(self, rng, count, size, keys, values):
    """Returns random keys, and their values: <int>[count, questions] each."""
    asked = rng.integers(size, size=(count, self.questions))
    return (np.take_along_axis(keys, asked, axis=1),
            np.take_along_axis(values, asked, axis=1))

  def different(self, size: int) -> float:
    return ability.arrangements(self.alphabet, size) ** 2

  @property
  def chance(self) -> float:
    """The accuracy of guessing one of the values."""
    return float(np.mean([1 / size for size in self.sizes]))

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("kv", self.alphabet)


@gin.configurable("ability_recall", module="synthesizer_mtf.tasks")
class Recall(_Pairs):
  """k3 v7 k1 v2 ... k1 [v2] k3 [v7] ...: brackets mark the symbols to predict.

  All keys of an example are different, and so are all its values. Unlike in Zoology,
  the questions come right after the pairs. They draw keys at random, some repeatedly.
  """

  def __init__(self, pairs: int = 8, shortest: int | None = None, questions: int = 8,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      pairs: the number of pairs of a key and a value.
      shortest: the smallest number of pairs; None for `pairs` in each example.
      questions: the number of questions in an example.
      alphabet: the number of different keys, and of different values.
    """
    super().__init__("ability_recall", pairs, shortest, questions, alphabet)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    keys, values = (self._choose(rng, count, size, number) for number in (0, 1))
    asked, answers = self._ask(rng, count, size, keys, values)
    return {"targets": np.concatenate([
        -ability.interleave(keys, values),
        ability.interleave(-asked, answers)], axis=1)}


@gin.configurable("ability_two_hops", module="synthesizer_mtf.tasks")
class TwoHops(_Pairs):
  """m3 v7 k1 m3 ... k1 [v7] ...: from a key to a middle, and from there to a value.

  The two pairs of a key stand anywhere among the others.
  """

  def __init__(self, pairs: int = 6, shortest: int | None = None, questions: int = 6,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      pairs: the number of pairs of a key and its middle, and of pairs of a middle and
        its value.
      shortest: the smallest number of pairs; None for `pairs` in each example.
      questions: the number of questions in an example.
      alphabet: the number of different keys, of middles and of values.
    """
    super().__init__("ability_two_hops", pairs, shortest, questions, alphabet)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    keys, middles, values = (
        self._choose(rng, count, size, number) for number in range(3))
    asked, answers = self._ask(rng, count, size, keys, values)
    pairs = np.stack([np.concatenate([keys, middles], axis=1),
                      np.concatenate([middles, values], axis=1)], axis=2)
    order = ability.choose(rng, count, 2 * size, 2 * size)
    pairs = np.take_along_axis(pairs, order[:, :, None], axis=1)
    return {"targets": np.concatenate([
        -pairs.reshape(count, -1), ability.interleave(-asked, answers)], axis=1)}

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("kmv", self.alphabet)


@gin.configurable("ability_look_up", module="synthesizer_mtf.tasks")
class LookUp(ability.Ability):
  """inputs: k2 v7 k0 v2 k1 v4; targets: [v2] [v4] [v7], the values of k0, k1 and k2.

  The position of an answer says which key the question is about. An encoder-decoder
  cannot have questions among its targets, as `Recall` has: Mesh TensorFlow would
  treat each of their negative ids as a separate example.
  """
  features = ("inputs", "targets")
  is_decoded = True

  def __init__(self, pairs: int = 8, shortest: int | None = None,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      pairs: the number of pairs of a key and a value. All values of an example are
        different.
      shortest: the smallest number of pairs; None for `pairs` in each example.
      alphabet: the number of different values.
    """
    super().__init__("ability_look_up.pairs", pairs, shortest)
    checks.check_whole("ability_look_up.alphabet", alphabet, 2)
    ability.check_at_most(
        "ability_look_up.pairs", pairs, "ability_look_up.alphabet", alphabet)
    self.alphabet = alphabet

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    values = FIRST + ability.choose(rng, count, self.alphabet, size)
    keys = ability.choose(rng, count, size, size)
    return {"inputs": ability.interleave(FIRST + self.alphabet + keys,
                                         np.take_along_axis(values, keys, axis=1)),
            "targets": values}

  def different(self, size: int) -> float:
    return ability.arrangements(self.alphabet, size) * ability.arrangements(size, size)

  @property
  def chance(self) -> float:
    """The accuracy of guessing one of the values that have not been answers yet."""
    return float(np.mean([1 / (size - known) for size in self.sizes
                          for known in range(size)]))

  @property
  def symbols(self) -> list[str]:
    values, keys = (ability.numbered("v", self.alphabet),
                    ability.numbered("k", self.sizes[-1]))
    return [*values, *keys]


@gin.configurable("ability_induction", module="synthesizer_mtf.tasks")
class Induction(ability.Ability):
  """a5 a2 a9 a1 a7 ... a2 [a9] [a1] ...: a piece from anywhere in the text, again.

  All symbols of the text are different, so each has only one successor.
  """

  def __init__(self, length: int = 16, shortest: int | None = None, piece: int = 8,
               alphabet: int = 16) -> None:
    """Declares the sizes.

    Args:
      length: the number of symbols of the text before the piece.
      shortest: the smallest length; None for `length` in each example.
      piece: the number of symbols that the piece repeats; the model has to predict all
        of them but the first.
      alphabet: the number of different symbols.
    """
    super().__init__("ability_induction.length", length, shortest)
    checks.check_whole("ability_induction.piece", piece, 2)
    checks.check_whole("ability_induction.alphabet", alphabet, 2)
    ability.check_at_most("ability_induction.length", length,
                          "ability_induction.alphabet", alphabet)
    ability.check_at_most(
        "ability_induction.piece", piece,
        f"ability_induction.{'length' if shortest is None else 'shortest'}",
        self.sizes[0])
    self.piece, self.alphabet = piece, alphabet

  def draw(self, rng: np.random.Generator, count: int, size: int) -> ability.Rows:
    text = FIRST + ability.choose(rng, count, self.alphabet, size)
    begin = rng.integers(size - self.piece + 1, size=(count, 1))
    piece = np.take_along_axis(text, begin + np.arange(self.piece), axis=1)
    return {"targets": np.concatenate([-text, -piece[:, :1], piece[:, 1:]], axis=1)}

  def different(self, size: int) -> float:
    return ability.arrangements(self.alphabet, size) * (size - self.piece + 1)

  @property
  def chance(self) -> float:
    """The accuracy of guessing a symbol that the piece has not repeated yet."""
    return float(np.mean([1 / (size - known) for size in self.sizes
                          for known in range(1, self.piece)]))

  @property
  def symbols(self) -> list[str]:
    return ability.numbered("a", self.alphabet)


for _name, _make in (("recall", Recall), ("two_hops", TwoHops), ("look_up", LookUp),
                     ("induction", Induction)):
  ability.add(f"synth_ability_{_name}", _make)
