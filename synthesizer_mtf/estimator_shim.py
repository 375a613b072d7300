"""Gives the Estimator back to a TensorFlow that has none, such as 2.21.

mesh_tensorflow trains with `TPUEstimator`, which TensorFlow had until 2.15. The
package tensorflow-estimator still holds all of it, and needs from TensorFlow
only what `apply` puts back: some names, and modules that have been deleted.

On CPUs and GPUs nothing of the deleted modules is called. On TPUs, of which
none was at hand, workers are not shut down gracefully, and embeddings on the
TPU, which T5 does not use, are gone.
"""

import importlib
import importlib.util
import sys
import types

from synthesizer_mtf import patches

# What the Estimator imports from `tpu_embedding` by name.
_OPTIMIZERS = (
    "AdagradParameters", "AdamParameters", "FtrlParameters",
    "MomentumParameters", "ProximalAdagradParameters", "RMSPropParameters",
    "StochasticGradientDescentParameters")


def apply() -> None:
  """Puts back what is missing; does nothing where TensorFlow has an Estimator.

  A second call changes nothing.
  """
  import tensorflow as tf
  if _has_estimator():
    return
  _restore_export_names()
  _stand_in_for_deleted_modules()
  v1 = importlib.import_module("tensorflow_estimator._api.v1.estimator")
  v2 = importlib.import_module("tensorflow_estimator._api.v2.estimator")
  patches.assign("tf.compat.v1.estimator", tf.compat.v1, v1)
  patches.assign("tf.estimator", tf, v2)
  _attach_tpu_modules()


def _has_estimator():
  """Whether TensorFlow's own modules, or stand-ins for them, are there."""
  name = "tensorflow.python.tpu.tpu_estimator"
  return name in sys.modules or importlib.util.find_spec(name) is not None


def _restore_export_names():
  """Lets the Estimator's decorators keep the names that they export."""
  from tensorflow.python.util import tf_export
  patches.assign("ESTIMATOR_API_NAME", tf_export, "estimator")
  attributes = type(tf_export.API_ATTRS[tf_export.TENSORFLOW_API_NAME])
  patches.fill("API_ATTRS", tf_export.API_ATTRS, attributes(
      "_estimator_api_names", "_estimator_api_constants"))
  patches.fill("API_ATTRS_V1", tf_export.API_ATTRS_V1, attributes(
      "_estimator_api_names_v1", "_estimator_api_constants_v1"))


def _stand_in_for_deleted_modules():
  """Lets the Estimator import what it calls for clusters of Keras and TPUs."""
  patches.fill("estimator_training", sys.modules, _module(
      "estimator_training",
      should_run_distribute_coordinator=lambda config: False))
  patches.fill("tpu_embedding", sys.modules, _module(
      "tpu_embedding", **{name: type(name, (), {}) for name in _OPTIMIZERS}))
  patches.fill("tpu_embedding_gradient", sys.modules,
               _module("tpu_embedding_gradient"))
  patches.fill("session_support", sys.modules, _session_support())


def _session_support():
  """A module whose hooks do nothing when a TPU is left."""
  import tensorflow.compat.v1 as tf

  def hook(*args, **kwargs):
    del args, kwargs
    return tf.train.SessionRunHook()

  names = ("GracefulShutdownHook", "ResetComputation", "ShutdownAllWorkers",
           "ShutdownLameWorkers")
  return _module("session_support", **dict.fromkeys(names, hook))


def _attach_tpu_modules():
  """Puts two modules of the Estimator where mesh_tensorflow imports them."""
  prefix = "tensorflow_estimator.python.estimator.tpu."
  patches.fill("tpu_config", sys.modules,
               importlib.import_module(prefix + "tpu_config"))
  patches.fill("tpu_estimator", sys.modules,
               importlib.import_module(prefix + "tpu_estimator"))


def _module(key, **contents):
  """A module of the name that the register gives, with these contents."""
  module = types.ModuleType(patches.REGISTER[key].name)
  vars(module).update(contents)
  return module
