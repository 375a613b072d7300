"""One function of JAX from the operations that Mesh TensorFlow has lowered."""

from collections.abc import Sequence
import contextlib
import re
from typing import Any
from typing import NamedTuple

import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import arrays
from synthesizer_mtf.runtime import devices
import tensorflow as tf2
import tensorflow.compat.v1 as tf

# How XLA names an operation that it lacks, with its type and name.
_REFUSED = re.compile(r"unsupported operations .*?: (\w+) \(.*?\{\{node ([^}]+)\}\}",
                      re.DOTALL)


class Input(NamedTuple):
  """A tensor that the program reads, and how it is split."""
  tensor: tf.Tensor
  parts: devices.Parts


class State(NamedTuple):
  """A variable: the tensors of its old and its new value (or None), how it is split."""
  old: tf.Tensor
  new: tf.Tensor | None
  parts: devices.Parts


def reads(goals: Sequence[tf.Tensor], inputs: Sequence[Input]) -> list[Input]:
  """The variables of TensorFlow that goals depend on, such as the step's number."""
  known = {given.tensor.op for given in inputs}
  return [Input(op.outputs[0], ()) for op in _needed(goals, known)
          if _is_read(op)]


def is_constant(tensor: tf.Tensor) -> bool:
  """Whether a tensor is the same in each run: it depends on no data and variables."""
  return not any(_is_read(op) or op.type.startswith("Placeholder") or
                 op.op_def.is_stateful for op in _needed([tensor], set()))


def _is_read(op):
  """Whether an operation reads a variable of TensorFlow."""
  return any(t.dtype == tf.resource or t.dtype != t.dtype.base_dtype  # A reference.
             for t in op.inputs)


def _needed(goals, known):
  """The operations that goals depend on; the search ends at known ones and at reads."""
  needed, pending = {}, [goal.op for goal in goals]
  while pending:
    op = pending.pop()
    if op not in needed:
      needed[op] = None
      if op not in known and not _is_read(op):
        pending += [t.op for t in op.inputs]
  return list(needed)


def make(inputs: Sequence[Input], state: dict[str, State], results: Sequence[tf.Tensor],
         full_precision: bool = True) -> arrays.Program:
  """Makes a function from features and variables to results and new variables.

  It must be called where the tensors' graph is the default.

  Args:
    inputs: what each call is given.
    state: the variables, by name.
    results: the tensors that each call returns.
    full_precision: whether products of float32 have all bits on GPUs.

  Raises:
    ValueError: XLA cannot compile an operation.
  """
  changed = [name for name, variable in state.items() if variable.new is not None]
  arguments = [given.tensor for given in inputs] + [s.old for s in state.values()]
  outputs = [*results, *(state[name].new for name in changed)]
  exported = _export(
      _graph_def(outputs, arguments), arguments, outputs, full_precision)
  return arrays.Program(
      exported.serialize(), [given.parts for given in inputs],
      {name: variable.parts for name, variable in state.items()}, changed,
      len(results))


def jax_type(tensor: tf.Tensor) -> Any:
  """The dtype in which JAX is given a tensor; JAX has no 64 bits."""
  return {tf.int64: np.int32}.get(tensor.dtype, tensor.dtype.as_numpy_dtype)


def _graph_def(outputs, arguments):
  """The operations from arguments to outputs, without devices."""
  graph = tf.get_default_graph()
  known = {t.op for t in arguments}
  body = tf.GraphDef(versions=graph.graph_def_versions)
  body.library.CopyFrom(graph.as_graph_def().library)
  for op in _needed(outputs, known):
    if op not in known:
      node = body.node.add()
      node.CopyFrom(op.node_def)
      node.device = ""
      node.attr.pop("_class", None)
      inputs = [name for name in node.input if not name.startswith("^")]
      del node.input[:]
      node.input.extend(inputs)
  return body


def _export(body, arguments, outputs, full_precision):
  """The function of one core, for every platform."""
  import jax
  from jax.experimental import jax2tf

  present = {name for node in body.node for name in map(_producer, node.input)}
  used = [(i, t.name, t.dtype) for i, t in enumerate(arguments)
          if t.op.name in present or any(t is o for o in outputs)]
  goals = [t.name for t in outputs]

  def run(*values):
    given = {name: tf.cast(values[i], dtype) for i, name, dtype in used}
    return tf.import_graph_def(body, given, goals, name="")

  types = [jax.ShapeDtypeStruct(t.shape.as_list(), jax_type(t)) for t in arguments]
  # JAX keeps the function, and so the graph around it: not that of the model.
  with (tf.Graph().as_default(), tf2.__internal__.eager_context.eager_mode(),
        _precision(full_precision)):
    call = jax2tf.call_tf(
        tf2.function(run, autograph=False, jit_compile=True), has_side_effects=False)
    try:
      return jax.export.export(
          jax.jit(lambda *values: call(*values)), platforms=("cpu",),
          disabled_checks=[jax.export.DisabledSafetyCheck.platform()])(*types)
    except ValueError as error:
      if refused := _REFUSED.search(str(error)):
        raise checks.Error(
            f"XLA cannot compile {refused[1]} of {refused[2]}; write this layer with "
            "other operations, or leave out --gin_file=jax.gin.") from error
      raise


def _producer(name):
  return name.partition(":")[0]


@contextlib.contextmanager
def _precision(full):
  """XLA reads the precision of float32 products from TensorFlow's TF32 switch."""
  before = tf2.config.experimental.tensor_float_32_execution_enabled()
  tf2.config.experimental.enable_tensor_float_32_execution(not full)
  try:
    yield
  finally:
    tf2.config.experimental.enable_tensor_float_32_execution(before)
