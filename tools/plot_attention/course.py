"""Alpha, the weights of the parts of a mixture, over the steps of training."""

import collections
import contextlib
import dataclasses
import os
import re

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.model import summaries
from synthesizer_mtf.trainer.watching import results
import tensorflow.compat.v1 as tf
import tqdm

_TAG = re.compile(r"attention/(?P<place>.+)/alpha/(?P<part>[^/]+)")


@dataclasses.dataclass
class Course:
  """Alpha of one layer over the steps of training.

  Attributes:
    steps: the steps of the checkpoints.
    alpha: <float32>[steps, heads, parts]
    means: for each part, a dict from steps to means over the heads.
      `train_with_attention_summaries` writes these means; without it, dicts are empty.
  """
  steps: list[int]
  alpha: np.ndarray
  means: list[dict[int, float]]


def read(model: reader.Model, model_dir: str,
         trained: dict[str, reader.Attention]) -> dict[str, Course]:
  """Reads all checkpoints, and the summaries if there are any.

  Args:
    model: a `reader.Model`. The last checkpoint remains restored.
    model_dir: the folder of the checkpoints and the summaries.
    trained: a dict from names of layers to `reader.Attention`.

  Returns:
    a dict from the names of mixtures to `Course`.

  Raises:
    ValueError: a checkpoint is damaged, or of another model.
  """
  shapes = {name: attention.alpha.shape for name, attention in trained.items()
            if attention.alpha is not None}
  if not shapes:
    return {}
  paths = branches.branch(model_dir)
  values = [_alphas(model, path, shapes)
            for path in tqdm.tqdm(paths, "Reading", unit=" checkpoints")]
  means = _read_means(model_dir)
  return {name: Course(
      list(map(complete.saved_step, paths)),
      np.stack([alphas[name] for alphas in values]),
      [means.get((name, part), {})
       for part in summaries.unique_names(model.layers[name].parts)])
          for name in shapes}


def _alphas(model, path, shapes):
  try:
    complete.check(path)
  except complete.DamagedError as error:
    raise checks.Error(complete.explain_damage(path, error)) from error
  model.session.restore(path)
  # A weight without heads applies to all heads of the layer.
  return {name: np.broadcast_to(alpha, shapes[name])
          for name, alpha in model.alphas(shapes).items()}


def _read_means(model_dir):
  """Returns {(layer, part): {step: mean over the heads}}; a later file wins."""
  means = collections.defaultdict(dict)
  for path in sorted(tf.io.gfile.glob(
      os.path.join(model_dir, "events.out.tfevents.*"))):
    # A process may have been stopped while it wrote the last event.
    with contextlib.suppress(tf.errors.DataLossError):
      for tag, step, value in results.scalars(path):
        if match := _TAG.fullmatch(tag):
          means[layer_names.short_name(match["place"]), match["part"]][step] = value
  return means
