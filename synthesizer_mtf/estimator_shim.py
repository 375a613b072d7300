"""Restores the Estimator in a TensorFlow without it, such as 2.21.

mesh_tensorflow trains with `TPUEstimator`, which TensorFlow had until 2.15. The package
tensorflow-estimator still contains it. A finder lets Python import the modules that
TensorFlow has deleted: those that mesh_tensorflow and t5 import come from that package,
as they did in TensorFlow, and those that the package imports are stand-ins.

CPUs and GPUs never call the stand-ins. TPUs were not available for tests. On TPUs,
workers are not shut down gracefully, and TPU embeddings, which T5 does not use, are
missing.
"""

from collections.abc import Callable
import importlib
import importlib.abc
import importlib.util
import sys
import types
from typing import Any

from . import patches  # Relative, as in compat.py.

_PARTS = "tensorflow_estimator.python.estimator.tpu"
_MOVED = {
    "tensorflow.estimator": "tensorflow_estimator._api.v2.estimator",
    "tensorflow.compat.v1.estimator": "tensorflow_estimator._api.v1.estimator",
    "tensorflow.python.tpu.tpu_config": f"{_PARTS}.tpu_config",
    "tensorflow.python.tpu.tpu_estimator": f"{_PARTS}.tpu_estimator",
}
# Names that the Estimator imports from `tpu_embedding`.
_OPTIMIZERS = (
    "AdagradParameters", "AdamParameters", "FtrlParameters",
    "MomentumParameters", "ProximalAdagradParameters", "RMSPropParameters",
    "StochasticGradientDescentParameters")


def apply() -> None:
  """Restores what is missing, unless TensorFlow has an Estimator.

  A second call changes nothing.
  """
  if _has_estimator():
    return
  patches.append("estimator's modules", sys, _Finder())
  export = types.ModuleType(patches.REGISTER["estimator_export"].name)
  vars(export)["estimator_export"] = _export
  patches.fill("estimator_export", sys.modules, export)
  for name in _MOVED:  # An import makes a module an attribute of its package, too.
    importlib.import_module(name)


def _has_estimator():
  """Whether TensorFlow's own modules, or stand-ins for them, exist."""
  name = "tensorflow.python.tpu.tpu_estimator"
  return name in sys.modules or importlib.util.find_spec(name) is not None


def _export(*names, v1=None):
  """Stands in for a decorator that notes under which names TensorFlow has a symbol.

  The modules of `_MOVED` have these names without it.
  """
  del names, v1
  return lambda symbol: symbol


def _session_support() -> dict[str, Any]:
  """Hooks that do nothing at the end of a TPU session."""
  import tensorflow.compat.v1 as tf

  def hook(*args, **kwargs):
    del args, kwargs
    return tf.train.SessionRunHook()

  return dict.fromkeys(
      ("GracefulShutdownHook", "ResetComputation", "ShutdownAllWorkers",
       "ShutdownLameWorkers"), hook)


# What the Estimator reads of the deleted modules that it imports. The first says that
# Keras' coordinator does not run the training.
_STAND_INS: dict[str, Callable[[], dict[str, Any]]] = {
    "tensorflow.python.distribute.estimator_training": lambda: {
        "should_run_distribute_coordinator": lambda config: False},
    "tensorflow.python.tpu.session_support": _session_support,
    "tensorflow.python.tpu.tpu_embedding": lambda: {
        name: type(name, (), {}) for name in _OPTIMIZERS},
    "tensorflow.python.tpu.tpu_embedding_gradient": dict,
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds the deleted modules, as the last of Python's finders."""

  def find_spec(self, fullname, path=None, target=None):
    """Finds a deleted module."""
    del path, target
    if fullname in _MOVED or fullname in _STAND_INS:
      return importlib.util.spec_from_loader(fullname, self)
    return None

  def exec_module(self, module):
    """Fills a module with what it contained."""
    name = module.__name__
    if name in _STAND_INS:
      contents = _STAND_INS[name]()
    else:
      contents = {key: value for key, value in vars(
          importlib.import_module(_MOVED[name])).items() if not key.startswith("__")}
    vars(module).update(contents)
