"""What a mesh says when its devices have not enough memory for a program."""

from collections.abc import Callable
from collections.abc import Iterable
import functools
import math
import re
from typing import Any

import numpy as np

_REFUSED = "RESOURCE_EXHAUSTED"  # How XLA begins, when it compiles or runs a program.
_SHOWN = 3  # Tensors.
_TENSOR = re.compile(r"tensor<((?:\d+x)+)([a-z]+(\d+)\w*)>")  # In StableHLO.


class OutOfMemory(MemoryError):
  """The devices have not enough memory; the message says which tensors are large."""


def explaining(function: Callable[..., Any], module: Callable[[], str],
               variables: Callable[[], Iterable[tuple[str, Any]]]
               ) -> Callable[..., Any]:
  """A function that raises one sentence where devices lack memory.

  Args:
    function: what calls JAX.
    module: returns the program in StableHLO.
    variables: returns the variables, as (name, a tensor with their shape and dtype).

  Returns:
    a function of the same parameters; it raises `OutOfMemory`.
  """
  @functools.wraps(function)
  def explained(*args):
    try:
      return function(*args)
    except RuntimeError as error:
      if _REFUSED not in str(error):
        raise
      raise OutOfMemory(_sentence(str(error), module(), variables())) from error

  return explained


def _sentence(text, module, variables):
  """Which tensors are large, and what to change."""
  why = text[text.index(_REFUSED):].splitlines()[0].rstrip(". ")
  sizes = {name: tensor.dtype.size * tensor.shape.num_elements()
           for name, tensor in variables}
  largest = max(sizes, key=sizes.__getitem__, default="none")
  return (
      f"the devices have not enough memory ({why}). The largest tensors of the program "
      f"are {', '.join(_largest(module))}; its variables are "
      f"{_shown(sum(sizes.values()))}, {largest!r} the largest. Lower "
      "`utils.run.batch_size`, `utils.run.sequence_length` or "
      "`utils.serialize_num_microbatches.tokens_per_microbatch_per_replica`, add "
      "--gin_file=mixed_precision.gin, or split more over `utils.run.mesh_shape`.")


def _largest(module):
  """The largest tensors of a program, before they are split, e.g. "f32[8,512] (…)"."""
  tensors = {}
  for sizes, dtype, bits in set(_TENSOR.findall(module)):
    shape = [int(size) for size in sizes[:-1].split("x")]
    tensors[f"{dtype}{shape}"] = math.prod(shape) * math.ceil(int(bits) / 8)
  best = sorted(tensors.items(), key=lambda tensor: -tensor[1])[:_SHOWN]
  return [f"{name} of {_shown(size)}" for name, size in best]


def _shown(size):
  power = max(0, min(int(np.log2(max(size, 1)) // 10), 3))
  return f"{size / 1024 ** power:.3g} {['bytes', 'KiB', 'MiB', 'GiB'][power]}"
