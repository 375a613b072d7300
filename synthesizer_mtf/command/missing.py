"""What a command was not given and has no honest default: nothing starts without."""

from collections.abc import Sequence

from absl import flags
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.training import checkpoints
import tensorflow.compat.v1 as tf

_TASK = "--gin_param=\"MIXTURE_NAME = 'TASK'\", with the name of a task"
_PLACEHOLDER = "glue_v002_proportional"  # "Override these values", says T5's file.
# Those of Mesh TensorFlow, in every model file of T5's.
_SIZES = {"num_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 8, "d_kv": 128}


def check_words(argv: Sequence[str]) -> None:
  """Checks what stands beside the gin files: that a folder is named, and no other word.

  Args:
    argv: the command, without its flags.

  Raises:
    ValueError: a word is no flag, or --model_dir is missing.
  """
  for word in argv[1:]:
    flag = "--gin_file=" if word.endswith(".gin") else (
        "--gin_param=" if "=" in word else "--FLAG=")
    raise checks.Error(f"{word!r} is no flag; write {flag}{word}, or leave it out.")
  if flags.FLAGS["model_dir"].using_default_value:
    raise checks.Error("--model_dir is missing; name the folder of the model, as in "
                       "--model_dir=models/r+v, which need not exist yet.")


def check(model_dir: str) -> None:
  """Checks that data, a mesh and a model were named, once gin is parsed.

  Args:
    model_dir: where the model is. One that has a checkpoint may go on.

  Raises:
    ValueError: the first that is missing, and the gin file that has it.
  """
  _check_mesh()
  if gin_files.bound("utils.run.mode", "train") != "train":
    return
  if not _is_bound("utils.run.train_dataset_fn"):
    raise checks.Error("There are no data to train on; add --gin_file=dataset.gin and "
                       f"{_TASK}.")
  if not checkpoints.find(model_dir):
    _check_task()
    _check_model()


def _is_bound(parameter):
  try:
    gin.query_parameter(parameter)
  except ValueError:
    return False
  return True


def _check_mesh():
  try:
    shape = gin.query_parameter("utils.run.mesh_shape")
  except ValueError:
    shape = None
  if "tpu_mesh_shape" not in str(shape) or _is_bound(
      "utils.tpu_mesh_shape.tpu_topology"):
    return
  if flags.FLAGS.tpu:
    raise checks.Error("--tpu is given, but `utils.tpu_mesh_shape.tpu_topology` is "
                       "missing; bind it, as in '2x2' for eight cores.")
  raise checks.Error("It is not said what computes; add --gin_file=cpu.gin after the "
                     "model file, or gpu.gin, or give --tpu and a topology.")


def _check_task():
  """T5's dataset.gin has a task that is to be overridden."""
  given = [*(flags.FLAGS.gin_param or ()), *map(_text, flags.FLAGS.gin_file or ())]
  if gin_files.bound("%MIXTURE_NAME", None) == _PLACEHOLDER and not any(
      _PLACEHOLDER in text for text in given):
    raise checks.Error(f"`MIXTURE_NAME` is missing; add {_TASK}, such as "
                       "'synth_text_pairs' for pairs of your own.")


def _text(path):
  """What a file of the user's says; one of a package is found elsewhere."""
  if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
    return ""
  with tf.io.gfile.GFile(path) as f:
    return f.read()


def _check_model():
  """All model files bind the kind of model, or other sizes than Mesh TensorFlow's."""
  sizes = {name: gin_files.bound(f"%{name}", None) for name in _SIZES}
  if sizes == _SIZES and not _is_bound("utils.run.model_type"):
    raise checks.Error(
        "There is no model file, and Mesh TensorFlow's own sizes are 206 million "
        "parameters; add --gin_file=models/laptop.gin for a small model, or bind "
        "`utils.run.model_type` = 'bitransformer' for that one.")
