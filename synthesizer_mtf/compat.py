r"""Patches mesh_tensorflow 0.1.21 and t5 0.9.4 for TensorFlow 2.15 and 2.21.

`import synthesizer_mtf` applies these patches first. Patches for a newer TensorFlow, or
for a machine without torch, first check whether they are needed. `patches.py` says what
each patch changes, why, and until when.

This module also sets three environment variables, unless the user has set them. One
silences TensorFlow's start-up notices, as far as TensorFlow respects it. One keeps
TensorFlow's cloud storage from looking for Google's metadata server on machines without
one. One lets oneDNN compute the products on every x86 processor. By default TensorFlow
uses oneDNN only on processors with AVX512-VNNI or newer instructions. It removes a
fourth variable, MPLBACKEND, if matplotlib does not know its value.
"""

import functools
import importlib.machinery
import importlib.util
import os
import platform
import sys
import warnings

# Relative imports, because synthesizer_mtf_start.py imports these modules without their
# package.
from . import estimator_shim
from . import patches

_HF_MODEL = "t5.models.hf_model"


def apply() -> None:
  """Applies all patches; a second call changes nothing."""
  _quiet_imports()
  _compute_by_onednn()
  _skip_metadata_server()
  _forget_unknown_backend()
  make_importable()
  from mesh_tensorflow.transformer import utils
  patches.wrap("write_lines_to_file", utils, _decoding_lines)


def _forget_unknown_backend():
  """Removes a backend that matplotlib does not know, which would end the import.

  Keras imports matplotlib with TensorFlow, and tools draw into files.
  """
  name = os.environ.get("MPLBACKEND", "")
  if not name or "matplotlib" in sys.modules or (
      not importlib.util.find_spec("matplotlib")):
    return
  os.environ.pop("MPLBACKEND")
  matplotlib = importlib.import_module("matplotlib")
  try:
    matplotlib.rcParams.update(backend=name)  # As its import does.
    os.environ.update(MPLBACKEND=name)
  except ValueError:
    warnings.warn(f"MPLBACKEND is {name!r}, which matplotlib does not know, and is "
                  "ignored; unset it, or name another.", stacklevel=2)


def make_importable() -> None:
  """Lets mesh_tensorflow and t5.models be imported, and changes nothing else.

  Where this package is installed, Python calls it before any program imports
  mesh_tensorflow; synthesizer_mtf_start.py says how. A second call changes nothing.
  """
  _restore_register_tensor_conversion_function()
  estimator_shim.apply()
  _stand_in_for_hf_model()


def _quiet_imports():
  """Silences C++ notices below errors, and warnings about imports of t5 and TFDS."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
  # In notebooks without ipywidgets.
  warnings.filterwarnings("ignore", message="IProgress not found")


def _compute_by_onednn():
  """Turns oneDNN on for x86 processors; docs/speed.md says how much time it saves."""
  if platform.machine().lower() in ("x86_64", "amd64"):
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def _skip_metadata_server(product="/sys/class/dmi/id/product_name"):
  """Tells TensorFlow not to ask Google's metadata server for credentials.

  Without an answer, TensorFlow retries for many seconds at each access to cloud
  storage. TFDS makes such an access for every data set that is not prepared yet.
  Google's own machines get their credentials from this server, so they still ask it.

  Args:
    product: path of the file where Linux keeps the machine's product name.
  """
  try:
    with open(product, encoding="utf-8", errors="replace") as f:
      if "Google" in f.read():
        return
  except OSError:
    pass  # No such file outside Linux, and in some containers.
  os.environ.setdefault("NO_GCE_CHECK", "true")


def _restore_register_tensor_conversion_function():
  """Puts the function back where mesh_tensorflow looks for it."""
  from tensorflow.python.framework import ops
  if hasattr(ops, "register_tensor_conversion_function"):
    return
  from tensorflow.python.framework import tensor_conversion_registry
  patches.assign(
      "register_tensor_conversion_function", ops,
      tensor_conversion_registry.register_tensor_conversion_function)


def _stand_in_for_hf_model():
  """Lets `t5.models` be imported without torch."""
  if _HF_MODEL in sys.modules or importlib.util.find_spec("torch"):
    return
  module = importlib.util.module_from_spec(
      importlib.machinery.ModuleSpec(_HF_MODEL, loader=None))
  vars(module)["HfPyTorchModel"] = _HfPyTorchModel
  patches.fill("hf_model", sys.modules, module)


class _HfPyTorchModel:
  """Replaces t5's PyTorch model; raises when it is constructed."""

  def __init__(self, *args, **kwargs):
    del args, kwargs
    raise ImportError(
        "t5.models.HfPyTorchModel needs torch, which is not installed: install "
        "torch, or use t5.models.MtfModel.")


def _decoding_lines(write_lines_to_file):
  """Lets mode `infer` write its predictions as text."""
  @functools.wraps(write_lines_to_file)
  def wrapped(lines, filename):
    write_lines_to_file(
        [line.decode("utf-8", "replace") if isinstance(line, bytes) else line
         for line in lines], filename)

  return wrapped
