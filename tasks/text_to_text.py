"""Makes a task that reads and writes text."""

from collections.abc import Callable
from typing import Any

import seqio
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import tfds_source
from synthesizer_mtf.tasks import vocabulary
import tensorflow.compat.v2 as tf


def add(
    name: str, source: str | seqio.DataSource,
    *read: Callable[[tf.data.Dataset], tf.data.Dataset], **kwargs: Any,
) -> None:
  """Registers a task with the preprocessing steps of T5's supervised tasks.

  Args:
    name: the name of the task.
    source: a data source, or the name of a TFDS data set, with its configuration and
      version.
    *read: preprocessors that make strings, "inputs" and "targets", of the source's
      examples.
    **kwargs: what `task.add` takes, in place of these steps and of T5's features.
  """
  if isinstance(source, str):
    source = tfds_source.PreparedDataSource(source)
  task.add(name, **{
      "source": source, "preprocessors": [*read, *task.TOKENIZE],
      "output_features": vocabulary.features(), **kwargs})
