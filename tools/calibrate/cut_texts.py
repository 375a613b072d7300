"""How many texts have more tokens than the model's sequences, so that they are cut."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Mapping
import itertools
from typing import Any

import numpy as np
import seqio
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import cuts
import tensorflow.compat.v1 as tf


def sentence(name: str, split: str, lengths: Mapping[str, int], number: int,
             seed: int) -> str | None:
  """Says how many of the first texts are cut, in the order of the training.

  Args:
    name: a task or mixture.
    split: one of its splits.
    lengths: the lengths of the model's sequences, by the names of the features.
    number: the texts to count.
    seed: the seed of their order.

  Returns:
    a sentence; None if no text is cut, or if the task itself makes texts of the
    model's lengths, as span corruption does.
  """
  task = seqio.get_mixture_or_task(name)
  members = [member for member in seqio.get_subtasks(task) if split in member.splits]
  made = [member.name for member in members if not cuts.cuts_only(member)]
  if made:
    return None if len(made) == len(members) else (
        f"Texts of {name} with more tokens than the model's sequences are cut. They "
        f"are not counted, as {made[0]} makes texts of these lengths.")
  options = {key: gin_files.bound(f"mesh_train_dataset_fn.{key}", default)
             for key, default in (("shuffle", True), ("use_cached", False))}
  cuts_ = [
      {key: len(row[key]) > most for key, most in lengths.items() if key in row}
      for row in itertools.islice(rows(lambda: task.get_dataset(
          None, split=split, seed=seed, num_epochs=None, **options)), number)]
  cut = sum(any(row.values()) for row in cuts_)
  if not cut:
    return None
  counts = ", ".join(
      f"{sum(row.get(key, False) for row in cuts_)} with {key} over {most}"
      for key, most in lengths.items())
  return (f"{cut} of the first {len(cuts_)} texts of {name} ({cut / len(cuts_):.1%}) "
          f"have more tokens than the model's sequences and are cut ({counts}), so the "
          "mean is not that of whole texts; see `utils.run.sequence_length`.")


def rows(make: Callable[[], tf.data.Dataset]
         ) -> Generator[dict[str, np.ndarray], None, None]:
  """Yields the elements of a data set, as NumPy arrays.

  Args:
    make: a function that makes the data set, in a graph of its own.
  """
  graph = tf.Graph()
  with graph.as_default():
    iterator = tf.data.make_initializable_iterator(make())
    row: Any = iterator.get_next()
  # No graph or session is the default one while the caller has a row.
  session = tf.Session(graph=graph)
  try:
    session.run(iterator.initializer)
    while True:
      try:
        values = session.run(row)
      except tf.errors.OutOfRangeError:
        return
      yield values
  finally:
    session.close()
