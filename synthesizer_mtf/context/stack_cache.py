"""A cache of values that all layers of a stack share."""

from collections.abc import Callable
from typing import Any

from mesh_tensorflow.transformer import transformer


def once_per_stack(context: transformer.Context, key: Any,
                   make: Callable[[], Any]) -> Any:
  """Calls `make` once for all layers of a stack, and returns its result.

  Layers that run again in the backward pass cannot share tensors, so each of them
  calls `make`.

  Args:
    context: a `transformer.Context`.
    key: a hashable name.
    make: a function without arguments.
  """
  stack = context.model.layer_stack
  if (isinstance(stack, transformer.ReversibleLayerStack) or
      getattr(stack, "_recompute_grads", False)):
    return make()
  # Some stacks shorten the sequences between their layers.
  key = "synthesizer_mtf", key, context.length_dim
  if key not in context.cache:
    context.cache[key] = make()
  return context.cache[key]
