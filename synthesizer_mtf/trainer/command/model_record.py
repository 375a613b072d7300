"""Completes the operative_config.gin that `MtfModel` writes when it trains.

gin writes what its functions took from it. But `MtfModel` passes the task, the lengths,
the batch and the device as arguments, and so a reader of the folder, such as the
command or a tool, found none of them.
"""

from collections.abc import Mapping
from typing import Any

import gin
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names

_RUN = "", "mesh_tensorflow.transformer.utils.run"
_MACRO = "MIXTURE_NAME", "gin.macro"
# As in T5's dataset.gin.
_TASK = """
MIXTURE_NAME = {task!r}
utils.run.train_dataset_fn = @t5.models.mesh_transformer.mesh_train_dataset_fn
t5.models.mesh_transformer.mesh_train_dataset_fn.mixture_or_task_name = %MIXTURE_NAME
t5.models.mesh_transformer.get_vocabulary.mixture_or_task_name = %MIXTURE_NAME
utils.run.vocabulary = @t5.models.mesh_transformer.get_vocabulary()
"""
_NAMED = [("", f"t5.models.mesh_transformer.{name}")
          for name in ("mesh_train_dataset_fn", "get_vocabulary")]


def complete(task: str, arguments: Mapping[str, Any]) -> None:
  """Makes gin write what a command would have had; the caller restores gin afterwards.

  `arguments` are those of `utils.run`, by name. Functions and classes are written if
  gin knows them.
  """
  with gin.unlock_config():
    gin.parse_config(_TASK.format(task=task))
  gin_files.bind({f"utils.run.{name}": _reference(value)
                  for name, value in arguments.items() if value is not None})
  bound, calls = gin_internals.bindings(), gin_internals.calls()
  calls[_MACRO] = dict(bound[_MACRO])
  run = bound[_RUN]
  calls[_RUN] = {name: run[name] for name in (
      "train_dataset_fn", "vocabulary", *arguments) if name in run}
  for where in _NAMED:
    calls.setdefault(where, {})["mixture_or_task_name"] = (
        bound[where]["mixture_or_task_name"])


def _reference(value):
  """A reference to a function or a class that gin knows; other values as they are."""
  name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
  if callable(value) and gin_names.full_name(name) == name:
    return gin.config.ConfigurableReference(name, evaluate=False)
  return value
