"""Alpha, the weights of the parts of a mixture, over the steps of training."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import os
import re

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.attention_plots import reader
from synthesizer_mtf.training import checkpoints
from synthesizer_mtf.training import summaries
import tensorflow.compat.v1 as tf

_TAG = re.compile(r"attention/(?P<place>.+)/alpha/(?P<part>[^/]+)")

# From (name of a layer, name of a part) to {step: mean over the heads}.
Means = dict[tuple[str, str], dict[int, float]]


@dataclasses.dataclass
class Course:
  """Alpha of one layer over the steps of training.

  Attributes:
    steps: the steps of the checkpoints.
    alpha: <float32>[steps, heads, parts]
    means: a dict from each part to a dict from steps to means over the heads.
      `train_with_attention_summaries` writes these means; without it, `means` is empty.
  """
  steps: list[int]
  alpha: np.ndarray
  means: list[dict[int, float]]


def read(model: reader.Model, model_dir: str,
         trained: dict[str, reader.Attention],
         progress: Callable[[Iterable], Iterable] = iter) -> dict[str, Course]:
  """Reads all checkpoints, and the summaries if there are any.

  Args:
    model: a `reader.Model`. The last checkpoint remains restored.
    model_dir: the folder of the checkpoints and the summaries.
    trained: a dict from names of layers to `reader.Attention`.
    progress: a function that wraps the iterable of checkpoints.

  Returns:
    a dict from the names of mixtures to `Course`.

  Raises:
    ValueError: a checkpoint is damaged, or of another model.
  """
  shapes = {name: attention.alpha.shape for name, attention in trained.items()
            if attention.alpha is not None}
  if not shapes:
    return {}
  found = checkpoints.find(model_dir)
  values = [_alphas(model, path, shapes) for path in progress(found)]
  means = _read_means(model_dir)
  return {name: Course(
      list(map(checkpoints.step_of, found)),
      np.stack([alphas[name] for alphas in values]),
      [means.get((name, part), {})
       for part in summaries.unique_names(model.layers[name].parts)])
          for name in shapes}


def _alphas(model, path, shapes):
  try:
    checkpoints.check(path)
  except checkpoints.DamagedError as error:
    raise checks.Error(checkpoints.explain_damage(path, error)) from error
  model.restore(path)
  # A weight without heads applies to all heads of the layer.
  return {name: np.broadcast_to(alpha, shapes[name])
          for name, alpha in model.alphas(shapes).items()}


def _read_means(model_dir: str) -> Means:
  """Returns the scalars in TensorBoard's files; a later file wins."""
  means = {}
  for path in sorted(tf.io.gfile.glob(
      os.path.join(model_dir, "events.out.tfevents.*"))):
    for event in _events(path):
      for value in event.summary.value:
        match = _TAG.fullmatch(value.tag)
        if match:
          key = reader.short_name(match["place"]), match["part"]
          means.setdefault(key, {})[event.step] = value.simple_value
  return means


def _events(path: str) -> Iterator[tf.Event]:
  """Yields the events of a file; stops at an incomplete event."""
  try:
    yield from tf.train.summary_iterator(path)
  except tf.errors.DataLossError:
    return
