"""A cache of values that all layers of a stack share."""

from collections.abc import Callable
from typing import Any

from mesh_tensorflow.transformer import funnel_transformer
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import universal_transformer

# Stacks whose layers run once in the forward pass, unless `_recompute_grads` is set. A
# subclass may run them again.
_STACKS = (transformer.LayerStack, universal_transformer.UTLayerStack,
           funnel_transformer.FunnelTransformerLayerStack)


def once_per_stack(context: transformer.Context, key: Any,
                   make: Callable[[], Any]) -> Any:
  """Calls `make` once for all layers of a stack, and returns its result.

  Layers that run again in the backward pass cannot share tensors, so each of them
  calls `make`. So do the layers of a stack of another class. The key is hashable.
  """
  stack = context.model.layer_stack
  if type(stack) not in _STACKS or getattr(stack, "_recompute_grads", False):
    return make()
  # Some stacks shorten the sequences between their layers.
  key = "synthesizer_mtf", key, context.length_dim
  if key not in context.cache:
    context.cache[key] = make()
  return context.cache[key]
