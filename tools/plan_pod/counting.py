"""Counts what one core computes, sends and keeps, from its TensorFlow graph.

Operations that no fetch needs are left out. Operations in the loop over microbatches
count once for each pass. Shapes are those of the core's slices. Multiply-adds and bytes
of variables and of communication are exact.

The bytes of activations are those of XLA's compiler only nearly: a result is kept
from its operation to the last one that reads it, unless it is elementwise and has one
user, with which XLA fuses it. Operations run in the order in which Mesh made them, but
updates of variables and of sums over microbatches run as soon as possible.

mesh_tensorflow.auto_mtf also has an estimator of memory. It takes the whole Mesh graph
without fusion, does not look into loops, and needs time quadratic in the size of the
graph.
"""

import collections
import itertools
import math
import re
from typing import Any
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
import tensorflow.compat.v1 as tf

# Operations that return their first input without a copy.
_ALIASES = frozenset((
    "Enter", "Exit", "ExpandDims", "Identity", "LoopCond", "Merge",
    "PreventGradient", "Reshape", "Snapshot", "Squeeze", "StopGradient",
    "Switch"))
# Operations whose results exist already: constants, features and variables.
_GIVEN = frozenset(("Const", "NoOp", "Placeholder", "PlaceholderWithDefault",
                    "ReadVariableOp", "VarHandleOp", "VariableV2"))
# Operations that write to the memory of another operation.
_UPDATES = frozenset(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
                      "NextIteration"))
# Operations that XLA does not fuse into their user.
_KERNELS = frozenset((
    "All", "Any", "ArgMax", "BatchMatMulV2", "ConcatV2", "Conv2D", "Cumsum",
    "DepthwiseConv2dNative", "Einsum", "LogSoftmax", "MatMul", "Max", "Mean",
    "Min", "Prod", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
    "Softmax", "Sort", "StatelessRandomUniform", "Sum", "TopKV2",
    "TruncatedNormal", "UnsortedSegmentSum", "XlaCustomCallV2"))


class Collective(NamedTuple):
  """A kind of communication within groups of cores.

  Attributes:
    kind: "allreduce", "alltoall" or "receive".
    mesh_dimensions: a tuple of names.
    cores: the number of cores in a group.
    chips: the number of chips in a group.
  """
  kind: str
  mesh_dimensions: tuple[str, ...]
  cores: int
  chips: int


class Counts(NamedTuple):
  """What one core does in a training step.

  Attributes:
    multiply_adds: those of all matrix products.
    collectives: a Counter from `Collective` to the bytes that a core puts in.
    allreduces: a Counter from (name of the operation with numbers as *, mesh
      dimensions, runs in a step) to the bytes that a core puts in.
    activation_bytes: the most bytes besides variables that are kept at once.
    operations: the number of TensorFlow operations in the graph of a core.
    largest_activation: (operation, bytes) of the largest result.
  """
  multiply_adds: int
  collectives: collections.Counter
  allreduces: collections.Counter
  activation_bytes: int
  operations: int
  largest_activation: tuple[str, int]

  def allreduce_bytes(self) -> dict[str, int]:
    """A dict from mesh dimensions, joined by +, to all-reduced bytes."""
    found = collections.Counter()
    for collective, size in self.collectives.items():
      if collective.kind == "allreduce":
        found["+".join(collective.mesh_dimensions)] += size
    return dict(found)

  def largest_allreduces(self, most: int = 5) -> list[dict[str, Any]]:
    """Returns a dict for each of the `most` largest all-reduces, the largest first."""
    return [{"operation": name, "mesh_dimensions": list(dimensions),
             "times_per_step": times, "bytes_per_core": size}
            for (name, dimensions, times), size in
            self.allreduces.most_common(most)]


def count(fetches: list[tf.Operation], collectives: dict[str, Collective],
          microbatches: int = 1) -> Counts:
  """Counts everything that the fetched operations need.

  Args:
    fetches: TensorFlow operations.
    collectives: the dict `lowering.OneCoreMeshImpl.collectives`.
    microbatches: how often the body of a loop runs.
  """
  ops = live(fetches)
  products, groups, allreduces = 0, collections.Counter(), collections.Counter()
  for op in ops:
    times = microbatches if _in_loop(op) else 1
    products += times * multiply_adds(op)
    collective = collectives.get(op.name)
    if collective:
      size = times * tensor_bytes(op.inputs[0])
      groups[collective] += size
      if collective.kind == "allreduce":
        name = re.sub(r"_\d+", "_*", op.name.rpartition("/")[0])
        allreduces[name, collective.mesh_dimensions, times] += size
  lives = _lives(ops)
  largest = max(lives, key=lambda life: life.size, default=_Life("", 0, 0, 0))
  return Counts(products, groups, allreduces, _peak(lives), len(ops),
                (largest.name, largest.size))


def live(fetches: list[tf.Operation]) -> list[tf.Operation]:
  """Returns the operations that the fetches need, each after its inputs.

  Apart from this they are in the order of their creation. (An operation in a loop is
  older than the `Enter` that brings it a value from outside.)
  """
  graph = fetches[0].graph
  needed, stack = set(fetches), list(fetches)
  while stack:
    op = stack.pop()
    for other in [t.op for t in op.inputs] + list(op.control_inputs):
      if other not in needed:
        needed.add(other)
        stack.append(other)
  ordered = {}
  for op in graph.get_operations():
    stack = [op] if op in needed else []
    while stack:
      missing = [t.op for t in stack[-1].inputs if t.op not in ordered and
                 t.op.type != "NextIteration"]
      if missing:
        stack.append(missing[0])
      else:
        ordered[stack.pop()] = None
  return list(ordered)


def tensor_bytes(tensor: tf.Tensor) -> int:
  """Returns the size of a tensor; 0 if its shape is not known."""
  return (tensor.shape.num_elements() or 0) * tensor.dtype.base_dtype.size


class _Life(NamedTuple):
  """A result that is kept: its operation, its bytes, and the indices of its users."""
  name: str
  size: int
  first: int
  last: int


def _lives(ops):
  """Returns a `_Life` for each result that takes memory."""
  root, uses = _roots(ops)
  inside = [index for index, op in enumerate(ops) if _in_loop(op)]
  start, end = (inside[0], inside[-1]) if inside else (0, -1)
  held: dict[Any, set] = {}  # Root key -> keys of the results that a user reads.
  born, last = {}, {}
  for index, op in enumerate(ops):
    if op.type in _ALIASES or op.type in _GIVEN:
      continue
    read = set().union(*(held.get(root[_key(t)], ()) for t in op.inputs))
    if _is_elementwise(op) and uses[_key(op.outputs[0])] == 1:
      held[_key(op.outputs[0])] = read
      continue
    if op.type in _UPDATES:  # Runs as soon as its inputs exist, which frees them.
      index = max((born[key] for key in read), default=index)
    last.update((key, max(index, last.get(key, 0))) for key in read)
    for t in () if op.type in _UPDATES else op.outputs:
      born[_key(t)], held[_key(t)] = index, {_key(t)}
    if op.type == "NextIteration":  # Its result is kept as long as the loop runs.
      born[_key(op.outputs[0])], last[_key(op.outputs[0])] = start, end
  return [_Life(op.name, tensor_bytes(op.outputs[value]), first,
                # The next microbatch reads what is from before the loop again.
                end if first < start <= last.get((op, value), first) <= end
                else last.get((op, value), first))
          for (op, value), first in born.items()]


def _roots(ops):
  """Returns the key of the tensor that holds each tensor's values, and its users."""
  root, uses = {}, collections.Counter()
  for op in ops:
    is_alias = op.type in _ALIASES
    for t in op.outputs:
      root[_key(t)] = root[_key(op.inputs[0])] if is_alias else _key(t)
    if not is_alias:
      uses.update(root[_key(t)] for t in op.inputs)
  return root, uses


def _peak(lives):
  """Returns the most bytes that results take at once."""
  change = collections.Counter()
  for life in lives:
    change[life.first] += life.size
    change[life.last + 1] -= life.size
  return max(itertools.accumulate(change[index] for index in sorted(change)),
             default=0)


def _key(tensor):
  return tensor.op, tensor.value_index


def _is_elementwise(op):
  return op.type not in _KERNELS and op.type not in _UPDATES and len(op.outputs) == 1


def _in_loop(op):
  return op._get_control_flow_context() is not None


def multiply_adds(op: tf.Operation) -> int:
  """Returns the multiply-adds of a TensorFlow operation that is a matrix product."""
  if op.type == "Einsum":
    return _einsum_multiply_adds(op)
  if op.type in ("MatMul", "BatchMatMulV2"):
    transposed = op.get_attr(
        "transpose_a" if op.type == "MatMul" else "adj_x")
    inner = op.inputs[0].shape.as_list()[-2 if transposed else -1]
    return op.outputs[0].shape.num_elements() * inner
  if op.type in ("Conv2D", "DepthwiseConv2dNative"):
    kernel = op.inputs[1].shape.as_list()
    inner = math.prod(kernel[:3] if op.type == "Conv2D" else kernel[:2])
    return op.outputs[0].shape.num_elements() * inner
  return 0


def _einsum_multiply_adds(op):
  """Returns the product of the sizes of all labels of the equation."""
  sizes = {}
  labels = op.get_attr("equation").decode().split("->")[0].split(",")
  for names, tensor in zip(labels, op.inputs):
    sizes.update(zip(names, tensor.shape.as_list()))
  return math.prod(sizes.values()) if len(op.inputs) > 1 else 0


def variable_bytes(graph: mtf.Graph, mesh_impl: mtf.MeshImpl) -> dict[str, int]:
  """Returns the bytes of a core's slices of all variables.

  Returns:
    a dict with "parameters" (trainable variables), "optimizer" (the slots of the
    optimizer) and "constants" (all other variables).
  """
  found = {"parameters": 0, "optimizer": 0, "constants": 0}
  for variable in graph.all_variables:
    role = ("parameters" if variable.trainable else
            "optimizer" if optimizer_slots.is_slot(variable.name) else "constants")
    found[role] += slice_bytes(variable, mesh_impl)
  return found


def slice_bytes(variable: mtf.Variable, mesh_impl: mtf.MeshImpl) -> int:
  """Returns the bytes of a core's slice of a variable."""
  return mesh_impl.slice_size(variable.shape) * variable.slice_dtype.size


def replicated_variables(graph: mtf.Graph, mesh_impl: mtf.MeshImpl,
                         least_bytes: int) -> list[dict[str, Any]]:
  """Returns large variables that a model-parallel mesh dimension does not split.

  Over the mesh dimension that splits the batch, variables are replicated by design.
  They are not listed.

  Args:
    graph: a `mtf.Graph`.
    mesh_impl: a `mtf.MeshImpl`.
    least_bytes: the least size of a slice; smaller slices are left out.

  Returns:
    a list of dicts: variable (with * for the number of the block), shape, count,
    bytes_per_core (of all these variables), mesh_dimension, and could_split, the
    dimensions that the mesh dimension could split.
  """
  found = {}
  for v in graph.all_variables:
    axes = mesh_impl.tensor_layout(v.shape).tensor_axis_to_mesh_axis
    size = slice_bytes(v, mesh_impl)
    for axis in model_axes(mesh_impl):
      if axis in axes or size < least_bytes:
        continue
      name = layouts.collapse(v.name)
      key = name, layouts.describe(v.shape), mesh_impl.shape[axis].name
      entry = found.setdefault(key, {
          "variable": name, "shape": key[1], "mesh_dimension": key[2],
          "count": 0, "bytes_per_core": 0, "could_split": [
              d.name for d, a in zip(v.shape.dims, axes)
              if a is None and d.size % mesh_impl.shape[axis].size == 0]})
      entry["count"] += 1
      entry["bytes_per_core"] += size
  return sorted(found.values(), key=lambda e: -e["bytes_per_core"])


def model_axes(mesh_impl: mtf.MeshImpl) -> list[int]:
  """Returns the mesh axes longer than 1 that do not split the batch."""
  data = {mesh_impl.tensor_dimension_to_mesh_axis(mtf.Dimension(name, 1))
          for name in ("batch", "outer_batch")}
  return [i for i, d in enumerate(mesh_impl.shape.dims)
          if i not in data and d.size > 1]


def repeated_share(lowering: mtf.Lowering) -> float:
  """Returns the share of Mesh's einsum multiply-adds that several cores repeat."""
  done = sum(n for key, n in lowering.counters if key == "einsum")
  unique = sum(n for key, n in lowering.counters if key == "einsum_unique")
  return 1 - unique / done if done else 0.
