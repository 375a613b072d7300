"""The arguments of `MtfModel` and of its methods: T5's, and those of this package.

value_checks.py says what each must be. Messages call a parameter of gin or of T5's
command as the argument that gives it.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
from typing import Any

from absl import flags
from synthesizer_mtf import checks
from synthesizer_mtf import gin_origins
from synthesizer_mtf.fast import switch
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import messages
from t5.models import mtf_model

# What messages call the parameters of T5's command, where an argument has another name.
_NAMES = {
    "--model_dir": "model_dir", "--module_import": "import",
    "--gin_file=mixed_precision.gin": "the gin file mixed_precision.gin",
    "MIXTURE_NAME": "mixture_or_task_name", "inputs_filename": "inputs",
    "targets_filename": "targets",
    **{f"train_and_eval.{name}": f"validation[{name!r}]" for name in (
        "every_steps", "greater_is_better", "metric", "patience", "split")},
    "train_and_eval.eval_dataset_fn": "validation"}
# From arguments to parameters of gin, where these have other names.
_IN_GIN = {
    "steps": "utils.run.train_steps", "finetune_steps": "utils.run.train_steps",
    "split": "utils.run.dataset_split",
    "mixture_or_task_split": "utils.run.dataset_split",
    "checkpoint_steps": "utils.run.eval_checkpoint_step",
    "beam_size": "Bitransformer.decode.beam_size",
    "temperature": "Bitransformer.decode.temperature"}
# The flags of T5's command from which it makes arguments.
_FLAGS = {"sequence_length": ("input_sequence_length", "target_sequence_length"),
          **{name: (name,) for name in (
              "batch_size", "beam_size", "temperature", "keep_top_k")}}
# T5's command passes the arguments of `finetune` by these names.
_ALIASES = {"finetune": {"steps": "finetune_steps",
                         "checkpoint_steps": "pretrained_checkpoint_step"}}


class ArgumentError(checks.Error, TypeError):
  """An argument is missing, or there is none of its name."""


def passed(given: dict[str, Any]) -> dict[str, Any]:
  """Returns those arguments that somebody chose.

  With --use_model_api T5's command passes its flags, whether they are given or not.
  """
  if not gin_origins.is_model_api():
    return given
  return {name: value for name, value in given.items() if name not in _FLAGS or any(
      not flags.FLAGS[flag].using_default_value for flag in _FLAGS[name])}


def _stock(method):
  """The parameters of T5's method, without `self`; two are None by default."""
  known = [*inspect.signature(
      getattr(mtf_model.MtfModel, method)).parameters.values()][1:]
  return [p.replace(default=None) if p.name in ("tpu", "output_file") else p
          for p in known]


_STOCK = {method: _stock(method) for method in (
    "__init__", "train", "eval", "finetune", "predict", "score", "export")}


_SIGNATURES: dict[str, inspect.Signature] = {}  # Those of `checked` methods.


@contextlib.contextmanager
def naming(method: str) -> Iterator[None]:
  """Lets messages in a `with` block name the arguments of a method of `MtfModel`."""
  known = [p.name for p in (*_STOCK["__init__"], *_STOCK[method])]
  with checks.calling({**_NAMES, **{_IN_GIN.get(name, f"utils.run.{name}"): name
                                    for name in known}}):
    yield


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
  """Makes a method of `MtfModel` take T5's arguments, and keyword-only ones of its own.

  Args:
    method: its first parameter after `self` gets a dict of the given arguments of T5's
      method of this name, by their names, checked, and with paths as strings.

  Returns:
    the method; it shows the log, and raises an `ArgumentError`, or a ValueError for a
    wrong value.
  """
  name = method.__name__
  own = [p for p in inspect.signature(method).parameters.values()
         if p.kind is p.KEYWORD_ONLY]
  signature = _SIGNATURES[name] = inspect.Signature([*_STOCK[name], *own])

  @functools.wraps(method)
  def wrapped(self, *args, **kwargs):
    with (console.shown(), switch.started(), naming(name), messages.without_calls(),
          messages.explained_files()):
      given = _bound(name, signature, args, kwargs)
      others = {p.name: given.pop(p.name) for p in own if p.name in given}
      return method(self, given, **others)

  self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
  vars(wrapped)["__signature__"] = signature.replace(
      parameters=[self, *signature.parameters.values()])
  return wrapped


def _where(method):
  return "MtfModel" if method == "__init__" else f"MtfModel.{method}"


def missing(method: str, name: str) -> ArgumentError:
  """The error of a call of a method without an argument that it needs."""
  return ArgumentError(
      f"{_where(method)} needs the argument `{name}`; pass `{name}=...`.")


def _bound(method, signature, args, kwargs):
  """The arguments of a call by name, checked."""
  where = _where(method)
  kwargs = {_ALIASES.get(method, {}).get(name, name): value
            for name, value in kwargs.items()}
  for name in kwargs.keys() - signature.parameters.keys():
    others = [_where(other) for other, known in _SIGNATURES.items()
              if name in known.parameters]
    meant = (f" Pass it to {others[0]}." if others else
             checks.did_you_mean(name, signature.parameters))
    raise ArgumentError(f"{where} has no argument {name!r}.{meant}")
  try:
    given = signature.bind(*args, **kwargs).arguments
  except TypeError as error:
    lacking = [name for name, p in list(signature.parameters.items())[len(args):]
               if p.default is p.empty and name not in kwargs]
    raise missing(method, lacking[0]) if lacking else ArgumentError(
        f"{where} gets {error}; pass arguments by their names.") from None
  return {name: value_checks.read(name, value) for name, value in given.items()}
