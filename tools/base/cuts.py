"""Which tasks only cut their texts to the model's lengths."""

import inspect

import seqio

# Steps of tasks that use the lengths for nothing but to cut.
_CUTS = ("append_eos_after_trim", "append_eos", "report", "trim")


def cuts_only(task: seqio.Task) -> bool:
  """Returns whether a task uses the lengths only to cut."""
  return all(_name(step) in _CUTS for step in filter(callable, task.preprocessors)
             if "sequence_length" in inspect.signature(step).parameters)


def _name(step):
  return getattr(inspect.unwrap(getattr(step, "func", step)), "__name__", "")
