"""Checks of values that T5 and Mesh TensorFlow use late, and of files they read.

Without these checks, a string instead of a number, a beam without hypotheses or an
empty input file raises an exception after minutes, without the parameter's name.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import inspect
import math
import os
import re
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_past
from synthesizer_mtf.attention import notation
import tensorflow.compat.v1 as tf

MODEL_TYPES = ("bitransformer", "lm", "delimited_lm", "aligned", "bi_teacher_student",
               "bi_student_teacher")
_BATCHES = ("sequences_per_batch", "tokens_per_batch", "sequences_per_replica",
            "tokens_per_replica")


# The packages whose functions are checked. Values of a user's own functions are not:
# only these functions know what they accept.
_PACKAGES = {"synthesizer_mtf", "mesh_tensorflow", "t5"}


def check(config: gin_internals.Config) -> None:
  """Raises a ValueError for the first value that its parameter cannot have.

  The caller has replaced macros by their values. References to functions are skipped,
  and so are parameters of functions of other packages.
  """
  for (scope, selector), values in config.items():
    function = getattr(gin_internals.registry().get(selector), "wrapped", None)
    if str(getattr(function, "__module__", "")).partition(".")[0] not in _PACKAGES:
      continue
    for key, value in values.items():
      if isinstance(value, gin.config.ConfigurableReference) or value is None:
        continue
      shown = f"{scope + '/' if scope else ''}{_shown(selector)}.{key}"
      check_value = (
          _named(selector, key) or _SHARES.get((selector.partition(".")[0], key)) or
          functools.partial(_check_kind, _default(function, key)))
      check_value(shown, value)


def _shown(selector):
  """The name of a configurable, as in gin files."""
  name = gin_internals.registry().minimal_selector(selector)
  return "utils.run" if selector.endswith(".utils.run") else name


def _named(selector, parameter):
  """The check of a parameter in `_CHECKS`, or None."""
  return next((check_value for (name, key), check_value in _CHECKS.items()
               if key == parameter and f".{selector}".endswith(f".{name}")), None)


def _default(function, parameter):
  """The default of a parameter, or None."""
  try:
    return inspect.signature(function).parameters[parameter].default
  except (KeyError, TypeError, ValueError):
    return None


_check_rate_of_dropout = checks.requirement(checks.is_rate, f"be {checks.RATE}")
_check_up_to_1 = checks.requirement(
    lambda value: checks.is_number(value) and 0 <= value <= 1,
    "be a number from 0 to 1")
_check_number = checks.requirement(checks.is_number, "be a number")
_check_function = checks.requirement(
    lambda value: callable(value) or not isinstance(value, (str, int, float)),
    "be a function or a class", "name it with an @, as the gin files of T5 do")
_check_path = checks.requirement(
    lambda value: bool(value) and isinstance(value, str), "be a path",
    "write it in quotes, as 'DIR/model.ckpt-1000'")
check_one_step = checks.requirement(
    lambda value: checks.is_whole(value, -1),
    "be the step of one checkpoint, or -1 for the last", "name one")
check_seed = checks.requirement(
    lambda value: checks.is_whole(value, -2**63), "be an integer")


def _check_kind(default, name, value):
  """Checks that no string is bound where the default is a number or a boolean."""
  if not isinstance(value, str):
    return
  if isinstance(default, bool):
    checks.check_boolean(name, value)
  elif isinstance(default, (int, float)):
    raise checks.Error(f"`{name}` is the string {value!r} but must be a number, as "
                       f"{default!r}; change it.")


def _check_schedule(name, value):
  """Checks a learning rate, or a function of the step."""
  if isinstance(value, (int, float)):
    _check_rate(name, value)
  else:
    _check_function(name, value)


def _check_rate(name, value):
  _check_number(name, value)
  checks.require(0 <= value < math.inf, name, value,
                 "be a number of at least 0, and finite")
  if not value:
    logging.warning("`%s` is 0, so a training changes nothing.", name)


def is_whole(value: Any, least: int = 1) -> bool:
  """Whether `value` is an integer of at least `least`, or not known yet."""
  return isinstance(value, gin.config.ConfigurableReference) or checks.is_whole(
      value, least)


def _check_lengths(name, value):
  lengths = value if isinstance(value, dict) else {"inputs": value}
  checks.require(
      bool(lengths) and all(map(is_whole, lengths.values())), name, value,
      "be a positive integer, or one for each feature",
      "write it as {'inputs': 512, 'targets': 114}")
  if isinstance(value, dict) and "targets" not in value:
    raise checks.Error(f"`{name}` is {value!r}, without the targets; add their "
                       "length, as in {'inputs': 512, 'targets': 114}.")


def _check_batch_size(name, value):
  pair = (isinstance(value, (list, tuple)) and len(value) == 2 and
          value[0] in _BATCHES and is_whole(value[1]))
  checks.require(
      is_whole(value) or pair, name, value,
      "be a positive integer, or a pair such as ('tokens_per_batch', 65536), whose "
      f"first is one of {', '.join(_BATCHES)}")


def _check_model_type(name, value):
  near = checks.did_you_mean(value, MODEL_TYPES, near_only=True)
  if value not in MODEL_TYPES:
    raise checks.Error(f"`{name}` is {value!r} but must be one of "
                       f"{', '.join(MODEL_TYPES)}; change it.{near}")


def _conversion(convert, needed, remedy):
  """A check that Mesh TensorFlow can read a value."""
  def check_value(name, value):
    try:
      convert(value)
    except (TypeError, ValueError):
      checks.require(False, name, value, needed, remedy)

  return check_value


_check_dtype = _conversion(tf.as_dtype, "name a type of numbers",
                           "write it as 'float32' or 'bfloat16'")


def _check_filter(name, value):
  try:
    re.compile(value)
  except (re.error, TypeError) as error:
    raise checks.Error(f"`{name}` is {value!r}, which is not a regular expression "
                       f"({error}); write it as 'encoder/.*'.") from None


def _check_layers(name, value):
  """Checks layers, each a class, or a tuple of one, a name and a dict of arguments."""
  remedy = ("write it as [@SelfAttention, (\"ff\", {\"hidden_size\": 64}, "
            "@DenseReluDense)]")
  checks.require(isinstance(value, (list, tuple)), name, value, "be a list of layers",
                 remedy)
  for each in value:
    parts = list(each) if isinstance(each, (list, tuple)) else [each]
    layers = [part for part in parts if not isinstance(part, (str, dict))]
    given = [part for part in parts if isinstance(part, dict)]
    checks.require(
        len(layers) == 1 and len(given) < 2 and len(parts) < 4 and (
            isinstance(layers[0], gin.config.ConfigurableReference) or
            callable(layers[0])),
        name, each, "have one layer in each entry", remedy)
    _check_keywords(name, layers[0], given[0] if given else {})


def _check_keywords(name, layer, given):
  """Checks that a layer of `make_layer_stack.layers` has the given parameters."""
  function = layer
  if isinstance(layer, gin.config.ConfigurableReference):
    if layer.evaluate:  # A macro, for one.
      return
    function = layer.configurable.wrapped
  known = inspect.signature(function).parameters
  if any(each.kind is each.VAR_KEYWORD for each in known.values()):
    return
  for key in given:
    if key not in known:
      raise checks.Error(
          f"`{name}` gives {key!r} to {function.__name__}, which has no such "
          f"parameter; change it.{checks.did_you_mean(key, known)}")


def _check_custom_ops(name, value):
  checks.check_boolean(name, value)
  if value and not gin_past.has_custom_ops():
    raise checks.Error(
        f"`{name}` is True, which needs the package tensor2tensor, but it is not "
        "installed; bind it to False, which packs as well, only slower.")


def _check_activations(name, value):
  for each in value if isinstance(value, list) else [value]:
    if isinstance(each, str) and each != "linear" and not hasattr(mtf, each):
      names = [name for name in dir(mtf) if name.islower()]
      raise checks.Error(
          f"`{name}` is {value!r}, but Mesh TensorFlow has no function {each!r}; "
          f"change it.{checks.did_you_mean(each, names)}")


def _check_step(name, value):
  several = value if isinstance(value, (list, tuple)) else [value]
  checks.require(
      value == "all" or all(checks.is_whole(each, -1) for each in several), name, value,
      "be the step of a checkpoint, a list of steps, -1 for the last or 'all'")


def _check_exported(name, value):
  """Checks what Mesh TensorFlow takes the first of, and the last checkpoint for 0."""
  check_one_step(name, value[0] if isinstance(value, (list, tuple)) and len(
      value) == 1 else value)
  checks.require(value != 0, name, value, "be above 0, or -1 for the last checkpoint")


def _check_iterations(name, value):
  if not re.fullmatch(r"\d+[smh]", str(value)):  # A time.
    checks.check_whole(name, value)


_check_from_0 = functools.partial(checks.check_whole, least=0)

# The checks by parameter of `utils.run`; `MtfModel` has many of the same parameters.
RUN_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(["train_steps", "save_checkpoints_steps", "perplexity_eval_steps"],
                    checks.check_whole),
    **dict.fromkeys(["train_dataset_fn", "eval_dataset_fn", "train_model_fn",
                     "optimizer"], _check_function),
    "keep_checkpoint_max": _check_from_0,
    "iterations_per_loop": _check_iterations,
    "learning_rate_schedule": _check_schedule,
    "sequence_length": _check_lengths,
    "batch_size": _check_batch_size,
    "model_type": _check_model_type,
    "variable_filter": _check_filter,
    "init_checkpoint": _check_path,
    "eval_checkpoint_step": _check_step,
    "export_checkpoint_step": _check_exported,
    "mesh_shape": _conversion(
        mtf.convert_to_shape, "name mesh dimensions and their sizes",
        "write it as 'model:2,batch:4'"),
    "layout_rules": _conversion(
        mtf.convert_to_layout_rules,
        "be pairs of a tensor dimension and a mesh dimension",
        "write it as 'batch:batch,heads:model'"),
}
_OF_DECODE = {"beam_size": checks.check_whole, "max_decode_length": checks.check_whole,
              "temperature": checks.check_not_negative}

# The checks of shares by package and parameter; several layers have each of them.
_SHARES: dict[tuple[str, str], Callable[[str, Any], None]] = {
    **{("mesh_tensorflow", name): _check_rate_of_dropout
       for name in ("dropout_rate", "init_dropout_rate", "switch_dropout",
                    "token_dropout_rate", "label_smoothing")},
    **dict.fromkeys([("mesh_tensorflow", "fraction_soft"), ("t5", "noise_density"),
                     ("t5", "random_prob")], _check_up_to_1)}

# The checks by configurable and parameter.
_CHECKS: dict[tuple[str, str], Callable[[str, Any], None]] = {
    **{("utils.run", name): check_value for name, check_value in RUN_CHECKS.items()},
    **{(f"{model}.decode", name): check_value
       for model in ("Bitransformer", "Unitransformer")
       for name, check_value in _OF_DECODE.items()},
    **{("get_variable_dtype", name): _check_dtype
       for name in ("master_dtype", "slice_dtype", "activation_dtype")},
    ("decode_from_file", "repeats"): checks.check_whole,
    ("synthesizer_stack", "attention"): notation.check_choice,
    ("warm_start", "checkpoint"): _check_path,
    ("train_with_seed", "seed"): check_seed,
    ("AdafactorOptimizer", "decay_rate"): _check_number,
    ("constant_learning_rate", "learning_rate"): _check_rate,
    ("make_layer_stack", "layers"): _check_layers,
    ("DenseReluDense", "activation"): _check_activations,
    ("pack_dataset", "use_custom_ops"): _check_custom_ops,
    ("serialize_num_microbatches", "tokens_per_microbatch_per_replica"):
        checks.check_not_negative,
}


# The bytes of a TSV file that are checked before training. A second suffices for them.
_CHECKED = 1 << 26
_LONG = 500_000  # Characters of a line; a vocabulary needs seconds for more.


def check_lines(parameter: str, path: str) -> int:
  """Checks a file of lines that mode `infer` or `score_from_strings` will read.

  Args:
    parameter: the gin parameter that names it.
    path: the file.

  Returns:
    the number of its lines.

  Raises:
    ValueError: it is missing, not a text file, empty or not UTF-8, or has a NUL.
  """
  if not isinstance(path, str) or not tf.io.gfile.exists(path):
    raise checks.Error(f"`{parameter}` is {path!r}, but there is no such file; name "
                       "the file with the lines to read.")
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
  if "\0" in text:
    line = text.count("\n", 0, text.index("\0")) + 1
    raise checks.Error(f"`{parameter}` is {path!r}, whose line {line} has a NUL "
                       "character; remove it, as by tr -d '\\0'.")
  if not text.strip():
    raise checks.Error(f"`{parameter}` is {path!r}, which holds no text; give a file "
                       "with some, one input in each line.")
  lines = text.removesuffix("\n").split("\n")
  longest = max(range(len(lines)), key=lambda i: len(lines[i]))
  if len(lines[longest]) > _LONG:
    logging.warning("`%s` is %r, whose line %d has %s characters, which may take "
                    "minutes; the model reads its beginning only.", parameter, path,
                    longest + 1, f"{len(lines[longest]):,}")
  return len(lines)


def check_pairs(parameter: str, paths: Any) -> None:
  """Checks the files that T5's `tsv_dataset_fn` will read.

  Args:
    parameter: the gin parameter that names them.
    paths: the value of the parameter: a path or a list of paths.

  Raises:
    ValueError: a file is missing, or one of its first lines has not two columns.
  """
  named = [paths] if isinstance(paths, str) else paths
  if not isinstance(named, (list, tuple)) or not named or not all(
      isinstance(path, str) for path in named):
    raise checks.Error(f"`{parameter}` is {paths!r} but must be the path of a TSV "
                       "file, or a list of paths; bind it.")
  for path in named:
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
      raise checks.Error(f"`{parameter}` is {path!r}, but there is no such file; name "
                         "TSV files, without wildcards, by their paths.")
    checks.check_regular_file(f"`{parameter}`", path)
    with tf.io.gfile.GFile(path, "rb") as f:
      lines = f.read(_CHECKED).split(b"\n")
    # The last part is what follows the last line break, or a part of a line.
    for number, line in enumerate(lines[:-1] or lines, start=1):
      if line.count(b"\t") != 1:
        raise checks.Error(
            f"`{parameter}` is {path!r}, whose line {number} has "
            f"{line.count(bytes([9])) + 1} columns, but a pair has 2, with a tab "
            "between inputs and targets; correct it.")


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
  where = path if folder else parent
  while where and not os.path.exists(where):
    where = os.path.dirname(where)
  where = where or "."
  if "://" not in path and not os.access(where, os.W_OK | os.X_OK):
    raise checks.Error(f"`{parameter}` is {path!r}, but {where!r} is not writable; "
                       "give permission, or name another folder.")


def check_lengths(lengths: Any, task: str, features: Mapping[str, Any]) -> None:
  """Raises a ValueError if a feature of the task has no length."""
  parameter = checks.called("utils.run.sequence_length")
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
