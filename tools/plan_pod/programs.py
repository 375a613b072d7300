"""Makes the TPU compiler's program from the step of one core.

TensorFlow turns the graph of the step into HLO, on any machine.
"""

from typing import Any
from typing import NamedTuple

from synthesizer_mtf.tools.plan_pod import counting
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.trainer.model import function as model_function
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.compiler.xla.service import hlo_pb2


class Function(NamedTuple):
  """A step that can be called.

  Attributes:
    call: a `tf.function` from the features to the step's result.
    features: the names of the features.
    variables: a dict from names in the graph to the variables of the step.
  """
  call: Any
  features: list[str]
  variables: dict[str, tf.Variable]


def function(step: lowering.Step, jit_compile: bool = True) -> Function:
  """Returns the function of a lowered step; must be called outside of any graph.

  Args:
    step: a `Step` whose loops are functions.
    jit_compile: whether XLA compiles it.

  Returns:
    a `Function`, whose variables have the step's shapes but no values yet.
  """
  ops = counting.live(step.fetches)
  features = {op.name: op.outputs[0] for op in ops if op.type == "Placeholder"}
  handles = {op.name: op.outputs[0] for op in ops if op.type == "VarHandleOp"}
  variables = {name: _empty_variable(tensor.op) for name, tensor in handles.items()}
  *updates, result = step.fetches
  of_tensors = model_function.of(result.outputs, {**features, **handles}, updates)

  def run(*values):
    here = tf.get_default_graph()
    state = {name: here.capture(v.handle) for name, v in variables.items()}
    return of_tensors({**dict(zip(features, values)), **state})[0]

  return Function(
      tf2.function(run, autograph=False, jit_compile=jit_compile, input_signature=[
          tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in features.values()]),
      [*features], variables)


def of_step(step: lowering.Step) -> bytes:
  """Returns the program of a lowered step; must be called outside of any graph.

  Args:
    step: a `Step` whose loops are functions.

  Returns:
    a serialized `HloModuleProto`.

  Raises:
    ValueError: XLA refuses an operation of the graph.
  """
  call = function(step).call
  # Of values, those that begin a slice, such as the number of the core, would become
  # constants.
  return _without_copies(call.experimental_get_compiler_ir(*call.input_signature)(
      stage="hlo_serialized"))


def _empty_variable(op):
  """Returns a variable shaped like one in the graph; its memory stays untouched."""
  shape = tf.TensorShape(op.get_attr("shape")).as_list()
  return tf2.Variable(tf2.raw_ops.Empty(
      shape=shape, dtype=tf.as_dtype(op.get_attr("dtype")), init=False))


def _without_copies(hlo):
  """Removes TensorFlow's copies of returned variables, which JAX cannot read."""
  module = hlo_pb2.HloModuleProto.FromString(hlo)
  for computation in module.computations:
    for instruction in computation.instructions:
      if instruction.opcode == "copy":
        instruction.MergeFrom(hlo_pb2.HloInstructionProto(opcode="reshape"))
  return module.SerializeToString()
