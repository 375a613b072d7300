"""Checks the arguments of `MtfModel` and of its methods, and reads their paths.

T5 checks none of them. A wrong type ends in an exception of another function that names
no argument, or in none. Paths may be `pathlib.Path` everywhere.
"""

from collections.abc import Callable
import inspect
import numbers
import operator
import os
from typing import Any

from absl import flags
import gin
from synthesizer_mtf import checks
from synthesizer_mtf.attention import notation
from synthesizer_mtf.attention.layer import SyntheticAttention
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.data import data_checks

# What messages call the parameters of T5's command.
_NAMES = {
    "--model_dir": "model_dir", "--module_import": "import",
    "--gin_file=mixed_precision.gin": "the gin file mixed_precision.gin",
    "MIXTURE_NAME": "mixture_or_task_name",
    "Bitransformer.decode.beam_size": "beam_size", "utils.run.dataset_split": "split",
    "utils.run.eval_checkpoint_step": "checkpoint_steps",
    **{f"utils.run.{name}": name for name in (
        "batch_size", "init_checkpoint", "layout_rules", "learning_rate_schedule",
        "mesh_shape", "optimizer", "save_checkpoints_steps", "sequence_length")},
    **{f"train_and_eval.{name}": f"validation[{name!r}]" for name in (
        "every_steps", "greater_is_better", "metric", "patience", "split")},
    "train_and_eval.eval_dataset_fn": "validation"}


def names(method: str) -> dict[str, str]:
  """What messages call the parameters of T5's command in a method of `MtfModel`."""
  steps = "finetune_steps" if method == "finetune" else "steps"
  return {**_NAMES, "utils.run.train_steps": steps}


# The flags of T5's command from which it makes arguments.
_FLAGS = {"sequence_length": ("input_sequence_length", "target_sequence_length"),
          **{name: (name,) for name in (
              "batch_size", "beam_size", "temperature", "keep_top_k")}}


def passed(given: dict[str, Any]) -> dict[str, Any]:
  """Returns those arguments that somebody chose.

  With --use_model_api T5's command passes its flags, whether they are given or not.
  """
  if not flags.FLAGS.is_parsed() or not getattr(flags.FLAGS, "use_model_api", False):
    return given
  return {name: value for name, value in given.items() if name not in _FLAGS or any(
      not flags.FLAGS[flag].using_default_value for flag in _FLAGS[name])}


def of(function: Callable[..., Any], args: tuple[Any, ...],
       kwargs: dict[str, Any]) -> dict[str, Any]:
  """Returns the arguments of a call by name, checked, with paths as strings.

  Args:
    function: a method of T5's `MtfModel`, bound to its model.
    args: its arguments by position.
    kwargs: its arguments by name.

  Raises:
    ValueError: a value is wrong.
    TypeError: there is no such argument, or one is missing.
  """
  given = inspect.signature(function).bind(*args, **kwargs).arguments
  return {name: read(name, value) for name, value in given.items()}


def read(name: str, value: Any) -> Any:
  """Returns the value of an argument, checked; a path as a string.

  Raises:
    ValueError: the value is wrong.
  """
  return _READ[name](name, value) if name in _READ else value


def path(name: str, value: Any) -> str:
  """Returns a path as a string; raises a ValueError unless it is one."""
  found = os.fspath(value) if isinstance(value, os.PathLike) else value
  checks.require(bool(found) and isinstance(found, str), name, value, "be a path",
                 "write it as a string, or as a pathlib.Path")
  return found


def _or_none(read_value):
  """Lets an argument be None, too; flags of T5's command without a value are ""."""
  def read_or_none(name, value):
    is_none = value is None or isinstance(value, str) and not value
    return None if is_none else read_value(name, value)

  return read_or_none


def _whole(least):
  """Reads an integer, also one of NumPy."""
  def read_value(name, value):
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
      value = operator.index(value)
    checks.check_whole(name, value, least)
    return value

  return read_value


def _checked(check_value):
  """Makes a function that raises return the value that it accepts."""
  def read_value(name, value):
    check_value(name, value)
    return value

  return read_value


def _texts(name, value):
  """Reads texts to score, or the path of a file of them."""
  if isinstance(value, (list, tuple)):
    checks.require(all(isinstance(each, str) for each in value), name, value,
                   "be a list of texts, or the path of a file of lines")
    return value
  value = path(name, value)
  value_checks.check_lines(name, value)
  return value


def _input_file(name, value):
  if isinstance(value, (list, tuple)):
    raise checks.Error(f"`{name}` is {value!r} but must be the path of a file; write "
                       "the texts into a file, one in each line, and name the file.")
  value = path(name, value)
  value_checks.check_lines(name, value)
  return value


def _output(folder):
  def read_value(name, value):
    value = path(name, value)
    value_checks.check_output(name, value, folder)
    return value

  return read_value


_name = checks.requirement(lambda value: isinstance(value, str) and bool(value),
                           "be a name", "write it as a string, such as 'validation'")
_keep_top_k = checks.requirement(
    lambda value: value == -1 or checks.is_whole(value),
    "be a positive integer, or -1 for all tokens")
_tpu = _or_none(_checked(checks.requirement(
    lambda value: isinstance(value, str),
    "be the name or the address of a TPU, or None")))
_bindings = checks.requirement(
    lambda value: isinstance(value, str) or isinstance(value, (list, tuple)) and all(
        isinstance(each, str) for each in value),
    "be a string of gin, or a list of them", "write it as ['num_layers = 2']")


def _task(name, value):
  data_checks.check_task(value, f"`{name}`")


def _schedule(name, value):
  """Checks a learning rate, or a function; gin's words for functions do not help."""
  if isinstance(value, str):
    checks.require(False, name, value, "be a number, or a function of the step")
  value_checks.RUN_CHECKS[name](name, value)


def _attention(name, value):
  """Checks names and classes of attentions."""
  if value is None:
    return
  notation.check_choice(name, value)
  for each in value if isinstance(value, (list, tuple)) else [value]:
    if each is SyntheticAttention and not gin.get_bindings(
        "SyntheticAttention", resolve_references=False).get("synthesizers"):
      raise checks.Error(
          f"`{name}` is the class SyntheticAttention, but gin binds no "
          "`SyntheticAttention.synthesizers` for it; write it as 'R+V', or as a list "
          "of such names with one for each block.")


_READ: dict[str, Callable[[str, Any], Any]] = {
    # Of the class.
    **{name: _or_none(_checked(check_value))
       for name, check_value in value_checks.RUN_CHECKS.items()},
    "model_dir": path,
    # Some programs pass False, for which T5 takes no TPU, too.
    "tpu": lambda name, value: None if value is False else _tpu(name, value),
    "batch_size": _checked(value_checks.RUN_CHECKS["batch_size"]),
    "learning_rate_schedule": _or_none(_checked(_schedule)),
    "extra_gin_bindings": _or_none(_checked(_bindings)),
    "attention": _checked(_attention),
    "seed": _or_none(_checked(value_checks.check_seed)),
    "warm_start": _or_none(path),
    # Of its methods.
    "mixture_or_task_name": _checked(_task),
    **dict.fromkeys(["steps", "finetune_steps"], _whole(1)),
    **dict.fromkeys(["split", "mixture_or_task_split"], _or_none(_checked(_name))),
    **dict.fromkeys(["init_checkpoint", "summary_dir", "scores_file"], _or_none(path)),
    "pretrained_model_dir": path,
    "checkpoint_steps": _or_none(_checked(
        value_checks.RUN_CHECKS["eval_checkpoint_step"])),
    **dict.fromkeys(["checkpoint_step", "pretrained_checkpoint_step"],
                    _checked(value_checks.check_one_step)),
    "input_file": _input_file,
    "output_file": _output(folder=False),
    "export_dir": _or_none(_output(folder=True)),
    **dict.fromkeys(["inputs", "targets"], _or_none(_texts)),
    "beam_size": _whole(1),
    "temperature": _checked(checks.check_not_negative),
    "keep_top_k": _checked(_keep_top_k),
}
