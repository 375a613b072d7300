"""Counts what one core computes, moves and keeps, from its TensorFlow graph.

XLA would compile the graph of a core, so all counts come from this graph. Operations
that no fetch needs are left out. Operations in the loop over microbatches count once
for each pass. Shapes are those of the core's slices.

Three rules model XLA's fusion. First, an elementwise operation becomes part of its
users, if there is only one user, or if fewer bytes move when each user computes it.
Second, the only user of a matrix product becomes part of the product, if its result has
the same size. Third, a reduction becomes part of the operation that writes its operand.
Every other result is written to memory once, and read by each of its users. An
operation that reads or adds only a few entries at a time moves a tile for each row.
Operations run in the order in which Mesh made them, but updates of variables and of
sums over microbatches run as soon as possible.

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
from synthesizer_mtf.tools.pod_planning import layouts
from synthesizer_mtf.trainer import optimizer_slots
import tensorflow.compat.v1 as tf

# Operations that return their first input without a copy.
_ALIASES = frozenset((
    "Enter", "Exit", "ExpandDims", "Identity", "LoopCond", "Merge",
    "PreventGradient", "Reshape", "Snapshot", "Squeeze", "StopGradient",
    "Switch"))
# Operations whose results exist already: constants, features and variables.
_GIVEN = frozenset(("Const", "NoOp", "Placeholder", "PlaceholderWithDefault",
                    "ReadVariableOp", "VarHandleOp", "VariableV2"))
# Operations that read or write the memory of another operation, and the number of their
# passes over this memory.
_UPDATES = {"AssignVariableOp": 1, "AssignAddVariableOp": 2,
            "AssignSubVariableOp": 2, "NextIteration": 1}
# Operations that read no more than they return.
_PICKS = frozenset(("GatherV2", "Slice", "StridedSlice"))
# A TPU reads and adds up short rows one by one, and moves this many bytes for each row.
# (In programs of packed R, libtpu 0.0.52 reports 1.1 kB.)
_ROW_BY_ROW = frozenset(("GatherV2", "UnsortedSegmentSum"))
_FEW_ENTRIES = 128
_ROW_BYTES = 1100
# Operations that XLA does not fuse into their user.
_KERNELS = frozenset((
    "All", "Any", "ArgMax", "BatchMatMulV2", "ConcatV2", "Conv2D", "Cumsum",
    "DepthwiseConv2dNative", "Einsum", "LogSoftmax", "MatMul", "Max", "Mean",
    "Min", "Prod", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
    "Softmax", "Sort", "StatelessRandomUniform", "Sum", "TopKV2",
    "TruncatedNormal", "UnsortedSegmentSum", "XlaCustomCallV2"))
_REDUCTIONS = frozenset(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"))


class Kernel(NamedTuple):
  """A kernel: its multiply-adds of matrix products, and the bytes that it moves."""
  multiply_adds: int
  hbm_bytes: int


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
    kernels: a Counter from `Kernel` to the number of its runs.
    collectives: a Counter from `Collective` to the bytes that a core puts in.
    allreduces: a Counter from (name of the operation with numbers as *, mesh
      dimensions, runs in a step) to the bytes that a core puts in.
    activation_bytes: the most bytes besides variables that are kept at once.
    operations: the number of TensorFlow operations in the graph of a core.
    largest_activation: (operation, bytes) of the largest result.
  """
  kernels: collections.Counter
  collectives: collections.Counter
  allreduces: collections.Counter
  activation_bytes: int
  operations: int
  largest_activation: tuple[str, int]

  @property
  def multiply_adds(self) -> int:
    """The multiply-adds of all matrix products of a step."""
    return sum(k.multiply_adds * n for k, n in self.kernels.items())

  @property
  def hbm_bytes(self) -> int:
    """The bytes that all kernels of a step move from and to memory."""
    return sum(k.hbm_bytes * n for k, n in self.kernels.items())

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

  Returns:
    `Counts`.
  """
  return _Walk(live(fetches), collectives, microbatches).run()


def live(fetches: list[tf.Operation]) -> list[tf.Operation]:
  """Returns the operations that the fetches need, each after its inputs.

  Apart from this they are in the order of their creation. (An operation in a loop is
  older than the `Enter` that brings it a value from outside.)

  Args:
    fetches: TensorFlow operations of one graph.

  Returns:
    a list of operations.
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


class _Walk:
  """One pass over the operations for uses, and one for costs."""

  def __init__(self, ops, collectives, microbatches):
    self._ops, self._collectives = ops, collectives
    self._microbatches = microbatches
    self._root = {}  # tensor key -> key of the tensor that holds its values
    self._uses = collections.Counter()  # root key -> operations that read it
    self._reads = {}  # root key -> {key: bytes} that a user of it reads
    self._last = {}  # root key -> index of the last kernel that reads it
    self._born = {}  # root key -> (index, bytes)
    self._kernels = {}  # operation -> its Kernel
    self._owner = {}  # operation -> operation whose kernel writes its result
    inside = [i for i, op in enumerate(ops) if _in_loop(op)]
    self._loop = (inside[0], inside[-1]) if inside else (0, -1)

  def run(self):
    """Returns the `Counts`."""
    for op in self._ops:
      self._find_roots(op)
    groups, allreduces = collections.Counter(), collections.Counter()
    for index, op in enumerate(self._ops):
      self._visit(index, op)
      collective = self._collectives.get(op.name)
      if collective:
        times = self._times(op)
        groups[collective] += times * tensor_bytes(op.inputs[0])
        if collective.kind == "allreduce":
          name = re.sub(r"_\d+", "_*", op.name.rpartition("/")[0])
          allreduces[name, collective.mesh_dimensions, times] += (
              times * tensor_bytes(op.inputs[0]))
    kernels = collections.Counter()
    for op, kernel in self._kernels.items():
      if op.name not in self._collectives:
        kernels[kernel] += self._times(op)
    return Counts(
        kernels, groups, allreduces, self._peak(), len(self._ops),
        max(((key[0].name, size) for key, (_, size) in self._born.items()),
            key=lambda born: born[1], default=("", 0)))

  def _times(self, op):
    return self._microbatches if _in_loop(op) else 1

  def _find_roots(self, op):
    alias = op.type in _ALIASES
    for t in op.outputs:
      self._root[_key(t)] = self._root[_key(op.inputs[0])] if alias else _key(t)
    if not alias:
      self._uses.update(self._root[_key(t)] for t in op.inputs)

  def _visit(self, index, op):
    """Notes what op reads and writes."""
    if op.type in _ALIASES:
      return
    if op.type in _GIVEN:
      for t in op.outputs:
        self._reads[_key(t)] = {_key(t): tensor_bytes(t)}
      return
    read = {}
    for t in op.inputs:
      read.update(self._reads.get(self._root[_key(t)], {}))
    if op.type in _PICKS:
      most = tensor_bytes(op.outputs[0])
      read = {key: min(size, most) for key, size in read.items()}
    if self._is_fused(op, read) and not _row_bytes(op):
      self._reads[_key(op.outputs[0])] = read
      return
    if op.type in _UPDATES:  # Runs as soon as its inputs exist, which frees them.
      index = max((self._born[key][0] for key in read if key in self._born),
                  default=index)
    for key in read:
      self._last[key] = max(index, self._last.get(key, 0))
    self._kernels[op] = Kernel(
        multiply_adds(op),
        sum(read.values()) + self._written(index, op) + _row_bytes(op))
    self._owner[op] = op
    self._join_product(op, read)
    self._join_reduction(op, read)

  def _written(self, index, op):
    """Returns the bytes that op writes, or those of its passes over a variable."""
    if op.type == "NextIteration":  # Its result is kept as long as the loop runs.
      key = _key(op.outputs[0])
      self._born[key] = self._loop[0], tensor_bytes(op.inputs[-1])
      self._last[key] = self._loop[1]
    if op.type in _UPDATES:
      return _UPDATES[op.type] * tensor_bytes(op.inputs[-1])
    for t in op.outputs:
      self._reads[_key(t)] = {_key(t): tensor_bytes(t)}
      self._born[_key(t)] = index, tensor_bytes(t)
    return sum(map(tensor_bytes, op.outputs))

  def _join_product(self, op, read):
    """Makes an elementwise op part of a product, if only this op reads the product."""
    key = self._product_of(op, read)
    if key:
      own, product = self._kernels.pop(op), self._kernels[key[0]]
      self._kernels[key[0]] = product._replace(
          hbm_bytes=product.hbm_bytes + own.hbm_bytes - 2 * read[key])
      del self._born[key]
      self._owner[op] = key[0]

  def _product_of(self, op, read):
    """Returns the result of a product that an elementwise op can join, or None."""
    if not _is_elementwise(op):
      return None
    for key in read:
      product = self._kernels.get(key[0])
      if (product and product.multiply_adds and self._uses[key] == 1 and
          self._times(key[0]) == self._times(op) and
          key[0].outputs[0].shape.num_elements() ==
          op.outputs[0].shape.num_elements()):
        return key
    return None

  def _join_reduction(self, op, read):
    """Makes a reduction part of the operation that wrote its only operand."""
    operands = [key for key in read if key[0].type != "Const"]
    if op.type not in _REDUCTIONS or len(operands) != 1:
      return
    key, = operands
    owner = self._owner.get(key[0])
    if owner in self._kernels and self._times(owner) == self._times(op):
      own, other = self._kernels.pop(op), self._kernels[owner]
      self._kernels[owner] = other._replace(
          hbm_bytes=other.hbm_bytes + own.hbm_bytes - read[key])
      self._owner[op] = owner

  def _is_fused(self, op, read):
    """Returns whether each user of op computes it: one user, or if this saves bytes."""
    if not _is_elementwise(op):
      return False
    uses, again = self._uses[_key(op.outputs[0])], sum(read.values())
    size = tensor_bytes(op.outputs[0])
    return uses == 1 or (
        0 < uses * again <= again + (1 + uses) * size and
        not self._product_of(op, read))

  def _peak(self):
    """Returns the most bytes that results take at once, in the order of the graph."""
    change = collections.Counter()
    start, end = self._loop
    for key, (index, size) in self._born.items():
      last = self._last.get(key, index)
      if index < start <= last <= end:
        last = end  # The next microbatch reads the result again.
      change[index] += size
      change[last + 1] -= size
    return max(itertools.accumulate(change[index] for index in sorted(change)),
               default=0)


def _key(tensor):
  return tensor.op, tensor.value_index


def _is_elementwise(op):
  return op.type not in _KERNELS and op.type not in _UPDATES and len(op.outputs) == 1


def _row_bytes(op):
  """Returns the bytes that an op moves row by row, in addition to its entries."""
  if op.type not in _ROW_BY_ROW:
    return 0
  rows = op.inputs[1].shape.num_elements()
  values = op.outputs[0] if op.type == "GatherV2" else op.inputs[0]
  entries = values.shape.num_elements() // max(rows, 1)
  return rows * _ROW_BYTES if entries < _FEW_ENTRIES else 0


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

  Args:
    graph: a `mtf.Graph`.
    mesh_impl: a `mtf.MeshImpl`.

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
