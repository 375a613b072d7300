"""Restores the Estimator in a TensorFlow without it, such as 2.21.

mesh_tensorflow trains with `TPUEstimator`, which TensorFlow had until 2.15. The package
tensorflow-estimator still contains it, but reads some names and modules that TensorFlow
has deleted. `apply` restores them.

CPUs and GPUs never call the deleted modules. TPUs were not available for tests. On
TPUs, workers are not shut down gracefully, and TPU embeddings, which T5 does not use,
are missing.
"""

import importlib
import importlib.util
import sys
import types

from . import patches  # Relative, as in compat.py.

# Names that the Estimator imports from `tpu_embedding`.
_OPTIMIZERS = (
    "AdagradParameters", "AdamParameters", "FtrlParameters",
    "MomentumParameters", "ProximalAdagradParameters", "RMSPropParameters",
    "StochasticGradientDescentParameters")


def apply() -> None:
  """Restores what is missing, unless TensorFlow has an Estimator.

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
  """Whether TensorFlow's own modules, or stand-ins for them, exist."""
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
  """Lets the Estimator import the modules that it calls for Keras clusters and TPUs."""
  patches.fill("estimator_training", sys.modules, _module(
      "estimator_training",
      should_run_distribute_coordinator=lambda config: False))
  patches.fill("tpu_embedding", sys.modules, _module(
      "tpu_embedding", **{name: type(name, (), {}) for name in _OPTIMIZERS}))
  patches.fill("tpu_embedding_gradient", sys.modules,
               _module("tpu_embedding_gradient"))
  patches.fill("session_support", sys.modules, _session_support())


def _session_support():
  """A module whose hooks do nothing at the end of a TPU session."""
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
  """Makes a module with these contents, and the name that the register gives it."""
  module = types.ModuleType(patches.REGISTER[key].name)
  vars(module).update(contents)
  return module
