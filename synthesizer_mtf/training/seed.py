"""Training with a seed of one's own, and evaluations that have one by default.

Mesh TensorFlow's trainer sets none, so that no run can be repeated. And its
dropout has seeds of its own on CPUs and GPUs, drawn anew in every process.

T5's evaluations have none either: the spans that span corruption leaves out were
others each time, and the losses of two models, or of one, not those of the same
text.
"""

from collections.abc import Callable
import contextlib
import functools
from typing import Any
import zlib

import gin
from mesh_tensorflow import placement_mesh_impl
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf import patches
import tensorflow.compat.v1 as tf

EVALUATION = 1
_EVALUATED = "t5.models.mesh_transformer.mesh_eval_dataset_fn"


@gin.configurable(module="synthesizer_mtf")
def train_with_seed(
    estimator: tf.estimator.Estimator, *args: Any, seed: int = 1,
    train_model_fn: Callable[..., Any] = utils.train_model, **kwargs: Any) -> Any:
  """Trains as Mesh TensorFlow's `train_model`, from variables with a seed.

  It takes the place of `train_model` as `utils.run.train_model_fn`. The order
  of the examples has a seed of its own, `mesh_train_dataset_fn.seed`.

  Args:
    estimator: a `CarefulEstimator`.
    *args: of `train_model`.
    seed: an integer, of the initial variables and of dropout.
    train_model_fn: what trains, such as `@train_with_attention_summaries`.
    **kwargs: of `train_model`.

  Returns:
    what `train_model_fn` returns.
  """
  estimator.configure(tf_random_seed=seed)
  with random_by_name():
    return train_model_fn(estimator, *args, **kwargs)


def random_by_name() -> contextlib.AbstractContextManager[None]:
  """Lets the seeds of random numbers follow from names, in its `with` block."""
  return patches.wrapped("random seeds", placement_mesh_impl.PlacementMeshImpl,
                         _with_seeds_of_names)


def _with_seeds_of_names(original):
  """Lets the seed of random numbers follow from the name of the operation.

  TensorFlow adds the seed of the run. Slices that shall be equal have one seed.
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
def bind_evaluation_seed(config: dict) -> dict | None:
  """Gives evaluations a seed, unless gin binds one or they shall differ.

  Args:
    config: gin's parsed configuration.

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
  """Does the same where gin is not finalized."""
  for parameter, value in (bind_evaluation_seed(gin_files.bindings()) or {}).items():
    with gin.unlock_config():
      gin.bind_parameter(parameter, value)
