"""What the tasks of one ability each share: examples that are drawn, not read.

A task of `ability_*.py` asks for one thing that an attention can do or cannot, such as
looking a key up (Zoology, arXiv:2312.04927; MAD, arXiv:2403.17844). Its examples are
drawn with a seed, that of `mesh_train_dataset_fn.seed` in training. None is drawn
twice. Those of "validation" and "test" are always the same, and none of them is ever
trained on. Sizes are parameters in gin, as `ability_recall.pairs = 16`.

Ids are 0 for padding, 1 for an end that never comes, and symbols from 2 on. A negative
id among the targets is part of the text but no question: Mesh TensorFlow neither trains
on it nor counts it. So the "token_accuracy" of mode `perplexity_eval` is the accuracy
of what is asked for, teacher-forced, and its "sequence_accuracy" the share of examples
without a mistake. gin/ability_eval.gin asks for them.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import math

import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import task
import tensorflow.compat.v2 as tf

FIRST = 2  # The id of the first symbol.
HELD_OUT = 1000  # Examples, in each of the splits below.
_HELD_OUT_SPLITS = ("validation", "test")
_HELD_OUT_SEED = 20050743
# Fewer different examples would be used up while a small model trains.
_FEWEST = 100 * HELD_OUT
_BLOCK = 1024  # Examples that are drawn at a time.
_PATIENCE = 1000  # Blocks without a new example.

Rows = dict[str, np.ndarray]


class Ability:
  """Draws examples of one ability.

  Attributes:
    parameter: the name in gin of the size of examples, such as `ability_sort.length`.
    sizes: those which are drawn, a range.
    features: of an example.
    is_decoded: whether the targets are answers alone, which mode `eval` can decode.
  """
  features: Sequence[str] = ("targets",)
  is_decoded = False

  def __init__(self, parameter: str, size: int, shortest: int | None,
               least: int = 2) -> None:
    """Declares the sizes.

    Args:
      parameter: the name in gin of the size.
      size: the largest.
      shortest: the smallest; None for examples of one size.
      least: that it may be.

    Raises:
      ValueError: they contradict each other.
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
    """How many different examples of a size there are, at least."""
    raise NotImplementedError

  @property
  def chance(self) -> float:
    """The accuracy of guessing among the answers that are possible, in [0, 1]."""
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
  """Draws `some` different numbers below `of`: <int>[count, some]."""
  return rng.permuted(np.tile(np.arange(of), (count, 1)), axis=1)[:, :some]


def interleave(*columns: np.ndarray) -> np.ndarray:
  """[[a, c], [b, d]] -> [a, b, c, d], for each row: <int>[count, columns * length]."""
  return np.stack(columns, axis=2).reshape(len(columns[0]), -1)


def numbered(letters: str, count: int) -> list[str]:
  """Returns ["a0", "a1", ..., "b0", "b1", ...] for "ab"."""
  return [f"{letter}{number}" for letter in letters for number in range(count)]


def examples(ability: Ability, split: str, seed: int | None) -> Iterator[Rows]:
  """Yields blocks of examples, none twice: without an end in training.

  Args:
    ability: an `Ability`.
    split: one of "train", "validation" and "test".
    seed: of the training; None for another one each time.

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
  """As many examples of each size, in a random order."""
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
  """Yields what tells each example from all others, 8 bytes."""
  for row in np.concatenate(list(rows.values()), axis=1):
    yield hashlib.blake2b(row.tobytes().rstrip(b"\0"), digest_size=8).digest()


def _digests(rows):
  return set(_each(rows))


def _first(blocks, count):
  """The first examples of some blocks."""
  found = []
  while sum(len(rows["targets"]) for rows in found) < count:
    found.append(next(blocks))
  return {key: np.concatenate([rows[key] for rows in found])[:count]
          for key in found[0]}


class Symbols(seqio.Vocabulary):
  """The names of an ability's symbols, chosen when gin has been parsed."""

  def __init__(self, names: Callable[[], Sequence[str]]) -> None:
    """Takes a function that returns the names of the ids from 2 on."""
    super().__init__()
    self._names = names

  def identity(self) -> str:
    """Returns what tells the ids of this vocabulary from those of others."""
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
    places = tf.argmax(tf.equal(words[:, None], keys), axis=1, output_type=tf.int32)
    return FIRST + places

  def _decode_tf(self, ids):
    names = tf.constant(["", "", *self._names()])
    found = tf.gather(names, tf.abs(ids) % len(names))
    return tf.strings.strip(tf.strings.reduce_join(found, axis=-1, separator=" "))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Symbols) and self._names() == other._names()


def add(name: str, make: Callable[[], Ability],
        targets: seqio.Vocabulary | None = None) -> None:
  """Registers a task.

  Args:
    name: as `synth_ability_recall`.
    make: a class of abilities that gin configures.
    targets: their vocabulary, if it is not that of the inputs.
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
    return True  # What is drawn is in no order.

  def list_shards(self, split):
    return [split]

  def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None,
                  **unused_kwargs):
    """The examples of a split, whose parameters are checked at once."""
    ability = self._make()
    _check_different(ability)
    spec = dict.fromkeys(ability.features, tf.TensorSpec([None, None], tf.int32))
    return tf.data.Dataset.from_generator(
        lambda: examples(ability, split, seed), output_signature=spec).unbatch()


def _without_padding(dataset: tf.data.Dataset,
                     sequence_length: Mapping[str, int] | None,
                     make: Callable[[], Ability]) -> tf.data.Dataset:
  """Takes the zeros off; an example that has no place is an error."""
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
    targets: the right answers, symbols with spaces between.
    predictions: likewise; what is longer than the answer is not looked at.

  Returns:
    "accuracy" over all symbols, "sequence_accuracy" over examples and "chance", the
    accuracy of guessing.
  """
  right = [[(guess.split() + [None] * len(wanted))[place] == name
            for place, name in enumerate(wanted)]
           for wanted, guess in zip(map(str.split, targets), predictions)]
  return {"accuracy": 100 * float(np.mean(sum(right, []))),
          "sequence_accuracy": 100 * float(np.mean(list(map(all, right)))),
          "chance": 100 * make().chance}


def arrangements(of: int, some: int) -> float:
  """How many ways there are to put `some` of `of` things in a row."""
  return float(math.perm(of, some))
