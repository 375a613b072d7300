"""Training with a seed of one's own.

Mesh TensorFlow's trainer sets none, so that no run can be repeated.
"""

from collections.abc import Callable
from typing import Any

import gin
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import patches
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
def train_with_seed(
    estimator: tf.estimator.Estimator, *args: Any, seed: int = 1,
    train_model_fn: Callable[..., Any] = utils.train_model, **kwargs: Any) -> Any:
  """Trains as Mesh TensorFlow's `train_model`, from variables with a seed.

  It takes the place of `train_model` as `utils.run.train_model_fn`. The order
  of the examples has a seed of its own, `mesh_train_dataset_fn.seed`.

  Args:
    estimator: a `TPUEstimator`.
    *args: of `train_model`.
    seed: an integer, of the initial variables and of dropout.
    train_model_fn: what trains, such as `@train_with_attention_summaries`.
    **kwargs: of `train_model`.

  Returns:
    what `train_model_fn` returns.
  """
  patches.assign(
      "seed", estimator, estimator.config.replace(tf_random_seed=seed))
  return train_model_fn(estimator, *args, **kwargs)
