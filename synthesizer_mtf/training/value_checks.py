"""Checks of values that T5 and Mesh TensorFlow use late, and of files they read.

Without these checks, a text instead of a number, a beam without hypotheses or an empty
input file raises an exception after minutes, without the parameter's name.
"""

from collections.abc import Callable
from collections.abc import Mapping
import inspect
import math
import os
import re
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
import tensorflow.compat.v1 as tf

Config = Mapping[tuple[str, str], Mapping[str, Any]]

MODEL_TYPES = ("bitransformer", "lm", "delimited_lm", "aligned", "bi_teacher_student",
               "bi_student_teacher")
# The minimum of whole-number parameters, by the last name of their configurables.
_WHOLE = {
    "utils.run": {"save_checkpoints_steps": 1, "keep_checkpoint_max": 0,
                  "perplexity_eval_steps": 1, "iterations_per_loop": 1},
    "decode": {"beam_size": 1, "max_decode_length": 1},
    "synthesizer_decode_length": {"tokens": 1},
    "decode_from_file": {"repeats": 1},
}
_FUNCTIONS = ("train_dataset_fn", "eval_dataset_fn", "train_model_fn")
_DTYPES = ("master_dtype", "slice_dtype", "activation_dtype")


def check(config: Config) -> None:
  """Raises a ValueError for the first value that its parameter cannot have.

  Args:
    config: gin's parsed configuration, with values instead of macros; values not known
      yet are references.
  """
  for (scope, selector), values in config.items():
    name = _shown(selector)
    for key, value in values.items():
      if isinstance(value, gin.config.ConfigurableReference) or value is None:
        continue
      shown = f"{scope + '/' if scope else ''}{name}.{key}"
      _check_whole(selector, key, shown, value)
      _check_kind(_default(selector, key), shown, value)
      check_value = _OTHERS.get((name, key))
      if check_value:
        check_value(shown, value)


def _shown(selector):
  """The name of a configurable, as in gin files."""
  name = gin_files.registry().minimal_selector(selector)
  return "utils.run" if selector.endswith(".utils.run") else name


def _default(selector, parameter):
  """The default of a parameter, or None."""
  found = gin_files.registry().get(selector)
  try:
    return inspect.signature(found.wrapped).parameters[parameter].default
  except (AttributeError, KeyError, TypeError, ValueError):
    return None


def _check_whole(selector, key, shown, value):
  for name, leasts in _WHOLE.items():
    timed = key == "iterations_per_loop" and re.fullmatch(r"\d+[smh]", str(value))
    if ("." + selector).endswith("." + name) and key in leasts and not timed:
      checks.check_whole(shown, value, leasts[key])


def _check_kind(default, shown, value):
  """Checks that a text is not bound where the default is a number or a boolean."""
  if not isinstance(value, str):
    return
  if isinstance(default, bool):
    checks.check_boolean(shown, value)
  elif isinstance(default, (int, float)) and not shown.endswith("iterations_per_loop"):
    raise checks.Error(f"`{shown}` is the text {value!r} but must be a number, as "
                       f"{default!r}; change it.")


def _check_function(shown, value):
  if not callable(value) and isinstance(value, (str, int, float)):
    raise checks.Error(f"`{shown}` is {value!r} but must be a function or a class; "
                       "name it with an @, as the gin files of T5 do.")


def check_model_type(shown: str, value: Any) -> None:
  """Raises a ValueError if Mesh TensorFlow has no such model type.

  Args:
    shown: the name of the parameter.
    value: its value.
  """
  if value not in MODEL_TYPES:
    raise checks.Error(
        f"`{shown}` is {value!r} but must be one of {', '.join(MODEL_TYPES)}; change "
        f"it.{checks.did_you_mean(value, MODEL_TYPES, near_only=True)}")


def _check_dtype(shown, value):
  try:
    tf.as_dtype(value)
  except TypeError:
    raise checks.Error(f"`{shown}` is {value!r} but must name a type of numbers; "
                       "write it as 'float32' or 'bfloat16'.") from None


def _check_filter(shown, value):
  try:
    re.compile(value)
  except (re.error, TypeError) as error:
    raise checks.Error(f"`{shown}` is {value!r}, which is no regular expression "
                       f"({error}); write it as 'encoder/.*'.") from None


def _check_path(shown, value):
  if not value or not isinstance(value, str):
    raise checks.Error(f"`{shown}` is {value!r} but must be a path; write it in "
                       "quotes, as 'DIR/model.ckpt-1000'.")


def _check_number(shown, value):
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise checks.Error(f"`{shown}` is {value!r} but must be a number; change it.")


def check_rate(shown: str, value: Any) -> None:
  """Raises a ValueError unless a learning rate is a finite number of at least 0.

  Args:
    shown: the name of the parameter.
    value: its value.
  """
  _check_number(shown, value)
  if not 0 <= value < math.inf:
    raise checks.Error(f"`{shown}` is {value!r} but must be a number of at least 0, "
                       "and finite; change it.")


def _check_not_negative(shown, value):
  checks.check_not_negative(shown, value)


def _check_layers(shown, value):
  if not isinstance(value, (list, tuple)) or not all(
      isinstance(each, gin.config.ConfigurableReference) or callable(each)
      for each in value):
    raise checks.Error(f"`{shown}` is {value!r} but must be a list of layers; write "
                       "it as [@SelfAttention, @DenseReluDense].")


def _check_activations(shown, value):
  for each in value if isinstance(value, list) else [value]:
    if isinstance(each, str) and each != "linear" and not hasattr(mtf, each):
      names = [name for name in dir(mtf) if name.islower()]
      raise checks.Error(
          f"`{shown}` is {value!r}, but Mesh TensorFlow has no function {each!r}; "
          f"change it.{checks.did_you_mean(each, names)}")


def _check_steps(shown, value):
  several = value if isinstance(value, (list, tuple)) else [value]
  if value != "all" and not all(checks.is_whole(each, -1) for each in several):
    raise checks.Error(f"`{shown}` is {value!r} but must be the step of a checkpoint, "
                       "a list of steps, -1 for the last or 'all'; change it.")


_OTHERS: dict[tuple[str, str], Callable[[str, Any], None]] = {
    **{("utils.run", name): _check_function for name in _FUNCTIONS},
    **{("get_variable_dtype", name): _check_dtype for name in _DTYPES},
    ("utils.run", "model_type"): check_model_type,
    ("utils.run", "variable_filter"): _check_filter,
    ("utils.run", "init_checkpoint"): _check_path,
    ("utils.run", "eval_checkpoint_step"): _check_steps,
    ("warm_start", "checkpoint"): _check_path,
    ("AdafactorOptimizer", "decay_rate"): _check_number,
    ("constant_learning_rate", "learning_rate"): check_rate,
    ("Bitransformer.decode", "temperature"): _check_not_negative,
    ("Unitransformer.decode", "temperature"): _check_not_negative,
    ("make_layer_stack", "layers"): _check_layers,
    ("DenseReluDense", "activation"): _check_activations,
}


def check_lines(parameter: str, path: str) -> int:
  """Checks a file of lines that mode `infer` or `score_from_strings` will read.

  Args:
    parameter: the gin parameter that names it.
    path: the file.

  Returns:
    the number of its lines.

  Raises:
    ValueError: it is missing, not a text file, empty or not UTF-8.
  """
  if not isinstance(path, str) or not tf.io.gfile.exists(path):
    raise checks.Error(f"`{parameter}` is {path!r}, but there is no such file; name "
                       "the one whose lines shall be read.")
  checks.check_regular_file(f"`{parameter}`", path)
  if tf.io.gfile.isdir(path):
    raise checks.Error(f"`{parameter}` is {path!r}, which is a folder; name a file "
                       "of lines.")
  with tf.io.gfile.GFile(path, "rb") as f:
    data = f.read()
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError as error:
    line = data.count(b"\n", 0, error.start) + 1
    raise checks.Error(f"`{parameter}` is {path!r}, whose line {line} is not UTF-8; "
                       "convert the file, as by iconv -t utf-8.") from None
  if not text.strip():
    raise checks.Error(f"`{parameter}` is {path!r}, which holds no text; give a file "
                       "with some, one input in each line.")
  return len(text.removesuffix("\n").split("\n"))


def check_output(parameter: str, path: Any, folder: bool = False) -> None:
  """Raises a ValueError if an output file or folder is not writable.

  Args:
    parameter: the gin parameter that names it.
    path: the value of the parameter.
    folder: whether it is a folder, which need not exist.
  """
  if not path or not isinstance(path, str):
    raise checks.Error(f"`{parameter}` is {path!r} but must be a path to write to; "
                       "write it in quotes.")
  if folder and tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
    raise checks.Error(f"`{parameter}` is {path!r}, which is a file; name a folder.")
  parent = os.path.dirname(path)
  if not folder and parent and not tf.io.gfile.isdir(parent):
    raise checks.Error(f"`{parameter}` is {path!r}, but there is no folder "
                       f"{parent!r}; make it first, or name another.")


def check_lengths(lengths: Any, task: str, features: Mapping[str, Any],
                  parameter: str = "utils.run.sequence_length") -> None:
  """Raises a ValueError if a feature of the task has no length.

  Args:
    lengths: the value of the parameter.
    task: the name of the task or mixture.
    features: the features of the task.
    parameter: the parameter that holds the lengths.
  """
  if not isinstance(lengths, Mapping):
    return
  missing = [key for key in features if key not in lengths]
  unknown = [key for key in lengths if key not in features]
  if missing:
    slip = "".join(
        f", but {key!r}, which it does not have" for key in unknown[:1])
    raise checks.Error(
        f"`{parameter}` is {dict(lengths)!r}, without the feature "
        f"{missing[0]!r} of {task!r}{slip}; give a length to each of "
        f"{', '.join(map(repr, features))}.")
  unused = [key for key in unknown if key != "inputs"]  # Language models have none.
  if unused:
    logging.warning("`%s` names %r, which %r does not have; leave it out.%s", parameter,
                    unused[0], task, checks.did_you_mean(
                        unused[0], features, near_only=True))
