r"""What mesh_tensorflow 0.1.21 and t5 0.9.4 miss on TensorFlow 2.15.

`import synthesizer_mtf` applies it before it imports either of them. Each patch
looks first whether it is needed, so an older TensorFlow, or a machine with
torch, keeps its own.

1. mesh_tensorflow calls `ops.register_tensor_conversion_function`, which moved
   to `tensor_conversion_registry`.
2. `t5.models` imports `t5.models.hf_model`, which imports torch; the Mesh
   TensorFlow side of t5 uses neither.
3. mesh_tensorflow's `decode_from_file` hands bytes to `write_lines_to_file`,
   which writes `b'M\xc3\xbcnchen'` in the place of `München`.
4. mesh_tensorflow's `export_model` ends the inputs of a language model (model
   type `lm`) with an end of sequence, after which the exported model goes on;
   mode `infer` continues the inputs themselves.

Two conveniences go with them. Both are environment variables, and one that the
user has set stays: TensorFlow's start-up notices are silenced, and its cloud
storage does not look for Google's metadata server where there is none.
"""

import functools
import importlib.machinery
import importlib.util
import os
import sys
import warnings

_HF_MODEL = "t5.models.hf_model"


def apply():
  """Applies all of the above; a second call changes nothing."""
  _quiet_imports()
  _skip_metadata_server()
  _restore_register_tensor_conversion_function()
  _stand_in_for_hf_model()
  _write_decoded_bytes_as_text()
  _export_language_models_that_continue_their_inputs()


def _quiet_imports():
  """Drops C++ notices below errors, and what setuptools says of t5's imports."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  warnings.filterwarnings("ignore", message="pkg_resources is deprecated")


def _skip_metadata_server(product="/sys/class/dmi/id/product_name"):
  """Tells TensorFlow not to ask Google's metadata server for credentials.

  Without an answer it retries for many seconds at each look into cloud storage,
  and TFDS looks there for every data set that is not prepared yet. On Google's
  own machines the credentials come from there, so there it still asks.

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
  ops.register_tensor_conversion_function = (
      tensor_conversion_registry.register_tensor_conversion_function)


def _stand_in_for_hf_model():
  """Lets `t5.models` be imported without torch."""
  if _HF_MODEL in sys.modules or importlib.util.find_spec("torch"):
    return
  module = importlib.util.module_from_spec(
      importlib.machinery.ModuleSpec(_HF_MODEL, loader=None))
  module.HfPyTorchModel = _HfPyTorchModel
  sys.modules[_HF_MODEL] = module


class _HfPyTorchModel:
  """Takes the place of t5's model for PyTorch, and cannot be made."""

  def __init__(self, *args, **kwargs):
    del args, kwargs
    raise ImportError(
        "t5.models.HfPyTorchModel needs torch, which is not installed: install "
        "torch, or use t5.models.MtfModel.")


def _write_decoded_bytes_as_text():
  """Lets mode `infer` write its predictions as text."""
  from mesh_tensorflow.transformer import utils
  original = utils.write_lines_to_file
  if hasattr(original, "__wrapped__"):
    return

  @functools.wraps(original)
  def write_lines_to_file(lines, filename):
    original([line.decode("utf-8", "replace") if isinstance(line, bytes)
              else line for line in lines], filename)

  utils.write_lines_to_file = write_lines_to_file


def _export_language_models_that_continue_their_inputs():
  """Lets mode `export_infer` encode inputs as mode `infer` does."""
  from mesh_tensorflow.transformer import dataset as transformer_dataset
  from mesh_tensorflow.transformer import utils
  original = utils.export_model
  if hasattr(original, "__wrapped__"):
    return
  encode = transformer_dataset.encode_all_features

  def encode_without_end(dataset, vocabulary):
    return encode(dataset, vocabulary).map(
        lambda features: {key: ids[:-1] for key, ids in features.items()})

  @functools.wraps(original)
  def export_model(estimator, export_dir, vocabulary, sequence_length,
                   model_type, eval_with_score=False, batch_size=1,
                   checkpoint_path=None):
    if model_type == "lm" and not eval_with_score:
      transformer_dataset.encode_all_features = encode_without_end
    try:
      return original(estimator, export_dir, vocabulary, sequence_length,
                      model_type, eval_with_score, batch_size, checkpoint_path)
    finally:
      transformer_dataset.encode_all_features = encode

  utils.export_model = export_model
