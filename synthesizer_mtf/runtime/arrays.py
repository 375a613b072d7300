"""The variables of a mesh and the program that changes them, in one process."""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
from synthesizer_mtf.runtime import devices


class Program(NamedTuple):
  """A function from inputs and variables to results and new variables.

  Attributes:
    module: a serialized `jax.export.Exported` of one core. Its arguments are the inputs
      and the variables; its results are the results and the new variables.
    inputs: the parts of the mesh that share each input.
    state: the parts that share each variable, by name, in the order of the arguments.
    changed: the names of the variables that it changes.
    results: how many results come before the new variables.
  """
  module: bytes
  inputs: Sequence[devices.Parts]
  state: dict[str, devices.Parts]
  changed: Sequence[str]
  results: int

  def exported(self) -> Any:
    """The `jax.export.Exported`."""
    import jax

    return jax.export.deserialize(bytearray(self.module))


@dataclasses.dataclass
class Part:
  """Those parts of a NumPy array that the devices of a process need.

  Attributes:
    shape: of the whole array.
    values: the parts, by the slices that they are, as a string.
  """
  shape: tuple[int, ...]
  values: dict[str, np.ndarray]

  def __getitem__(self, slices: tuple[slice, ...]) -> np.ndarray:
    return self.values[str(slices)]


class Arrays:
  """Arrays of JAX by name, on the devices of a mesh.

  Attributes:
    devices: a `devices.Devices`.
  """

  def __init__(self, shape: Any, layout: Any = "",
               names: Sequence[Any] | None = None) -> None:
    """Finds the devices; the arguments are those of `devices.Devices`."""
    self.devices = devices.Devices(shape, layout, names)
    self._arrays: dict[str, Any] = {}
    self._call: Any = None
    self._types: list[Any] = []  # Of the arguments of the program.
    self._program: Program | None = None
    self._kept: list[str] = []  # The variables that the program only reads.

  def put(self, name: str, value: np.ndarray | Part, parts: devices.Parts) -> None:
    """Gives a variable a value, of which each device gets its part."""
    self._arrays[name] = self._put(value, parts)

  def read(self, name: str) -> np.ndarray:
    """The whole value of a variable."""
    import jax

    array = self._arrays[name]
    if not array.is_fully_addressable:  # Other processes have parts.
      array = jax.jit(_same, out_shardings=self.devices.sharding(()))(array)
    return np.array(array)  # A copy, as steps overwrite the array.

  def zero_if_finite(self, name: str) -> np.float32:
    """0, or NaN if a number of the variable is NaN or infinite."""
    import jax

    return np.float32(jax.jit(
        _zero_if_finite, out_shardings=self.devices.sharding(()))(self._arrays[name]))

  def compile(self, program: Program) -> None:
    """Takes the program that `run` runs; JAX compiles it in the first run."""
    import jax

    self._program = program
    exported = program.exported()
    self._types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    changed = program.changed
    changing = set(changed)
    self._kept = kept = [name for name in program.state if name not in changing]

    def call(values, changed_arrays, kept_arrays):
      arrays = dict(zip([*changed, *kept], [*changed_arrays, *kept_arrays]))
      return tuple(exported.call(*values, *(arrays[n] for n in program.state)))

    ins, outs = [[self.devices.sharding(program.state[n]) for n in names]
                 for names in (kept, changed)]
    inputs = [self.devices.sharding(parts) for parts in program.inputs]
    whole = self.devices.sharding(())
    self._call = jax.jit(
        call, in_shardings=(inputs, outs, ins),
        out_shardings=tuple([whole] * program.results + outs), donate_argnums=(1,))

  def lower(self) -> Any:
    """The program for the devices, a `jax.stages.Lowered`, which compiles it."""
    program = self._program
    assert program is not None
    inputs = len(program.inputs)
    state = dict(zip(program.state, self._types[inputs:]))
    return self._call.lower(
        self._types[:inputs], [state[name] for name in program.changed],
        [state[name] for name in self._kept])

  def run(self, values: Sequence[np.ndarray | Part]) -> Sequence[Any]:
    """Starts the program, which changes variables; returns its results.

    They are arrays of JAX: to read one waits until it is computed.
    """
    program = self._program
    assert program is not None
    values = [self._put(value, parts)
              for value, parts in zip(values, program.inputs, strict=True)]
    made = self._call(values, [self._arrays[name] for name in program.changed],
                      [self._arrays[name] for name in self._kept])
    self._arrays.update(zip(program.changed, made[program.results:]))
    return made[:program.results]

  def _put(self, value, parts):
    import jax

    sharding = self.devices.sharding(parts)
    if sharding.is_fully_addressable:
      return jax.device_put(value, sharding)
    return jax.make_array_from_callback(
        value.shape, sharding, lambda slices: np.asarray(value[slices]))


def _same(array):
  return array


def _zero_if_finite(array):
  from jax import numpy as jnp

  return jnp.where(jnp.isfinite(array).all(), 0., jnp.nan)
