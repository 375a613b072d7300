"""Checks for missing parameters.

A parameter without a sensible default is required.
"""

from collections.abc import Sequence

from absl import flags
import gin
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.checkpoints import checkpoints
from synthesizer_mtf.trainer.data import data_checks
import tensorflow.compat.v1 as tf

_TASK = "--gin_param=\"MIXTURE_NAME = 'TASK'\", with the name of a task"
_PLACEHOLDER = "glue_v002_proportional"  # "Override these values", says T5's file.
# Mesh TensorFlow's values of the sizes that every model file of T5 binds.
_SIZES = {"num_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 8, "d_kv": 128}


def check_words(argv: Sequence[str]) -> None:
  """Checks that the command names a model folder and has no words besides flags.

  Args:
    argv: the command, without its flags.

  Raises:
    ValueError: a word is not a flag, or --model_dir is missing.
  """
  for word in argv[1:]:
    flag = "--gin_file=" if word.endswith(".gin") else (
        "--gin_param=" if "=" in word else "--FLAG=")
    raise checks.Error(f"{word!r} is not a flag; write {flag}{word}, or leave it out.")
  if flags.FLAGS["model_dir"].using_default_value:
    raise checks.Error("--model_dir is missing; name the folder of the model, as in "
                       "--model_dir=models/r+v, which need not exist yet.")


def check(model_dir: str) -> None:
  """Checks that gin, once parsed, names data, a mesh and a model.

  Args:
    model_dir: the model folder; if it has a checkpoint, task and model may be missing.

  Raises:
    ValueError: one is missing; the message names the first, and a gin file for it.
  """
  _check_mesh()
  if gin_files.bound("utils.run.mode", "train") != "train":
    return
  if not gin_files.bound("utils.run.train_dataset_fn", None):
    raise checks.Error("There are no data to train on; add --gin_file=dataset.gin and "
                       f"{_TASK}.")
  if not checkpoints.find(model_dir):
    _check_task()
    _check_model()


def _check_mesh():
  try:
    shape = gin.query_parameter("utils.run.mesh_shape")
  except ValueError:
    shape = None
  if "tpu_mesh_shape" not in str(shape) or gin_files.bound(
      "utils.tpu_mesh_shape.tpu_topology", None):
    return
  if flags.FLAGS.tpu:
    raise checks.Error("--tpu is given, but `utils.tpu_mesh_shape.tpu_topology` is "
                       "missing; bind it, as in '2x2' for eight cores.")
  raise checks.Error("No device is named; add --gin_file=cpu.gin after the "
                     "model file, or gpu.gin, or give --tpu and a topology.")


def _check_task():
  """Checks that the user overrides the placeholder task of T5's dataset.gin.

  Without a task, as with T5's `tsv_dataset_fn`, the placeholder gives the vocabulary of
  T5's models.
  """
  if data_checks.data_function(gin_internals.bindings()) != data_checks.TASKS:
    return
  given = [*(flags.FLAGS.gin_param or ()), *map(_text, flags.FLAGS.gin_file or ())]
  if gin_files.bound("%MIXTURE_NAME", None) == _PLACEHOLDER and not any(
      _PLACEHOLDER in text for text in given):
    raise checks.Error(f"`MIXTURE_NAME` is missing; add {_TASK}, such as "
                       "'synth_text_pairs' for pairs of your own.")


def _text(path):
  """The text of a user's file; files of packages are not searched here."""
  if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
    return ""
  with tf.io.gfile.GFile(path) as f:
    return f.read()


def _check_model():
  """Checks that gin has a model file.

  Each model file binds `model_type`, or sizes that differ from Mesh TensorFlow's.
  """
  sizes = {name: gin_files.bound(f"%{name}", None) for name in _SIZES}
  if sizes == _SIZES and not gin_files.bound("utils.run.model_type", None):
    raise checks.Error(
        "There is no model file, and Mesh TensorFlow's own sizes are 206 million "
        "parameters; add --gin_file=models/laptop.gin for a small model, or bind "
        "`utils.run.model_type` = 'bitransformer' for these sizes.")
