"""Predictions of many examples: one graph for all checkpoints, texts sorted by length.

The Estimator builds a graph for each call, and an evaluation calls it for each
checkpoint. Here all checkpoints use the same graph and session. The decoding of a batch
ends when all its examples have ended, so examples of similar lengths share a batch. The
predictions keep the order of the data.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import itertools
from typing import Any

import gin
import numpy as np
from synthesizer_mtf.trainer.checkpoints import matching
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import session
from synthesizer_mtf.trainer.watching import progress
import tensorflow.compat.v1 as tf
import tensorflow_datasets as tfds
from tqdm import auto as tqdm

# The number of batches that are sorted together, and predicted before any is yielded.
# So many have texts of all lengths, and 256 batches of 16 texts of 512 tokens take only
# 8 MiB.
_SORTED = 256
_UNSEEN = 1  # Seconds of a prediction that shows no bar.

Batch = dict[str, np.ndarray]


class Graph(session.Session):
  """A graph that predicts with one checkpoint after another."""

  def __init__(self, estimator: Any, spec: dict[str, tf.TypeSpec]) -> None:
    """Builds the graph of an estimator for batches with these specs of features."""
    self._identity, self._optimizer = _identity(spec), estimator.optimizer
    with tf.Graph().as_default() as graph:
      tf.set_random_seed(estimator.config.tf_random_seed)
      estimator._create_and_assert_global_step(graph)
      self._features = {name: tf.placeholder(of.dtype, of.shape, name)
                        for name, of in spec.items()}
      made = estimator._call_model_fn(
          dict(self._features), None, tf.estimator.ModeKeys.PREDICT, estimator.config)
      self._predictions = made.predictions
      scaffold = made.scaffold or tf.train.Scaffold()
      scaffold.finalize()
      self._saver = scaffold.saver
      super().__init__(
          {v.op.name: v for v in tf.global_variables()}, scaffold.local_init_op,
          estimator.config.master, estimator._session_config)

  def serves(self, spec: dict[str, tf.TypeSpec]) -> bool:
    """Whether the graph fits batches of this spec and gin's current bindings."""
    return self._identity == _identity(spec)

  def _check(self, path, names):
    matching.check_variables(path, self.variables.values(), self._optimizer)

  def _load(self, path, names):
    with self._session.graph.as_default():
      self._saver.restore(self._session, path)

  def predict(self, batch: Batch, keys: Iterable[str] | None) -> Batch:
    """Returns the predictions for a batch, by name; only those of `keys` if given."""
    wanted = {name: tensor for name, tensor in self._predictions.items()
              if not keys or name in keys}
    return self.run(
        wanted, {self._features[name]: batch[name] for name in self._features})


def _identity(spec):
  return answers.asked(), gin.config_str(), {
      name: (of.dtype, of.shape.as_list()) for name, of in spec.items()}


def examples(graph: Graph, batches: Iterable[Batch], keys: Iterable[str] | None,
             by_length: bool = True, number: int | None = None) -> Iterator[Batch]:
  """Yields the predictions for each example, in the order of the data.

  Args:
    graph: the graph that predicts, with a restored checkpoint.
    batches: batches of features, of equal size.
    keys: the names of the predictions to return; None for all.
    by_length: whether examples of similar lengths share a batch; else the batches stay.
    number: the number of examples that are no padding; None if padding has no tokens.
  """
  batches, begin = iter(batches), 0
  with tqdm.tqdm(desc="predict", unit=" texts", total=0, delay=_UNSEEN,
                 mininterval=progress.period_of_bar()) as bar:
    while taken := [*itertools.islice(batches, _SORTED)]:
      together = {name: np.concatenate([batch[name] for batch in taken])
                  for name in taken[0]}
      lengths = _lengths(together)
      order = (np.argsort(lengths, kind="stable") if by_length else
               np.arange(len(lengths)))
      is_text = lengths > 0
      if number is not None:
        is_text = np.arange(begin, begin + len(lengths)) < number
      begin += len(lengths)
      bar.total += int(np.sum(is_text))
      made = []
      for rows in np.split(order, np.cumsum([*map(_size, taken)])[:-1]):
        made.append(graph.predict({k: v[rows] for k, v in together.items()}, keys))
        bar.update(int(np.sum(is_text[rows])))
      for example, counts in zip(_in_order(made, order), is_text):
        if not counts:
          example.pop(decode_length.REACHED, None)
        yield example


def _size(batch):
  return len(next(iter(batch.values())))


def _lengths(features):
  """The number of tokens of each example: ids that are not 0."""
  return sum(np.count_nonzero(ids.reshape(len(ids), -1), axis=1)
             for ids in features.values())


def _in_order(made, order):
  """Yields the predictions in the order of the data; `order` has their positions."""
  together = {name: np.concatenate([batch[name] for batch in made])
              for name in made[0]}
  for index in np.argsort(order):
    yield {name: values[index] for name, values in together.items()}


def batches(data: tf.data.Dataset) -> Iterator[Batch]:
  """The batches of a dataset that is in the default graph."""
  return iter(tfds.as_numpy(data))
