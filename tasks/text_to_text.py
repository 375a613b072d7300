"""Makes a task with inputs and targets from a TFDS data set."""

from collections.abc import Callable
from typing import Any

import seqio
from synthesizer_mtf.tasks import cut_examples
from synthesizer_mtf.tasks import task
from synthesizer_mtf.tasks import tfds_source
from synthesizer_mtf.tasks import vocabulary
import tensorflow.compat.v2 as tf


def add(
    name: str, tfds_name: str,
    preprocessor: Callable[[tf.data.Dataset], tf.data.Dataset],
    metric_fns: list[seqio.MetricFnCallable],
    postprocess_fn: Callable[..., Any] | None = None,
    source_cls: type[seqio.TfdsDataSource] = tfds_source.PreparedDataSource,
) -> None:
  """Registers a task with the preprocessing steps of T5's supervised tasks.

  Inputs and targets are cut if they are too long. They end in an end of sequence.

  Args:
    name: the name of the task.
    tfds_name: the name of the data set, with its configuration and version.
    preprocessor: a function from a tf.data.Dataset of the data set's features
      to one of strings, "inputs" and "targets".
    metric_fns: a list of functions from (targets, predictions) to a dict.
    postprocess_fn: a function from decoded strings to targets and predictions.
    source_cls: a class of sources, called with `tfds_name`.
  """
  task.add(
      name,
      source=source_cls(tfds_name),
      preprocessors=[
          preprocessor,
          seqio.preprocessors.tokenize,
          seqio.CacheDatasetPlaceholder(),
          cut_examples.report,
          seqio.preprocessors.append_eos_after_trim,
      ],
      postprocess_fn=postprocess_fn,
      metric_fns=metric_fns,
      output_features=vocabulary.features())
