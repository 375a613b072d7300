"""Lowers T5's whole training step for one core of a TPU, without the TPU.

Only the graph is made; variables never take memory.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import inspect
import json
from typing import NamedTuple
from typing import TypeAlias

from absl import flags
import mesh_tensorflow as mtf
from mesh_tensorflow import simd_mesh_impl
from mesh_tensorflow import tpu_variables
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.plan_pod import counting
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.trainer.model import building
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

_Slices: TypeAlias = simd_mesh_impl.SimdMeshImpl.LaidOutTensor
_SENT = (tf.float32, tf.bfloat16, tf.int32)  # What Mesh sends to another core.


class Run(NamedTuple):
  """A training run, as gin and the command describe it.

  Attributes:
    topology: a `pods.Topology`.
    vocabulary_size: the number of tokens of the vocabulary.
    model_type: the value of `utils.run.model_type`.
    mesh_shape: a `mtf.Shape`.
    layout: a `mtf.LayoutRules`.
    batch: the value of `utils.run.batch_size`.
    sequence_length: a dict from features to lengths.
    optimizer: a class of mesh_tensorflow.optimize.
    packed: whether rows hold several examples.
  """
  topology: pods.Topology
  vocabulary_size: int
  model_type: str
  mesh_shape: mtf.Shape
  layout: mtf.LayoutRules
  batch: int | tuple[str, int]
  sequence_length: dict[str, int]
  optimizer: type[mtf.optimize.Optimizer]
  packed: bool

  def batch_size_on(self, mesh_shape: mtf.Shape) -> int:
    """Returns the number of sequences in a step on a mesh of this shape."""
    if isinstance(self.batch, int):
      return self.batch
    return utils.compute_batch_size(
        self.sequence_length, mesh_shape, self.layout, self.batch)

  @property
  def batch_size(self) -> int:
    return self.batch_size_on(self.mesh_shape)


def read_run(topology: pods.Topology, vocabulary_size: int) -> Run:
  """Reads the run from gin's configuration.

  Raises:
    ValueError: the mesh of `utils.run.mesh_shape` has another number of cores.
  """
  _use_flags_of(topology)
  run = Run(
      topology, vocabulary_size, _bound("model_type"),
      mtf.convert_to_shape(_bound("mesh_shape")),
      mtf.convert_to_layout_rules(_bound("layout_rules")), _bound("batch_size"),
      lengths(), _bound("optimizer"),
      gin_files.bound("mesh_train_dataset_fn.pack", True))
  _check_cores(run)
  return run


def lengths() -> dict[str, int]:
  """Returns a dict from features to their lengths, as gin binds them."""
  bound = _bound("sequence_length")
  if isinstance(bound, int):
    return {"inputs": bound, "targets": bound}
  return bound


def _use_flags_of(topology):
  """Sets the command-line flags that mesh_tensorflow reads."""
  flags.FLAGS(["plan_pod", f"--logical_cores_per_chip={topology.cores_per_chip}"])


def _bound(parameter):
  """Returns the value that gin would pass to a parameter of `utils.run`."""
  default = inspect.signature(utils.run).parameters[parameter].default
  return gin_files.bound(f"utils.run.{parameter}", default)


def _check_cores(run):
  cores = run.topology.cores
  if run.mesh_shape.size != cores:
    raise checks.Error(
        f"`utils.run.mesh_shape` is {layouts.flat(run.mesh_shape)!r}, of "
        f"{run.mesh_shape.size} cores, but the topology {run.topology.name} has "
        f"{cores}; mesh shapes of that size: "
        f"{', '.join(_fitting([], run)) or 'none'} (for "
        "batch and model set `utils.tpu_mesh_shape.model_parallelism`).")


def _fitting(tensors, run):
  """Returns the shapes of T5's mesh dimensions, and others in use, that fit."""
  names = dict.fromkeys(["batch", "model"] + [d.name for d in run.mesh_shape.dims])
  return layouts.propose(
      tensors, list(names), run.layout, run.topology.cores, run.batch_size_on)


class OneCoreMeshImpl(simd_mesh_impl.SimdMeshImpl):
  """The graph of one core, and the communication between all cores.

  All cores run the same graph on slices of the same shapes. Unlike `SimdMeshImpl`, this
  class therefore has one slice of a variable instead of one for each core, and a
  placeholder for the number of the core. The size of the graph does not depend on the
  number of cores. Communication has no kernels outside of TPUs, so custom calls stand
  for it, which `tpu_compiler.py` replaces with collectives.

  Attributes:
    collectives: a dict from the name of each custom call to its `counting.Collective`.
  """

  _pnum_tensor: tf.Tensor | None  # Of the base class.

  def __init__(self, shape: mtf.Shape, layout: mtf.LayoutRules,
               topology: pods.Topology) -> None:
    super().__init__(
        shape, layout, logical_to_physical=_mapping(shape, topology))
    self._cores_per_chip = topology.cores_per_chip
    self.collectives = {}
    self._groups = {}

  class LaidOutVariable(simd_mesh_impl.SimdMeshImpl.LaidOutVariable):
    """The slice of one core, which is never copied from or to a checkpoint."""

    def __init__(self, variable: mtf.Variable,
                 mesh_impl: "OneCoreMeshImpl") -> None:
      self._variable = variable
      self._mesh_impl = mesh_impl
      with mtf.utils.outside_all_rewrites():
        initial = tf.zeros(
            mesh_impl.slice_shape(variable.shape), variable.slice_dtype)
        one_slice = tf.Variable(
            initial, trainable=variable.trainable, collections=["TPU_VAR"],
            dtype=variable.slice_dtype, name=variable.name + "_slice",
            use_resource=True)
      self._laid_out_tensor = mesh_impl.LaidOutTensor(
          [tpu_variables.ReplicatedVariable(variable.name, [one_slice])])

  @property
  def pnum_tensor(self) -> tf.Tensor:
    if self._pnum_tensor is None:
      with mtf.utils.outside_all_rewrites():
        self._pnum_tensor = tf.placeholder(tf.int32, [], name="pnum")
    return self._pnum_tensor

  def _create_group_assignment(self, mesh_axes):
    key = tuple(mesh_axes)
    if key not in self._groups:
      self._groups[key] = super()._create_group_assignment(mesh_axes)
    return self._groups[key]

  def allreduce(self, x: _Slices, mesh_axes: list[int],
                reduction_fn_string: str) -> _Slices:
    if not mesh_axes or reduction_fn_string != "SUM":  # Other kinds become sums.
      return super().allreduce(x, mesh_axes, reduction_fn_string)
    tensor = x.to_laid_out_tensor().one_slice
    groups = self._create_group_assignment(mesh_axes)
    # Mesh casts in the same way.
    in_bfloat16 = (tensor.dtype == tf.bfloat16 and
                   len(groups[0]) <= self._allreduce_in_bfloat16_max_group_size)
    return self._call("allreduce", tensor, tf.bfloat16 if in_bfloat16 else tf.float32,
                      tensor.shape, mesh_axes, groups=groups)

  def alltoall(self, x: _Slices, mesh_axis: int, split_axis: int,
               concat_axis: int) -> _Slices:
    tensor = x.to_laid_out_tensor().one_slice
    groups = self._create_group_assignment([mesh_axis])
    count = len(groups[0])
    shape = tensor.shape.as_list()
    shape[split_axis] //= count
    shape[concat_axis] *= count
    # Mesh sends no float32.
    sent = tf.bfloat16 if tensor.dtype == tf.float32 else tensor.dtype
    return self._call("alltoall", tensor, sent, shape, [mesh_axis], groups=groups,
                      split=split_axis, concat=concat_axis, count=count)

  def receive(self, x: _Slices, mesh_axis: int,
              source_pcoord: list[int | None]) -> _Slices:
    tensor = x.to_laid_out_tensor().one_slice
    pairs = []
    for core in range(self.size):
      place = mtf.pnum_to_processor_coordinates(self.shape, core)
      source = source_pcoord[place[mesh_axis]]
      if source is not None:
        place[mesh_axis] = source
        sender = mtf.processor_coordinates_to_pnum(self.shape, place)
        pairs.append([self.l2p(sender), self.l2p(core)])
    if not pairs:
      return super().receive(x, mesh_axis, source_pcoord)  # Zeros.
    # Mesh casts in the same way.
    sent = tensor.dtype if tensor.dtype in _SENT else tf.float32
    return self._call("receive", tensor, sent, tensor.shape, [mesh_axis], pairs=pairs)

  def _call(self, kind, tensor, dtype, shape, mesh_axes, **config):
    """Returns the result of a custom call on the tensor, which is cast for the call."""
    sent = gen_xla_ops.xla_custom_call_v2(
        operands=[tf.cast(tensor, dtype)], call_target_name=f"synthesizer_mtf.{kind}",
        backend_config=json.dumps(config, default=int), has_side_effect=False,
        result_dtypes=[dtype], result_shapes=[tf.TensorShape(shape)], name=kind)[0]
    group = self._create_group_assignment(mesh_axes)[0]
    chips = {core // self._cores_per_chip for core in group}
    self.collectives[sent.op.name] = counting.Collective(
        kind, tuple(self.shape[i].name for i in mesh_axes), len(group), len(chips))
    return self.LaidOutTensor([tf.cast(sent, tensor.dtype)])


def _mapping(shape, topology):
  """Returns the place where T5's trainer would put each core of the mesh."""
  if shape.size == 1:
    return None
  _use_flags_of(topology)
  return simd_mesh_impl.auto_logical_to_physical_tpu(
      shape.to_integer_list, topology.physical_shape,
      device_assignment=topology.device_assignment())


class Step(NamedTuple):
  """A lowered training step.

  Attributes:
    fetches: the TensorFlow operations that a step runs.
    graph: the `mtf.Graph`.
    mesh_impl: a `OneCoreMeshImpl`.
    lowering: the `mtf.Lowering`.
    microbatches: how often the body of a loop over microbatches runs.
  """
  fetches: list[tf.Operation]
  graph: mtf.Graph
  mesh_impl: OneCoreMeshImpl
  lowering: mtf.Lowering
  microbatches: int


def lower(run: Run, mode: str = "train",
          progress: Callable[[str], None] = lambda what: None,
          loops_as_functions: bool = False) -> Step:
  """Builds and lowers a step.

  Args:
    run: a `Run`.
    mode: "train"; "eval", the loss alone; or "infer", decoding as gin binds it.
    progress: a function that is called with the name of each stage.
    loops_as_functions: as for `control_flow_v2`.

  Returns:
    a `Step`, in the default graph.

  Raises:
    layouts.LayoutError: the mesh does not divide the dimensions of the layout.
  """
  progress("building")
  with control_flow_v2(loops_as_functions):
    model = _model(run, run.mesh_shape)
    try:
      made = _step(run, model, mode)
    except ValueError as error:
      _explain(_build_without_mesh(run), run, error)
      raise
    _explain(model.graph, run)
    progress("lowering")
    mesh_impl = OneCoreMeshImpl(run.mesh_shape, run.layout, run.topology)
    lowering = model.lower(mesh_impl)
    fetches = [lowering.lowered_operation(op) for op in made.updates]
    fetches.append(lowering.export_to_tf_tensor(made.result).op)
  return Step(fetches, model.graph, mesh_impl, lowering, made.microbatches)


@contextlib.contextmanager
def control_flow_v2(loops_as_functions: bool) -> Iterator[None]:
  """Decides what becomes of loops, such as the loop over microbatches.

  Args:
    loops_as_functions: True turns them into functions, which XLA needs. False keeps
      them in one graph, as T5's trainer does.
  """
  switch = {True: tf.enable_control_flow_v2, False: tf.disable_control_flow_v2}
  before = tf.control_flow_v2_enabled()
  switch[loops_as_functions]()
  try:
    yield
  finally:
    switch[before]()


def _model(run, mesh_shape):
  """Returns the model on a mesh that places variables, as T5's trainer does on TPUs."""
  return building.Model(
      (run.vocabulary_size, run.vocabulary_size), run.model_type, mesh_shape,
      run.layout, placer=mtf.utils.BalancedVariablePlacer(["cpu:0"]))


def _build_without_mesh(run):
  """Returns the Mesh graph of a loss that is not split; empty if this also fails."""
  with tf.Graph().as_default():
    try:
      model = _model(run, "")
      model.call(_features(run, model), building.TRAIN)
    except ValueError:
      return mtf.Graph()
  return model.graph


def _explain(graph, run, cause=None):
  """Raises a LayoutError if tensors of the graph do not fit the mesh."""
  tensors = [(v.name, v.shape, True) for v in graph.all_variables]
  tensors += [(t.name, t.shape, False) for t in _tensors(graph)]
  problems = layouts.find_problems(tensors, run.mesh_shape, run.layout)
  if problems:
    raise layouts.LayoutError(
        problems, _fitting(tensors, run), run.topology.cores) from cause


def _tensors(graph):
  """Returns all tensors, including those in loops."""
  for op in graph.operations:
    yield from op.outputs
    for inner in getattr(op, "_body_ops", ()):
      yield from inner.outputs


def _step(run, model, mode):
  """Returns the `building.Step` of a mode."""
  if mode == "infer":
    length = run.sequence_length["targets" if run.model_type == "lm" else "inputs"]
    return model.decode(model.feed(
        {"inputs": f"batch:{run.batch_size},length:{length}"}),
                        run.sequence_length["targets"])
  features = _features(run, model)
  if mode == "eval":
    return model.evaluate(features)
  # The value of the learning rate, a scalar, does not change the counts.
  return model.train(features, run.optimizer, 0.01)


def _features(run, model):
  """<int32>[outer_batch, batch, length] of each feature, as in the trainer."""
  names = ["targets"] if run.model_type == "lm" else ["inputs", "targets"]
  suffixes = ["", "_segmentation", "_position"] if run.packed else [""]
  return model.feed({
      f"{name}{suffix}": f"outer_batch:1,batch:{run.batch_size},"
                         f"length:{run.sequence_length[name]}"
      for name in names for suffix in suffixes})
