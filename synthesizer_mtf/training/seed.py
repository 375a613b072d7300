"""Training with a chosen seed, and evaluation with a default seed.

Mesh TensorFlow's trainer sets no seed, so no run can be repeated. On CPUs and GPUs its
dropout draws new seeds in every process.

T5's evaluations have no seed either. Without a seed, span corruption drops other spans
each time, and losses are not comparable.
"""

from collections.abc import Callable
import contextlib
import functools
from typing import Any
import zlib

import gin
from mesh_tensorflow import placement_mesh_impl
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_internals
from synthesizer_mtf import patches
import tensorflow.compat.v1 as tf

EVALUATION = 1
_EVALUATED = "t5.models.mesh_transformer.mesh_eval_dataset_fn"


@gin.configurable(module="synthesizer_mtf")
def train_with_seed(
    estimator: tf.estimator.Estimator, *args: Any, seed: int = 1,
    train_model_fn: Callable[..., Any] = utils.train_model, **kwargs: Any) -> Any:
  """Trains as Mesh TensorFlow's `train_model` does, but with a seed.

  It replaces `train_model` as `utils.run.train_model_fn`. The order of the examples has
  its own seed, `mesh_train_dataset_fn.seed`.

  Args:
    estimator: a `CarefulEstimator`.
    *args: arguments of `train_model`.
    seed: an integer, the seed of initial variables and dropout.
    train_model_fn: the function that trains, such as
      `@train_with_attention_summaries`.
    **kwargs: arguments of `train_model`.

  Returns:
    the result of `train_model_fn`.
  """
  estimator.configure(tf_random_seed=seed)
  with random_by_name():
    return train_model_fn(estimator, *args, **kwargs)


def random_by_name() -> contextlib.AbstractContextManager[None]:
  """Derives the seeds of random numbers from names, within a `with` block."""
  return patches.wrapped("random seeds", placement_mesh_impl.PlacementMeshImpl,
                         _with_seeds_of_names)


def _with_seeds_of_names(original):
  """Derives the seed of random numbers from the name of the operation.

  TensorFlow adds the seed of the run. Equal slices have the same seed.
  """
  @functools.wraps(original)
  def random(self, shape, tf_fn, kwargs):
    slice_shape = self.slice_shape(shape)
    name = tf.get_default_graph().get_name_scope()

    def random_slice(processor):
      begin = self.slice_begin(shape, processor)
      return tf_fn(slice_shape, seed=zlib.crc32(f"{name} {begin}".encode()),
                   **kwargs)
    return self.slicewise(random_slice, self.laid_out_pnum())
  return random


@gin.config.register_finalize_hook
def bind_evaluation_seed(config: gin_internals.Config) -> dict | None:
  """Gives evaluations a seed, unless gin binds one or shuffles their examples.

  Returns:
    a dict of bindings to add.
  """
  bound = {}
  for (_, selector), values in config.items():
    if selector == _EVALUATED:
      bound.update(values)
  if "seed" in bound or bound.get("shuffle_eval_examples"):
    return None
  return {f"{_EVALUATED}.seed": EVALUATION}


def bind_missing() -> None:
  """Binds the evaluation seed if gin is not finalized."""
  found = bind_evaluation_seed(gin_internals.bindings()) or {}
  for parameter, value in found.items():
    with gin.unlock_config():
      gin.bind_parameter(parameter, value)
