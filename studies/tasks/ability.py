"""The common code of the ability tasks, whose examples are drawn, not read.

A task of `ability_*.py` tests one thing that an attention can or cannot do, such as
looking a key up (Zoology, arXiv:2312.04927; MAD, arXiv:2403.17844). A seed decides
which examples are drawn. In training this is `mesh_train_dataset_fn.seed`. No example
is drawn twice. The examples of "validation" and "test" are always the same, and no
model is trained on them. Gin binds the sizes, as in `ability_recall.pairs = 16`.

Id 0 is padding, id 1 is an end of sequence, which no example has, and symbols start at
id 2. (Targets for a classifier are classes, from id 1 on.) A negative id among the
targets belongs to the text, but the model does not have to predict it: Mesh TensorFlow
neither trains on it nor counts it. In mode `perplexity_eval`, "token_accuracy" is
therefore the teacher-forced accuracy on the symbols to predict, and
"sequence_accuracy" is the share of examples without a mistake. gin/ability_eval.gin
selects this mode.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import math
from typing import Any

import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import task
import tensorflow.compat.v2 as tf

FIRST = 2  # The id of the first symbol.
HELD_OUT = 1000  # The number of examples in each of the splits below.
_HELD_OUT_SPLITS = ("validation", "test")
_HELD_OUT_SEED = 20050743
# With fewer different examples, the training of a small model would use them up.
_FEWEST = 100 * HELD_OUT
_BLOCK = 1024  # Examples that are drawn at a time.
_PATIENCE = 1000  # Blocks in a row without a new example.

Rows = dict[str, np.ndarray]


class Ability:
  """Draws examples of one ability.

  Attributes:
    parameter: the gin parameter for the size of examples, as `ability_reverse.length`.
    sizes: the range of the sizes that are drawn.
    features: the names of an example's features.
    is_decoded: whether all targets are answers, so that mode `eval` can decode them.
  """
  features: Sequence[str] = ("targets",)
  is_decoded = False

  def __init__(self, parameter: str, size: int, shortest: int | None,
               least: int = 2) -> None:
    """Declares the sizes.

    Args:
      parameter: the gin parameter for the size.
      size: the largest size.
      shortest: the smallest size; None for examples of one size.
      least: the least value that `size` and `shortest` may have.

    Raises:
      ValueError: a size is too small, or `shortest` exceeds `size`.
    """
    name = parameter.partition(".")[0]
    checks.check_whole(parameter, size, least)
    self.parameter = parameter
    self.sizes = range(size if shortest is None else shortest, size + 1)
    if shortest is not None:
      checks.check_whole(f"{name}.shortest", shortest, least)
      check_at_most(f"{name}.shortest", shortest, parameter, size)

  def draw(self, rng: np.random.Generator, count: int, size: int) -> Rows:
    """Returns {feature: <int>[count, length]}, examples of one size."""
    raise NotImplementedError

  def different(self, size: int) -> float:
    """Returns a lower bound for the number of different examples of a size."""
    raise NotImplementedError

  @property
  def chance(self) -> float:
    """The accuracy of guessing among the possible answers, in [0, 1]."""
    raise NotImplementedError

  @property
  def symbols(self) -> list[str]:
    """The names of the ids from 2 on."""
    raise NotImplementedError


def check_at_most(name: str, value: int, limit: str, most: int) -> None:
  """Raises a ValueError, naming both parameters, if value > most."""
  if value > most:
    raise checks.Error(f"`{name}` is {value}, but `{limit}` allows no more than "
                       f"{most}; lower the one or raise the other.")


def choose(rng: np.random.Generator, count: int, of: int, some: int) -> np.ndarray:
  """Draws `some` different numbers below `of` for each row: <int>[count, some]."""
  return rng.permuted(np.tile(np.arange(of), (count, 1)), axis=1)[:, :some]


def interleave(*columns: np.ndarray) -> np.ndarray:
  """[[a, c], [b, d]] -> [a, b, c, d], for each row: <int>[count, columns * length]."""
  return np.stack(columns, axis=2).reshape(len(columns[0]), -1)


def numbered(letters: str, count: int) -> list[str]:
  """Returns ["a0", "a1", ..., "b0", "b1", ...] for "ab"."""
  return [f"{letter}{number}" for letter in letters for number in range(count)]


def examples(ability: Ability, split: str, seed: int | None) -> Iterator[Rows]:
  """Yields blocks of examples, none of them twice; "train" has no end.

  Args:
    ability: an `Ability`.
    split: one of "train", "validation" and "test".
    seed: the seed of the training; None for a different one each time.

  Yields:
    {feature: <int>[examples, length]}, padded with zeros.

  Raises:
    ValueError: the sizes allow too few examples.
  """
  _check_different(ability)
  seen = set()
  held_out = _first(_new(ability, np.random.default_rng(_HELD_OUT_SEED), seen),
                    len(_HELD_OUT_SPLITS) * HELD_OUT)
  if split == "train":
    seen = _digests(held_out)
    yield from _new(ability, np.random.default_rng(seed), seen)
  else:
    number = _HELD_OUT_SPLITS.index(split)
    yield {key: rows[number * HELD_OUT:(number + 1) * HELD_OUT]
           for key, rows in held_out.items()}


def _check_different(ability):
  count = sum(map(ability.different, ability.sizes))
  if count < _FEWEST:
    raise checks.Error(
        f"`{ability.parameter}` is {ability.sizes[-1]}, which makes only {count:,.0f} "
        f"different examples, but none is used twice, and training needs {_FEWEST:,}; "
        "raise it, or the number of symbols.")


def _new(ability, rng, seen):
  """Yields blocks of examples that are not in `seen`, and adds them to it."""
  left = _PATIENCE
  while left:
    rows, fresh = _block(ability, rng), []
    for number, digest in enumerate(_each(rows)):
      if digest not in seen:
        seen.add(digest)
        fresh.append(number)
    left = _PATIENCE if fresh else left - 1
    if fresh:
      yield {key: each[fresh] for key, each in rows.items()}
  raise checks.Error(
      f"`{ability.parameter}` is {ability.sizes[-1]}, and all {len(seen):,} different "
      "examples of it are used up; raise it, or the number of symbols.")


def _block(ability, rng):
  """Returns a block with equally many examples of each size, in random order."""
  sizes = ability.sizes
  parts = [ability.draw(rng, -(-_BLOCK // len(sizes)), size) for size in sizes]
  rows = {key: _padded([part[key] for part in parts]) for key in ability.features}
  order = rng.permutation(len(rows["targets"]))
  return {key: each[order] for key, each in rows.items()}


def _padded(parts):
  longest = max(part.shape[1] for part in parts)
  return np.concatenate([np.pad(part, ((0, 0), (0, longest - part.shape[1])))
                         for part in parts]).astype(np.int32)


def _each(rows):
  """Yields a digest of 8 bytes for each example."""
  for row in np.concatenate(list(rows.values()), axis=1):
    yield hashlib.blake2b(row.tobytes().rstrip(b"\0"), digest_size=8).digest()


def _digests(rows):
  return set(_each(rows))


def _first(blocks, count):
  """Returns the first `count` examples of an iterator of blocks."""
  found: list[dict[str, np.ndarray]] = []
  while sum(len(rows["targets"]) for rows in found) < count:
    found.append(next(blocks))
  return {key: np.concatenate([rows[key] for rows in found])[:count]
          for key in found[0]}


class Symbols(seqio.Vocabulary):
  """A vocabulary of an ability's symbols, whose sizes gin binds after imports."""

  def __init__(self, names: Callable[[], Sequence[str]]) -> None:
    """Takes a function that returns the names of the ids from 2 on."""
    super().__init__()
    self._names = names

  def identity(self) -> str:
    """Returns a string that vocabularies share only if they have the same ids."""
    return f"symbols {' '.join(self._names())}"

  @property
  def eos_id(self) -> int:
    return 1

  @property
  def unk_id(self) -> None:
    return None

  @property
  def _base_vocab_size(self):
    return FIRST + len(self._names())

  def _encode(self, s):
    return [FIRST + self._names().index(name) for name in s.split()]

  def _decode(self, ids):
    names = ["", "", *self._names()]
    return " ".join(names[abs(i)] for i in ids if FIRST <= abs(i) < len(names))

  def _encode_tf(self, s):
    keys = tf.constant(self._names())
    words = tf.strings.split(s)
    indices = tf.argmax(tf.equal(words[:, None], keys), axis=1, output_type=tf.int32)
    return FIRST + indices

  def _decode_tf(self, ids):
    names = tf.constant(["", "", *self._names()])
    found = tf.gather(names, tf.abs(ids) % len(names))
    return tf.strings.strip(tf.strings.reduce_join(found, axis=-1, separator=" "))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Symbols) and self._names() == other._names()


def add(name: str, make: Any,
        targets: seqio.Vocabulary | None = None) -> None:
  """Registers a task.

  Args:
    name: the name of the task, such as `synth_ability_recall`.
    make: a class of abilities that gin configures.
    targets: the vocabulary of the targets, if it is not the inputs' vocabulary.
  """
  symbols = Symbols(lambda: make().symbols)
  vocabularies = {"inputs": symbols, "targets": targets or symbols}
  task.add(
      name,
      source=_DrawnSource(make),
      preprocessors=[functools.partial(_without_padding, make=make)],
      output_features={key: seqio.Feature(vocabularies[key], add_eos=False)
                       for key in make.features},
      postprocess_fn=lambda text, **unused_kwargs: text,
      metric_fns=[functools.partial(accuracy, make)] if make.is_decoded else [],
      shuffle_buffer_size=None)


class _DrawnSource(seqio.DataSource):
  """The splits of an ability."""

  def __init__(self, make):
    super().__init__(("train", *_HELD_OUT_SPLITS),
                     dict.fromkeys(_HELD_OUT_SPLITS, HELD_OUT), caching_permitted=False)
    self._make = make

  @property
  def supports_arbitrary_sharding(self):
    return False

  @property
  def performs_internal_shuffling(self):
    return True  # Examples are drawn in random order.

  def list_shards(self, split):
    return [split]

  def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None,
                  **unused_kwargs):
    """Returns the examples of a split; checks the ability's sizes at once."""
    ability = self._make()
    _check_different(ability)
    spec = dict.fromkeys(ability.features, tf.TensorSpec([None, None], tf.int32))
    return tf.data.Dataset.from_generator(
        lambda: examples(ability, split, seed), output_signature=spec).unbatch()


def _without_padding(dataset: tf.data.Dataset,
                     sequence_length: Mapping[str, int] | None,
                     make: Callable[[], Ability]) -> tf.data.Dataset:
  """Removes the padding; raises a ValueError if examples exceed the length."""
  ability = make()
  longest = ability.draw(np.random.default_rng(0), 1, ability.sizes[-1])
  for key, rows in longest.items():
    room = (sequence_length or {}).get(key)
    if room is not None and rows.shape[1] > room:
      raise checks.Error(
          f"`{ability.parameter}` is {ability.sizes[-1]}, which makes {key} of "
          f"{rows.shape[1]} ids, but `utils.run.sequence_length` gives them {room}; "
          "raise the one or lower the other.")
  return dataset.map(lambda row: {
      key: tf.boolean_mask(ids, tf.not_equal(ids, 0)) for key, ids in row.items()})


def accuracy(make: Callable[[], Ability], targets: Sequence[str],
             predictions: Sequence[str]) -> dict[str, float]:
  """Scores what mode `eval` decodes, in percent.

  Args:
    make: the class of the ability.
    targets: the right answers, as symbols with spaces between them.
    predictions: the decoded answers in the same format. Symbols beyond the length of
      the right answer do not count.

  Returns:
    "accuracy" over all symbols, "sequence_accuracy" over examples and "chance", the
    accuracy of guessing.
  """
  right = [[(guess.split() + [None] * len(wanted))[index] == name
            for index, name in enumerate(wanted)]
           for wanted, guess in zip(map(str.split, targets), predictions)]
  return {"accuracy": 100 * float(np.mean(sum(right, []))),
          "sequence_accuracy": 100 * float(np.mean(list(map(all, right)))),
          "chance": 100 * make().chance}


def arrangements(of: int, some: int) -> float:
  """Returns the number of ways to put `some` of `of` things in a row."""
  return float(math.perm(of, some))
