"""Makes the TPU compiler's program from the step of one core.

TensorFlow turns the graph of the step into HLO, on any machine. Communication between
cores has no kernels outside of TPUs. So custom calls stand for it in the program, and
`tpu_compiler.py` replaces them with collectives.
"""

from collections.abc import Callable
import json
from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.tools.pod_planning import counting
from synthesizer_mtf.tools.pod_planning import lowering
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.xla.service import hlo_pb2

# The custom calls that `tpu_compiler.py` replaces.
ALLREDUCE, ALLTOALL, PERMUTE = (
    f"synthesizer_mtf.{kind}" for kind in ("allreduce", "alltoall", "permute"))


class ProgramMeshImpl(lowering.OneCoreMeshImpl):
  """The graph of one core, with custom calls for communication."""

  def allreduce(self, x: Any, mesh_axes: list[int],
                reduction_fn_string: str) -> Any:
    if not mesh_axes or reduction_fn_string != "SUM":
      return super().allreduce(x, mesh_axes, reduction_fn_string)
    tensor = x.to_laid_out_tensor().one_slice
    groups = self._create_group_assignment(mesh_axes)
    # Mesh casts in the same way.
    in_bfloat16 = (tensor.dtype == tf.bfloat16 and
                   len(groups[0]) <= self._allreduce_in_bfloat16_max_group_size)
    summed = tensor if in_bfloat16 else tf.cast(tensor, tf.float32)
    summed = _call(ALLREDUCE, summed, summed.shape, groups=groups)
    return self.LaidOutTensor([tf.cast(summed, tensor.dtype)])

  def alltoall(self, x: Any, mesh_axis: int, split_axis: int,
               concat_axis: int) -> Any:
    tensor = x.to_laid_out_tensor().one_slice
    groups = self._create_group_assignment([mesh_axis])
    count = len(groups[0])
    shape = tensor.shape.as_list()
    shape[split_axis] //= count
    shape[concat_axis] *= count
    # Mesh sends no float32.
    sent = tf.cast(tensor, tf.bfloat16) if tensor.dtype == tf.float32 else tensor
    sent = _call(ALLTOALL, sent, shape, groups=groups, split=split_axis,
                 concat=concat_axis, count=count)
    return self.LaidOutTensor([tf.cast(sent, tensor.dtype)])

  def receive(self, x: Any, mesh_axis: int,
              source_pcoord: list[int | None]) -> Any:
    tensor = x.to_laid_out_tensor().one_slice
    pairs = []
    for core in range(self.size):
      place = mtf.pnum_to_processor_coordinates(self.shape, core)
      source = source_pcoord[place[mesh_axis]]
      if source is not None:
        place[mesh_axis] = source
        pairs.append([mtf.processor_coordinates_to_pnum(self.shape, place), core])
    # Mesh sends only floats.
    sent = tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float32)
    sent = _call(PERMUTE, sent, sent.shape, pairs=pairs)
    return self.LaidOutTensor([tf.cast(sent, tensor.dtype)])


def _call(target, tensor, shape, **config):
  """Returns the result of a custom call, which has the dtype of the operand."""
  return gen_xla_ops.xla_custom_call_v2(
      operands=[tensor], call_target_name=target, backend_config=json.dumps(
          config, default=int), has_side_effect=False,
      result_dtypes=[tensor.dtype], result_shapes=[tf.TensorShape(shape)])[0]


class Function(NamedTuple):
  """A step that can be called.

  Attributes:
    call: a `tf.function` from the features to the step's result.
    features: the names of the features.
    variables: a dict from names in the graph to the variables of the step.
  """
  call: Callable[..., tf.Tensor]
  features: list[str]
  variables: dict[str, tf.Variable]


def function(step: lowering.Step, jit_compile: bool = True) -> Function:
  """Returns the function of a lowered step; must be called outside of any graph.

  Args:
    step: a `Step` that `lowering.lower` made with `loops_as_functions`.
    jit_compile: whether XLA compiles it.

  Returns:
    a `Function`, whose variables have the step's shapes but no values yet.
  """
  graph = step.fetches[-1].graph
  ops = counting.live(step.fetches)
  features = [op for op in ops if op.type == "Placeholder"]
  variables = {op.name: _empty_variable(op) for op in ops
               if op.type == "VarHandleOp"}
  names = [op.name for op in features]
  body = _graph_def(graph, step.fetches, {*names, *variables})

  def run(*values):
    here = tf.get_default_graph()
    inputs = dict(zip(names, values))
    inputs |= {name: here.capture(v.handle) for name, v in variables.items()}
    *updates, result = tf.import_graph_def(
        body, {f"{name}:0": tensor for name, tensor in inputs.items()},
        [op.name for op in step.fetches[:-1]] + [f"{step.fetches[-1].name}:0"],
        name="")
    with tf.control_dependencies(updates):
      return tf.identity(result)

  return Function(
      tf2.function(run, autograph=False, jit_compile=jit_compile, input_signature=[
          tf.TensorSpec(op.outputs[0].shape, op.outputs[0].dtype)
          for op in features]), names, variables)


def of_step(step: lowering.Step) -> bytes:
  """Returns the program of a lowered step; must be called outside of any graph.

  Args:
    step: a `Step` that `lowering.lower` made with `ProgramMeshImpl` and
      `loops_as_functions`.

  Returns:
    a serialized `HloModuleProto`.

  Raises:
    ValueError: XLA refuses an operation of the graph.
  """
  made = function(step)
  hlo = made.call.experimental_get_compiler_ir(*(
      tf2.zeros(spec.shape, spec.dtype) for spec in made.call.input_signature))(
          stage="hlo_serialized")
  return _without_copies(hlo)


def _empty_variable(op):
  """Returns a variable shaped like one in the graph; its memory stays untouched."""
  shape = tf.TensorShape(op.get_attr("shape")).as_list()
  return tf2.Variable(tf2.raw_ops.Empty(
      shape=shape, dtype=tf.as_dtype(op.get_attr("dtype")), init=False))


def _graph_def(graph, fetches, given):
  """Returns the part of the graph that the fetches need, without devices and inputs."""
  needed = tf.graph_util.extract_sub_graph(
      graph.as_graph_def(), [op.name for op in fetches])
  body = tf.GraphDef(versions=needed.versions, library=needed.library)
  for node in needed.node:
    if node.name not in given:
      new = body.node.add()
      new.CopyFrom(node)
      new.device = ""
      new.attr.pop("_class", None)
  return body


def _without_copies(hlo):
  """Removes TensorFlow's copies of returned variables, which JAX cannot read."""
  module = hlo_pb2.HloModuleProto.FromString(hlo)
  for computation in module.computations:
    for instruction in computation.instructions:
      if instruction.opcode == "copy":
        instruction.MergeFrom(hlo_pb2.HloInstructionProto(opcode="reshape"))
  return module.SerializeToString()
