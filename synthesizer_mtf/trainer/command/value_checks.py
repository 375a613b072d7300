"""The table of values: what each parameter must be, in gin and as an argument.

T5 and Mesh TensorFlow accept any value. A string instead of a number, or a beam without
hypotheses, raises an exception after minutes, without the parameter's name, or changes
a training in silence. Here a new check is a new row of `ROWS`. Parameters of gin are
checked once gin is parsed, arguments of `MtfModel` and of its methods when they are
passed. Layers of this package check their own parameters, and run_checks.py what
several parameters have to be together.
"""

from collections.abc import Callable
import fnmatch
import functools
import inspect
import math
import numbers
import operator
import os
import pathlib
import re
from typing import Any

from absl import logging
import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_past
from synthesizer_mtf.attention import layer
from synthesizer_mtf.attention import notation
from synthesizer_mtf.gin_internals import is_reference
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import file_checks
import tensorflow.compat.v1 as tf

# Raises if the value of a parameter is wrong; returns the value to use instead, if any.
Check = Callable[[str, Any], Any]

MODES = ("train", "perplexity_eval", "eval", "score_eval", "infer",
         "score_from_strings", "score_from_dataset", "export_score",
         "export_infer", "export")
_MODEL_TYPES = ("bitransformer", "lm", "delimited_lm", "aligned", "bi_teacher_student",
                "bi_student_teacher")
_GOOGLE = "0x1ae0"  # The vendor of TPUs, in PCI's numbers.
_BATCHES = ("sequences_per_batch", "tokens_per_batch", "sequences_per_replica",
            "tokens_per_replica")


def _is_read_by(convert: Callable[[Any], Any]) -> Callable[[Any], bool]:
  """Whether a function of Mesh TensorFlow or TensorFlow can read a value."""
  def fits(value):
    try:
      convert(value)
    except (TypeError, ValueError):
      return False
    return True

  return fits


def _is_text(value: Any) -> bool:
  return bool(value) and isinstance(value, str)


def _are_texts(value: Any) -> bool:
  return isinstance(value, (list, tuple)) and all(isinstance(x, str) for x in value)


def _is_whole(value: Any) -> bool:
  """Whether a part of a value is a positive integer, or not known yet."""
  return is_reference(value) or checks.is_whole(value)


_must = checks.requirement
POSITIVE: Check = checks.check_whole
FROM_0: Check = functools.partial(checks.check_whole, least=0)
NOT_NEGATIVE: Check = checks.check_not_negative
_NUMBER = _must(checks.is_number, "be a number")
_RATE = _must(checks.is_rate, f"be {checks.RATE}")
_UP_TO_1 = _must(lambda value: checks.is_number(value) and 0 <= value <= 1,
                 "be a number from 0 to 1")
_SEED = _must(lambda value: checks.is_whole(value, -2**63), "be an integer")
_TOP_K = _must(lambda value: value == -1 or checks.is_whole(value),
               "be a positive integer, or -1 for all tokens")
_FUNCTION = _must(
    lambda value: callable(value) or not isinstance(value, (str, int, float)),
    "be a function or a class", "name it with an @, as the gin files of T5 do")
_PATH = _must(_is_text, "be a path", "write it in quotes, as 'DIR/model.ckpt-1000'")
_NAME = _must(_is_text, "be a name", "write it as a string, such as 'validation'")
_ONE_STEP = _must(lambda value: checks.is_whole(value, -1),
                  "be the step of one checkpoint, or -1 for the last", "name one")
_STEPS = _must(
    lambda value: value == "all" or all(
        checks.is_whole(step, -1)
        for step in (value if isinstance(value, (list, tuple)) else [value])),
    "be the step of a checkpoint, a list of steps, -1 for the last or 'all'")
_DEVICES = _must(_are_texts, "be a list of names", "write it as ['cpu:0']")
_BINDINGS = _must(lambda value: isinstance(value, str) or _are_texts(value),
                  "be a string of gin, or a list of them",
                  "write it as ['num_layers = 2']")
_DTYPE = _must(_is_read_by(tf.as_dtype), "name a type of numbers",
               "write it as 'float32' or 'bfloat16'")
_MESH = _must(_is_read_by(mtf.convert_to_shape), "name mesh dimensions and their sizes",
              "write it as 'model:2,batch:4'")
_LAYOUT = _must(_is_read_by(mtf.convert_to_layout_rules),
                "be pairs of a tensor dimension and a mesh dimension",
                "write it as 'batch:batch,heads:model'")
_BATCH = _must(
    lambda value: checks.is_whole(value) or (
        isinstance(value, (list, tuple)) and len(value) == 2 and
        value[0] in _BATCHES and _is_whole(value[1])),
    "be a positive integer, or a pair such as ('tokens_per_batch', 65536), whose "
    f"first is one of {', '.join(_BATCHES)}")


def _tpu(name, value):
  """A TPU; "local" is TensorFlow's name for that of this machine."""
  checks.require(isinstance(value, str), name, value,
                 "be the name or the address of a TPU, or None")
  vendors = [*pathlib.Path("/sys/bus/pci/devices").glob("*/vendor")]
  if value == "local" and vendors and not any(
      vendor.read_text().strip() == _GOOGLE for vendor in vendors):
    raise checks.Error(f"`{name}` is 'local', but this machine has no TPU; leave it out"
                       " to run without one.")


def _size(least):
  return _must(lambda value: checks.is_whole(value, least),
               f"be {checks.integer(least)}")


def _one_of(known):
  def check_name(name, value):
    if value not in known:
      near = checks.did_you_mean(value, known, near_only=True)
      raise checks.Error(f"`{name}` is {value!r} but must be one of "
                         f"{', '.join(known)}; change it.{near}")

  return check_name


def _lengths(name, value):
  lengths = value if isinstance(value, dict) else {"inputs": value}
  checks.require(
      bool(lengths) and all(map(_is_whole, lengths.values())), name, value,
      "be a positive integer, or one for each feature",
      "write it as {'inputs': 512, 'targets': 114}")
  if isinstance(value, dict) and "targets" not in value:
    raise checks.Error(f"`{name}` is {value!r}, without the targets; add their "
                       "length, as in {'inputs': 512, 'targets': 114}.")


def _learning_rate(name, value):
  _NUMBER(name, value)
  checks.require(0 <= value < math.inf, name, value,
                 "be a number of at least 0, and finite")
  if not value:
    logging.warning("`%s` is 0, so a training changes nothing.", name)


def _schedule(name, value):
  (_learning_rate if isinstance(value, (int, float)) else _FUNCTION)(name, value)


def _passed_schedule(name, value):
  """A learning rate, or a function of the step; gin's words for it do not help."""
  checks.require(not isinstance(value, str), name, value,
                 "be a number, or a function of the step")
  _schedule(name, value)


def _filter(name, value):
  try:
    re.compile(value)
  except (re.error, TypeError) as error:
    raise checks.Error(f"`{name}` is {value!r}, which is not a regular expression "
                       f"({error}); write it as 'encoder/.*'.") from None


def _exported_step(name, value):
  """What Mesh TensorFlow takes the first of, and the last checkpoint for 0."""
  _ONE_STEP(name, value[0] if isinstance(value, (list, tuple)) and len(
      value) == 1 else value)
  checks.require(value != 0, name, value, "be above 0, or -1 for the last checkpoint")


def _iterations(name, value):
  if not re.fullmatch(r"\d+[smh]", str(value)):  # A time.
    POSITIVE(name, value)


def _custom_ops(name, value):
  checks.check_boolean(name, value)
  if value and not gin_past.has_custom_ops():
    raise checks.Error(
        f"`{name}` is True, which needs the package tensor2tensor, but it is not "
        "installed; bind it to False, which packs as well, only slower.")


def _activations(name, value):
  for function in value if isinstance(value, list) else [value]:
    if isinstance(function, str) and function != "linear" and not hasattr(
        mtf, function):
      known = [name for name in dir(mtf) if name.islower()]
      raise checks.Error(
          f"`{name}` is {value!r}, but Mesh TensorFlow has no function {function!r}; "
          f"change it.{checks.did_you_mean(function, known)}")


def _layers(name, value):
  """Layers, each a class, or a tuple of one, a name and a dict of arguments."""
  remedy = ("write it as [@SelfAttention, (\"ff\", {\"hidden_size\": 64}, "
            "@DenseReluDense)]")
  checks.require(isinstance(value, (list, tuple)), name, value, "be a list of layers",
                 remedy)
  for entry in value:
    parts = list(entry) if isinstance(entry, (list, tuple)) else [entry]
    classes = [part for part in parts if not isinstance(part, (str, dict))]
    given = [part for part in parts if isinstance(part, dict)]
    checks.require(
        len(classes) == 1 and len(given) < 2 and len(parts) < 4 and (
            is_reference(classes[0]) or callable(classes[0])),
        name, entry, "have one layer in each entry", remedy)
    _check_keywords(name, classes[0], given[0] if given else {})


def _check_keywords(name, cls, given):
  """Checks that a layer of `make_layer_stack.layers` has the given parameters."""
  if is_reference(cls):
    if cls.evaluate:  # A macro, for one.
      return
    cls = cls.configurable.wrapped
  known = inspect.signature(cls).parameters
  if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
    return
  for key in given:
    if key not in known:
      raise checks.Error(
          f"`{name}` gives {key!r} to {cls.__name__}, which has no such "
          f"parameter; change it.{checks.did_you_mean(key, known)}")


def path(name: str, value: Any) -> str:
  """Returns a path as a string; it may be a `pathlib.Path`, or begin with ~."""
  text = os.fspath(value) if isinstance(value, os.PathLike) else value
  checks.require(_is_text(text), name, value, "be a path",
                 "write it as a string, or as a pathlib.Path")
  return os.path.expanduser(text)


def _texts(name, value):
  """Texts, or the path of a file of lines."""
  if not isinstance(value, (list, tuple)):
    value = path(name, value)
    file_checks.check_lines(name, value)
    return value
  return checks.require(_are_texts(value), name, value,
                        "be a list of texts, or the path of a file of lines")


def _output(name, value, folder=False):
  value = path(name, value)
  file_checks.check_output(name, value, folder)
  return value


def _attention(name, value):
  """Names and classes of attentions; None for what gin binds."""
  if value is None:
    return
  notation.check_choice(name, value)
  for entry in value if isinstance(value, (list, tuple)) else [value]:
    if entry is layer.SyntheticAttention and not gin.get_bindings(
        "SyntheticAttention", resolve_references=False).get("synthesizers"):
      raise checks.Error(
          f"`{name}` is the class SyntheticAttention, but gin binds no "
          "`SyntheticAttention.synthesizers` for it; write it as 'R+V', or as a list "
          "of such names with one for each block.")


# Columns: parameters of gin, by the ends of their names, with %MACRO and wildcards;
# arguments of `MtfModel` and of its methods; what they must be. The first row counts.
ROWS: list[tuple[str, str, Check]] = [
    ("%d_model %d_ff %d_kv %num_heads", "", _size(1)),
    ("%num_layers", "", _size(0)),  # A model without layers is a bag of words.
    ("%dropout_rate", "", _RATE),
    # What a run does.
    ("utils.run.mode", "", _one_of(MODES)),
    ("utils.run.model_type", "model_type", _one_of(_MODEL_TYPES)),
    ("utils.run.sequence_length", "sequence_length", _lengths),
    ("utils.run.batch_size", "batch_size", _BATCH),
    ("utils.run.train_steps", "steps finetune_steps", POSITIVE),
    ("utils.run.save_checkpoints_steps", "save_checkpoints_steps", POSITIVE),
    ("utils.run.perplexity_eval_steps", "", POSITIVE),
    ("utils.run.keep_checkpoint_max", "keep_checkpoint_max", FROM_0),
    ("utils.run.iterations_per_loop", "iterations_per_loop", _iterations),
    ("utils.run.learning_rate_schedule", "", _schedule),
    ("", "learning_rate_schedule", _passed_schedule),
    ("utils.run.optimizer", "optimizer", _FUNCTION),
    ("utils.run.*_dataset_fn utils.run.train_model_fn", "", _FUNCTION),
    ("utils.run.variable_filter", "variable_filter", _filter),
    ("utils.run.mesh_shape", "mesh_shape", _MESH),
    ("utils.run.mesh_devices", "mesh_devices", _DEVICES),
    ("utils.run.layout_rules", "layout_rules", _LAYOUT),
    ("utils.run.init_checkpoint warm_start.checkpoint", "", _PATH),
    ("utils.run.eval_checkpoint_step", "checkpoint_steps", _STEPS),
    ("utils.run.export_checkpoint_step", "", _exported_step),
    ("train_with_seed.seed", "seed", _SEED),
    ("synthesizer_stack.attention", "", notation.check_choice),
    # How it decodes.
    ("Bitransformer.decode.beam_size", "beam_size", POSITIVE),
    ("Bitransformer.decode.max_decode_length", "", POSITIVE),
    ("Bitransformer.decode.temperature", "temperature", NOT_NEGATIVE),
    ("decode_from_file.repeats", "", POSITIVE),
    # Layers, data and the optimizer.
    ("mesh_tensorflow.*.dropout_rate mesh_tensorflow.*.init_dropout_rate "
     "mesh_tensorflow.*.switch_dropout mesh_tensorflow.*.token_dropout_rate "
     "mesh_tensorflow.*.label_smoothing", "", _RATE),
    ("mesh_tensorflow.*.fraction_soft t5.*.noise_density t5.*.random_prob", "",
     _UP_TO_1),
    ("get_variable_dtype.*_dtype", "", _DTYPE),
    ("make_layer_stack.layers", "", _layers),
    ("DenseReluDense.activation", "", _activations),
    ("pack_dataset.use_custom_ops", "", _custom_ops),
    ("AdafactorOptimizer.decay_rate", "", _NUMBER),
    ("constant_learning_rate.learning_rate", "", _learning_rate),
    ("serialize_num_microbatches.tokens_per_microbatch_per_replica", "", NOT_NEGATIVE),
    # Arguments alone.
    ("", "tpu", _tpu),
    ("", "extra_gin_bindings", _BINDINGS),
    ("", "attention", _attention),
    ("", "mixture_or_task_name",
     lambda name, value: data_checks.check_task(value, f"`{name}`")),
    ("", "split mixture_or_task_split", _NAME),
    ("", "checkpoint_step pretrained_checkpoint_step", _ONE_STEP),
    ("", "keep_top_k", _TOP_K),
    ("", "model_dir pretrained_model_dir warm_start init_checkpoint summary_dir "
     "scores_file", path),
    ("", "input_file inputs targets", _texts),
    ("", "output_file", _output),
    ("", "export_dir", functools.partial(_output, folder=True)),
]
_BY_ARGUMENT = {name: check_value for _, names, check_value in ROWS
                for name in names.split()}
# Arguments that cannot be None. Others may, and T5's command passes "" for them.
_REQUIRED = {
    "attention", "batch_size", "beam_size", "checkpoint_step", "finetune_steps",
    "input_file", "keep_top_k", "mixture_or_task_name", "model_dir",
    "pretrained_checkpoint_step", "pretrained_model_dir", "steps", "temperature"}

# The packages whose functions are checked. Values of a user's own functions are not:
# only these functions know what they accept.
_PACKAGES = {"synthesizer_mtf", "mesh_tensorflow", "t5"}


def read(argument: str, value: Any) -> Any:
  """The value of an argument of `MtfModel`, checked; a path as a string.

  Raises:
    ValueError: the value is wrong.
  """
  if isinstance(value, numbers.Integral) and not isinstance(value, bool):
    value = operator.index(value)  # NumPy's integers, too.
  if argument not in _BY_ARGUMENT:
    return value
  is_nothing = value is None or isinstance(value, str) and not value or (
      argument == "tpu" and value is False)  # Some programs pass it; T5 takes it so.
  if is_nothing and argument not in _REQUIRED:
    return None
  instead = _BY_ARGUMENT[argument](argument, value)
  return value if instead is None else instead


def check(config: gin_internals.Config) -> None:
  """Raises a ValueError for the first value that its parameter cannot have.

  References to functions are skipped, and so are parameters of functions of other
  packages.
  """
  macros = {where: values for where, values in config.items()
            if where[1] == "gin.macro"}
  for (scope, selector), values in {**macros, **config}.items():
    for key, value in values.items():
      value = gin_internals.resolved(config, value)
      if is_reference(value) or value is None and key != "batch_size":
        continue
      if selector == "gin.macro":
        _check_macro(scope, value)
      elif _package(selector) in _PACKAGES:
        _row(f"{selector}.{key}", gin_internals.default(selector, key))(
            f"{scope + '/' if scope else ''}{_shown(selector)}.{key}", value)


def _check_macro(name, value):
  try:
    _row(f"%{name}", None)(name, value)
  except checks.Error as error:
    raise checks.Error(f"the gin macro {error}") from None


def _row(parameter, default):
  """The check of a parameter of gin in its row; without a row that of its kind."""
  return next(
      (check_value for patterns, _, check_value in ROWS for pattern in patterns.split()
       if fnmatch.fnmatchcase(f".{parameter}", f"*.{pattern}")),
      functools.partial(_check_kind, default))


def _package(selector):
  function = getattr(gin_internals.registry().get(selector), "wrapped", None)
  return str(getattr(function, "__module__", "")).partition(".")[0]


def _shown(selector):
  """The name of a configurable, as in gin files."""
  name = gin_internals.registry().minimal_selector(selector)
  return "utils.run" if selector.endswith(".utils.run") else name


def _check_kind(default, name, value):
  """Checks that no string is bound where the default is a number or a boolean."""
  if not isinstance(value, str):
    return
  if isinstance(default, bool):
    checks.check_boolean(name, value)
  elif isinstance(default, (int, float)):
    raise checks.Error(f"`{name}` is the string {value!r} but must be a number, as "
                       f"{default!r}; change it.")
