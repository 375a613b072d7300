"""Reads what a task feeds a model, before and after packing, as the trainer does."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import time
from typing import Any

from mesh_tensorflow.transformer import dataset as transformer_dataset
import numpy as np
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import own_mixture
from synthesizer_mtf.tools.base import cuts
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import unknown_pieces
import tensorflow.compat.v2 as tf
import tqdm

Lengths = dict[str, int]
Row = dict[str, Any]


@dataclasses.dataclass
class Member:
  """The lengths of the rows of a task.

  Attributes:
    sizes: a dict from features to lengths, <int>[rows], before anything is cut.
    made: whether the task itself decides the lengths, as span corruption does.
  """
  sizes: dict[str, np.ndarray]
  made: bool

  def cut(self, key: str, limit: int) -> float | None:
    """Returns the share of the rows that is cut; None if `made`."""
    return None if self.made else float(np.mean(self.sizes[key] > limit))


@dataclasses.dataclass
class Findings:
  """The findings about a task.

  Attributes:
    name: the name of the task or mixture.
    split: the name of the split, such as "train".
    lengths: a dict from features to sequence lengths in tokens.
    rates: (name, rate) for each member of a mixture, or for the task itself.
    examples: the first rows, as dicts of NumPy arrays.
    packed: the first packed rows, as dicts of NumPy arrays.
    tokens: a dict from features to the lengths of all rows read, <int>[rows].
    members: a `Member` for each task of a mixture, or for the task itself.
    fill: a dict from features to the share of the packed rows that is not padding.
    per_row: the mean number of examples in a packed row.
    whole: whether the whole split was read.
    first_seconds: the seconds until the first example.
    unknown: what the vocabulary does not keep of the first texts.
  """
  name: str
  split: str
  lengths: Lengths
  rates: list[tuple[str, float]]
  examples: list[Row]
  packed: list[Row]
  tokens: dict[str, np.ndarray]
  members: dict[str, Member]
  fill: dict[str, float]
  per_row: float
  whole: bool
  first_seconds: float
  unknown: unknown_pieces.Unkept

  @property
  def shares(self) -> list[tuple[str, float, float]]:
    """(name, rate, share of all rates) for each member, as in `rates`."""
    total = sum(rate for _, rate in self.rates) or 1
    return [(name, rate, rate / total) for name, rate in self.rates]

  def cut(self, key: str) -> float | None:
    """Returns the share of a feature's rows that is cut, at the members' rates."""
    cuts_ = [(self.members[name].cut(key, self.lengths[key]), share)
             for name, _, share in self.shares]
    if all(cut is None for cut, _ in cuts_):
      return None
    return sum((cut or 0) * share for cut, share in cuts_)

  def longest_uncut(self, key: str) -> int | None:
    """Returns the length of the longest row before cutting; None if `made`."""
    return max((int(member.sizes[key].max()) for member in self.members.values()
                if not member.made), default=None)


def read(name: str, split: str, lengths: Lengths | None, number: int,
         most: int) -> Findings:
  """Reads a task or mixture, in the order of the data set, once.

  Args:
    name: the name of a task or mixture that is registered with seqio.
    split: one of its splits.
    lengths: a dict from features to sequence lengths; None for 512 tokens each.
    number: how many rows to keep, before and after packing.
    most: how many rows to count.

  Raises:
    ValueError: there is no such task, split or feature, or the split has no rows.
  """
  provider = find(name)
  features = provider.output_features
  lengths = _checked_lengths(name, features, lengths)
  members = _members(provider, split)
  data_checks.check_vocabularies(name, features, "The task")
  data_checks.check_rates(name)
  data = _dataset(provider, lengths, split)
  keys = [key for key in features if key in data.element_spec]
  began, first = time.monotonic(), 0.0
  examples, tokens = [], {key: [] for key in keys}
  for row in tqdm.tqdm(
      data.take(most).as_numpy_iterator(), "examples", most, disable=None):
    first = first or time.monotonic() - began
    if len(examples) < number:
      examples.append(row)
    for key in keys:
      tokens[key].append(len(row[key]))
  if not examples:
    raise checks.Error(f"split {split!r} of {name!r} has no examples; check its data, "
                       "or name another split.")
  packed, fill, per_row = _pack(data.take(most), lengths, keys, features, number)
  return Findings(
      name, split, {key: lengths[key] for key in keys},
      _rates(provider, members), examples, packed,
      {key: np.array(sizes) for key, sizes in tokens.items()},
      {task.name: _member(task, lengths, split, keys, -(-most // len(members)))
       for task in members},
      fill, per_row, len(tokens[keys[0]]) < most, first,
      unknown_pieces.find(members, split, most))


def find(name: str) -> seqio.Task | seqio.Mixture:
  """Returns a registered task or mixture, or a task on files of a gin scope.

  Raises:
    ValueError: there is no such task or mixture.
  """
  if not data_checks.is_known(name) and data_checks.is_known(name.partition(".")[0]):
    return own_mixture.member(name)
  data_checks.check_task(name, "The task")
  return seqio.get_mixture_or_task(name)


def _checked_lengths(name, features, lengths):
  for key in lengths or ():
    if key not in features:
      raise checks.Error(f"--lengths names {key!r}, but the features of {name!r} are "
                         f"{', '.join(features)}; use these.")
  return {key: (lengths or {}).get(key, 512) for key in features}


def _members(provider, split):
  """Returns the tasks that have a split."""
  tasks = list(seqio.get_subtasks(provider))
  members = [task for task in tasks if split in task.splits]
  if not members:
    splits = sorted({name for task in tasks for name in task.splits})
    raise checks.Error(f"--split is {split!r}, but {provider.name!r} has "
                       f"{', '.join(splits)}; name one of them.")
  return members


def _dataset(provider, lengths, split):
  return provider.get_dataset(lengths, split, shuffle=False, seed=0, num_epochs=1)


def _member(task, lengths, split, keys, most):
  """Reads the lengths of a task's first rows."""
  made = not cuts.cuts_only(task)
  data = _dataset(task, lengths if made else None, split)
  rows = [[len(row[key]) for key in keys]
          for row in data.take(most).as_numpy_iterator()]
  return Member(dict(zip(keys, np.array(rows).T)), made)


def _rates(provider, members):
  if isinstance(provider, seqio.Task):
    return [(provider.name, 1.0)]
  return [(task.name, float(provider.get_rate(task))) for task in members]


def _pack(data, lengths, keys, features, number):
  """Returns the first packed rows, the share that is filled, and examples per row."""
  packed = transformer_dataset.pack_or_pad(
      data.map(lambda row: {key: tf.cast(row[key], tf.int32) for key in keys}),
      {key: lengths[key] for key in keys}, pack=True, feature_keys=tuple(keys),
      ensure_eos={key for key in keys if features[key].add_eos})
  rows, filled, examples, count = [], dict.fromkeys(keys, 0), 0, 0
  for row in packed.as_numpy_iterator():
    if len(rows) < number:
      rows.append(row)
    count += 1
    examples += int(row[f"{keys[-1]}_segmentation"].max())
    for key in keys:
      filled[key] += int((row[f"{key}_segmentation"] > 0).sum())
  return rows, {key: filled[key] / (count * lengths[key]) for key in keys}, (
      examples / count)


def segments(row: Mapping[str, Any], key: str) -> Iterator[np.ndarray]:
  """Yields the ids of each example in a packed row's feature, in order."""
  for number in range(1, int(row[f"{key}_segmentation"].max()) + 1):
    yield row[key][row[f"{key}_segmentation"] == number]


def share_in_words(cut: float | None, more: str = "") -> str:
  """Returns in words which share is cut; `more` follows the number."""
  return "made to length" if cut is None else f"{cut:.1%}{more}"
