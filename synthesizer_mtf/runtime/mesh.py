"""A mesh whose slices live in JAX: a third `MeshImpl` beside those for GPUs and TPUs.

Mesh TensorFlow lowers a model to the operations of one core, whatever the mesh is.
Features and variables are inputs of these operations, and assignments are results. So
`program.py` can hand them to JAX as one function. The layout rules say how JAX splits
inputs and results, and XLA's partitioner finds the communication.

TensorFlow's session runs the program as one operation. The masters of the variables
are TensorFlow's, but only their names and shapes are used: values live on the devices.
They pass through TensorFlow one at a time, when `saving.py` saves or restores them.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import mesh_tensorflow as mtf
from mesh_tensorflow import simd_mesh_impl
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import arrays
from synthesizer_mtf.runtime import memory
from synthesizer_mtf.runtime import processes
from synthesizer_mtf.runtime import program
import tensorflow.compat.v1 as tf

# What an assignment makes of the old and the new value, by the function of Mesh.
_ASSIGNED: dict[Callable[..., Any], Callable[..., tf.Tensor]] = {
    mtf.assign_slice: lambda old, value: value,
    mtf.assign_add_slice: lambda old, value: old + value,
    mtf.assign_sub_slice: lambda old, value: old - value,
}


class JaxMeshImpl(simd_mesh_impl.SimdMeshImpl):
  """One core's operations, which JAX runs on all devices of a mesh.

  For Mesh TensorFlow the mesh has the size 1 in each dimension.

  Attributes:
    arrays: an `arrays.Arrays`.
    jax_devices: its `devices.Devices`.
    variables: a dict from names to the `LaidOutVariable`s.
    results: what the last run has made of the exported tensors, arrays of JAX; to read
      one waits until it is computed.
    compiled: the `arrays.Program` that `compile` makes; None before.
    exports_all: True, as a run returns all exported tensors; TPUs return scalars.
  """

  exports_all = True

  def __init__(self, shape: mtf.Shape, layout: mtf.LayoutRules,
               names: Sequence[Any] | None = None,
               draw: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None,
               leader: processes.Leader | None = None) -> None:
    """Finds the devices.

    Args:
      shape: the mesh; `mtf.convert_to_shape` accepts it.
      layout: the layout rules; `mtf.convert_to_layout_rules` accepts them.
      names: devices, such as "gpu:0"; None or empty names for all that JAX sees.
        Devices of JAX can stand for their names.
      draw: a function (sizes, tf_fn, kwargs) of random numbers, and of what they
        hang on outside of loops; None for those of TensorFlow.
      leader: of several processes; None for one.

    Raises:
      ValueError: JAX lacks the devices.
    """
    self.arrays: Any = (leader.arrays if leader else arrays.Arrays)(
        shape, layout, names)
    self.jax_devices = self.arrays.devices
    super().__init__(mtf.Shape(
        [mtf.Dimension(d.name, 1) for d in self.jax_devices.shape.dims]), layout)
    self.variables: dict[str, JaxMeshImpl.LaidOutVariable] = {}
    self._draw = draw
    self._graph = tf.get_default_graph()
    self._inputs: list[program.Input] = []
    self._exports: list[tf.Tensor] = []
    self._read_by_draws: list[tf.Tensor] = []
    self._waiting: list[tf.Operation] = []  # They read what the program exports.
    self.results: Sequence[Any] = []
    self._delayed: int | None = None  # The index of a result that is told a run late,
    self._told: Any = None  # and what is told.
    self.compiled: Any = None

  class LaidOutVariable:
    """A variable whose value is an array of JAX."""

    def __init__(self, variable: mtf.Variable, mesh_impl: "JaxMeshImpl") -> None:
      self.master, self.name = variable.get_master(), variable.name
      self._arrays, self._in_python = mesh_impl.arrays, mesh_impl.in_python
      shape = variable.outputs[0].shape
      with tf.name_scope(None):
        self.old = tf.placeholder(
            variable.slice_dtype, shape.to_integer_list, "jax_state")
      self.new: tf.Tensor | None = None
      self.parts = mesh_impl.jax_devices.parts(shape)
      self.laid_out_tensor = mesh_impl.LaidOutTensor([self.old])
      mesh_impl.variables[variable.name] = self

    @property
    def copy_master_to_slices(self) -> tf.Operation:
      """Nothing: `assign` has put the value on the devices."""
      return tf.no_op()

    copy_slices_to_master = copy_master_to_slices

    def assign(self, value: tf.Tensor) -> tf.Operation:
      """Puts a value on the devices, rounded to the dtype of checkpoints."""
      with mtf.utils.outside_all_rewrites():
        value = tf.cast(tf.cast(value, self.master.dtype.base_dtype), self.old.dtype)
        return self._in_python(self._put, [value], tf.int32).op

    def value(self) -> tf.Tensor:
      """Gets the value from the devices, in the dtype of checkpoints."""
      value = self._in_python(self.read, [], self.old.dtype)
      value.set_shape(self.old.shape)
      return tf.cast(value, self.master.dtype.base_dtype)

    def zero_if_finite(self) -> tf.Tensor:
      """<float32>[]: 0, or NaN if a number of the value is NaN or infinite."""
      return self._in_python(
          lambda: self._arrays.zero_if_finite(self.name), [], tf.float32)

    def read(self) -> np.ndarray:
      """The value, from the devices."""
      return self._arrays.read(self.name)

    def assign_to_slices(self, assign_fn: Callable[..., Any], values: list[tf.Tensor],
                         assign_to_tensor_list: Any = None) -> tf.Operation:
      if assign_fn not in _ASSIGNED:
        raise checks.Error(
            f"{self.name} is assigned by {assign_fn.__name__}, which JAX "
            "does not know; use one of Mesh TensorFlow's "
            f"{', '.join(f.__name__ for f in _ASSIGNED)}, or leave out "
            "--gin_file=jax.gin.")
      old = self.old if self.new is None else self.new
      self.new = _ASSIGNED[assign_fn](old, tf.cast(values[0], old.dtype))
      return tf.no_op()

    def _put(self, value):
      self._arrays.put(self.name, value, self.parts)
      return np.int32(0)

  def tensor_layout(self, arg: Any) -> mtf.TensorLayout:
    """Which dimensions are split.

    Raises:
      ValueError: the layout rules split two dimensions over the same devices.
    """
    try:
      return super().tensor_layout(arg)
    except ValueError as error:
      shape = getattr(arg, "shape", arg)
      raise checks.Error(
          f"`utils.run.layout_rules` splits two dimensions of a tensor, {shape}, over "
          "one mesh dimension; leave out one of the two rules.") from error

  def laid_out_pnum(self) -> Any:
    """The core's number: 0, as the operations are those of one core."""
    return self.LaidOutTensor([tf.constant(0)])

  def allreduce(self, x: Any, mesh_axes: list[int], reduction_fn_string: str) -> Any:
    """The sum over one core; XLA adds up what it has split."""
    return x.to_laid_out_tensor()

  def allconcat(self, x: Any, mesh_axis: int, concat_axis: int,
                stack: bool = False) -> Any:
    """The part of one core, which is the whole."""
    x = x.to_laid_out_tensor()
    if stack:
      return self.LaidOutTensor([tf.expand_dims(x.one_slice, concat_axis)])
    return x

  def alltoall(self, x: Any, mesh_axis: int, split_axis: int, concat_axis: int) -> Any:
    """What one core has, it keeps."""
    return x.to_laid_out_tensor()

  def receive(self, x: Any, mesh_axis: int, source_pcoord: list[int | None]) -> Any:
    """What one core sends to itself; zeros if nobody sends to it."""
    x = x.to_laid_out_tensor()
    return x if source_pcoord[0] == 0 else self.LaidOutTensor(
        [tf.zeros_like(x.one_slice)])

  def random(self, shape: mtf.Shape, tf_fn: Callable[..., Any],
             kwargs: dict[str, Any]) -> Any:
    if self._draw is None:
      return self.LaidOutTensor([tf_fn(shape.to_integer_list, **kwargs)])
    drawn, read = self._draw(shape.to_integer_list, tf_fn, kwargs)
    self._read_by_draws.append(read)
    return self.LaidOutTensor([drawn])

  def import_tf_tensor(self, x: mtf.Tensor, tf_x: Any) -> Any:
    tensor = tf.convert_to_tensor(tf_x)
    if tensor.graph is not self._graph or program.is_constant(tensor):  # Or in a loop.
      return self.LaidOutTensor([tensor])
    tensor = tf.identity(tensor, name="jax_input")
    self._inputs.append(program.Input(tensor, self.jax_devices.parts(_shape(x))))
    return self.LaidOutTensor([tensor])

  def export_to_tf_tensor(self, x: mtf.Tensor, laid_out_x: Any) -> tf.Tensor:
    """What a run makes of a tensor; the operation waits for `token`, made later.

    Raises:
      ValueError: the tensor is inside of a loop.
    """
    inner, index = laid_out_x.one_slice, len(self._exports)
    if inner.graph is not self._graph:
      raise checks.Error(
          f"{x.name} is captured in a loop over microbatches, whose tensors JAX does "
          "not hand out; bind `utils.serialize_num_microbatches."
          "tokens_per_microbatch_per_replica = None`, or capture nothing.")
    self._exports.append(inner)
    result = self.in_python(
        lambda: np.asarray(self.results[index], inner.dtype.as_numpy_dtype), [],
        inner.dtype)
    self._waiting.append(result.op)
    result.set_shape(inner.shape)
    return result

  def delayed(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Callable[[], Any]] | None:
    """A result without a wait for the devices, which compute while the host goes on.

    Args:
      tensor: one tensor in the whole graph: an exported one, or a cast of it.

    Returns:
      a tensor <float32>[], its value in the run before, or in the first run its own;
      and a function that waits for its own value. None if it is no exported tensor.
    """
    op = tensor.op
    while op not in self._waiting:
      if len(op.inputs) != 1:
        return None
      op = op.inputs[0].op
    index = self._delayed = self._waiting.index(op)
    with tf.control_dependencies([self.token]):
      before = self.in_python(lambda: np.float32(self._told), [], tf.float32)
    before.set_shape([])
    return before, lambda: float(self.results[index])

  @property
  def input_tensors(self) -> list[tf.Tensor]:
    """What a run reads, besides the variables: features, and the step's number."""
    return [given.tensor for given in self._inputs]

  @functools.cached_property
  def token(self) -> tf.Tensor:
    """<int32>[]: the program has run once it is known.

    To be read once the model is lowered, and all that a run returns is exported.
    """
    goals = [v.new for v in self.variables.values() if v.new is not None]
    goals += [*self._exports, *self._read_by_draws]
    self._inputs += program.reads(goals, self._inputs)
    token = self.in_python(self._run, self.input_tensors, tf.int32, name="jax_run")
    for op in self._waiting:
      op._add_control_inputs([token.op])
    return token

  def compile(self, full_precision: bool = True) -> arrays.Program:
    """Compiles the program, once all tensors are exported.

    Args:
      full_precision: whether products of float32 have all bits, also on GPUs.
    """
    _ = self.token  # Which completes the inputs.
    state = {name: program.State(v.old, v.new, v.parts)
             for name, v in sorted(self.variables.items())}
    self.compiled = program.make(self._inputs, state, self._exports, full_precision)
    self.arrays.compile(self.compiled)
    return self.compiled

  def in_python(self, function: Callable[..., Any], inputs: list[tf.Tensor],
                dtype: tf.DType, name: str | None = None) -> tf.Tensor:
    """Calls a function of NumPy arrays in each run of a session that needs it.

    Where devices lack memory, the session raises a `ResourceExhaustedError` with the
    sentence of `memory.OutOfMemory`.
    """
    explained = memory.explaining(
        function,
        lambda: self.compiled.exported().mlir_module() if self.compiled else "",
        lambda: ((v.name, v.old) for v in self.variables.values()))
    return tf.numpy_function(explained, inputs, dtype, name=name)

  def _run(self, *values):
    before, self.results = self.results, self.arrays.run([
        np.array(value, program.jax_type(given.tensor))  # TensorFlow frees its own.
        for value, given in zip(values, self._inputs, strict=True)])
    if self._delayed is not None:
      self._told = (before or self.results)[self._delayed]
    return np.int32(0)


def _shape(x):
  """The shape of an imported tensor, whose dimensions Mesh imports without names.

  As it imports features in this way, their batch would not be split otherwise.
  """
  named = [op.outputs[0].shape for op in x.graph.operations
           if isinstance(op, mtf.ReshapeOperation) and op.inputs[0] is x]
  return named[0] if named else x.shape
