"""Lowers T5's whole training step for one core of a TPU, without the TPU.

The step is built as T5's trainer builds it (`tpu_estimator_model_fn` of
mesh_tensorflow.transformer.utils): forward pass, gradients, microbatches, optimizer.
Only the graph is made; variables never take memory.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
from typing import NamedTuple

from absl import flags
import mesh_tensorflow as mtf
from mesh_tensorflow import simd_mesh_impl
from mesh_tensorflow import tpu_variables
from mesh_tensorflow.transformer import transformer
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf import stack
from synthesizer_mtf.tools.pod_planning import layouts
from synthesizer_mtf.tools.pod_planning import pods
import tensorflow.compat.v1 as tf

_Slices = simd_mesh_impl.SimdMeshImpl.LaidOutTensor


class Run(NamedTuple):
  """A training run, as gin and the topology describe it.

  Attributes:
    model_type: the value of `utils.run.model_type`.
    mesh_shape: a `mtf.Shape`.
    layout: a `mtf.LayoutRules`.
    batch_size: the number of sequences in a step.
    sequence_length: a dict from features to lengths.
    optimizer: a class of mesh_tensorflow.optimize.
    packed: whether rows hold several examples.
  """
  model_type: str
  mesh_shape: mtf.Shape
  layout: mtf.LayoutRules
  batch_size: int
  sequence_length: dict[str, int]
  optimizer: type[mtf.optimize.Optimizer]
  packed: bool


def read_run(topology: pods.Topology) -> tuple[Run, Callable[[mtf.Shape], int]]:
  """Reads the run from gin's configuration.

  Args:
    topology: a `pods.Topology`.

  Returns:
    a `Run`, and a function from a `mtf.Shape` to the batch size on that mesh.

  Raises:
    ValueError: the mesh of `utils.run.mesh_shape` has another number of cores.
  """
  use_flags_of(topology)
  sizes = lengths()
  layout = mtf.convert_to_layout_rules(_bound("layout_rules"))
  method = _bound("batch_size")

  def batch_size(mesh_shape):
    if isinstance(method, int):
      return method
    return utils.compute_batch_size(sizes, mesh_shape, layout, method)

  mesh_shape = mtf.convert_to_shape(_bound("mesh_shape"))
  _check_cores(mesh_shape, topology, layout, batch_size)
  return Run(
      _bound("model_type"), mesh_shape, layout, batch_size(mesh_shape), sizes,
      _bound("optimizer"), gin_files.bound("mesh_train_dataset_fn.pack", True),
  ), batch_size


def lengths() -> dict[str, int]:
  """Returns a dict from features to their lengths, as gin binds them."""
  bound = _bound("sequence_length")
  if isinstance(bound, int):
    return {"inputs": bound, "targets": bound}
  return bound


def use_flags_of(topology: pods.Topology) -> None:
  """Sets the command-line flags that mesh_tensorflow reads.

  Args:
    topology: a `pods.Topology`. Its cores per chip are the value of a trainer's flag.
  """
  flags.FLAGS(["plan_pod", f"--logical_cores_per_chip={topology.cores_per_chip}"])


def _bound(parameter):
  """Returns the value that gin would pass to a parameter of `utils.run`."""
  default = inspect.signature(utils.run).parameters[parameter].default
  return gin_files.bound(f"utils.run.{parameter}", default)


def _check_cores(mesh_shape, topology, layout, batch_size):
  if mesh_shape.size == topology.cores:
    return
  names = mesh_names(mesh_shape)
  fits = layouts.propose(
      [], names, layout, topology.cores, batch_size) or ["none"]
  raise checks.Error(
      f"`utils.run.mesh_shape` is {layouts.flat(mesh_shape)!r}, of "
      f"{mesh_shape.size} cores, but the topology {topology.name} has "
      f"{topology.cores}; mesh shapes of that size: {', '.join(fits)} (for "
      "batch and model set `utils.tpu_mesh_shape.model_parallelism`).")


def mesh_names(mesh_shape: mtf.Shape) -> list[str]:
  """Returns the names of T5's mesh dimensions, and of others in use."""
  return list(dict.fromkeys(
      ["batch", "model"] + [d.name for d in mesh_shape.dims]))


class OneCoreMeshImpl(simd_mesh_impl.SimdMeshImpl):
  """The graph of one core, and the communication between all cores.

  All cores run the same graph on slices of the same shapes. This class therefore
  differs from `SimdMeshImpl` only in its bookkeeping: a variable has one slice instead
  of one for each core, and the number of the core is a placeholder. The size of the
  graph does not depend on the number of cores.

  Attributes:
    collectives: a dict from the name of a TensorFlow operation that communicates to
      (names of its mesh dimensions, cores of a group, chips of a group).
  """

  def __init__(self, shape: mtf.Shape, layout: mtf.LayoutRules,
               topology: pods.Topology) -> None:
    super().__init__(
        shape, layout, None, topology.device_assignment(),
        _mapping(shape, topology))
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
    y = super().allreduce(x, mesh_axes, reduction_fn_string)
    if mesh_axes and reduction_fn_string == "SUM":  # Others become sums.
      self._record(y, mesh_axes)
    return y

  def alltoall(self, x: _Slices, mesh_axis: int, split_axis: int,
               concat_axis: int) -> _Slices:
    y = super().alltoall(x, mesh_axis, split_axis, concat_axis)
    self._record(y, [mesh_axis])
    return y

  def receive(self, x: _Slices, mesh_axis: int,
              source_pcoord: list[int | None]) -> _Slices:
    y = super().receive(x, mesh_axis, source_pcoord)
    self._record(y, [mesh_axis])
    return y

  def _record(self, y, mesh_axes):
    """Records the operation that makes y, which may end in a cast."""
    op = y.one_slice.op
    op = op.inputs[0].op if op.type == "Cast" else op
    group = self._create_group_assignment(mesh_axes)[0]
    chips = {core // self._cores_per_chip for core in group}
    self.collectives[op.name] = (
        tuple(self.shape[i].name for i in mesh_axes), len(group), len(chips))


def _mapping(shape, topology):
  """Returns the place where T5's trainer would put each core of the mesh."""
  if shape.size == 1:
    return None
  use_flags_of(topology)
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


def lower(run: Run, topology: pods.Topology,
          batch_size: Callable[[mtf.Shape], int], vocabulary_size: int,
          progress: Callable[[str], None] = lambda what: None,
          mode: str = "train", mesh_impl_cls: type[OneCoreMeshImpl] = OneCoreMeshImpl,
          loops: Callable[[], contextlib.AbstractContextManager] | None = None) -> Step:
  """Builds and lowers a step.

  Args:
    run: a `Run`.
    topology: a `pods.Topology`.
    batch_size: a function from a mesh shape to the number of sequences in a batch.
    vocabulary_size: an integer.
    progress: a function that is called with the name of each stage.
    mode: "train"; "eval", the loss alone; or "infer", decoding as gin binds it.
    mesh_impl_cls: the class that lowers the step.
    loops: `loops_in_one_graph` or `loops_as_functions`, which decide whether loops stay
      in the graph or become functions; None for the former.

  Returns:
    a `Step`, in the default graph.

  Raises:
    layouts.LayoutError: the mesh does not divide the dimensions of the layout.
  """
  progress("building")
  graph = mtf.Graph()
  mesh = _tpu_mesh(graph)
  with (loops or loops_in_one_graph)():
    try:
      result, updates, microbatches = _build(run, mesh, vocabulary_size, mode)
    except ValueError as error:
      whole = _build_without_mesh(run, vocabulary_size)
      if whole is not None:
        _explain(whole, run, topology, batch_size, error)
      raise
    _explain(graph, run, topology, batch_size)
    progress("lowering")
    mesh_impl = mesh_impl_cls(run.mesh_shape, run.layout, topology)
    lowering = mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
    fetches = [lowering.lowered_operation(op) for op in updates]
    fetches.append(lowering.export_to_tf_tensor(result).op)
  return Step(fetches, graph, mesh_impl, lowering, microbatches)


def _tpu_mesh(graph):
  """Returns a mesh that places variables, as in T5's trainer on TPUs."""
  return mtf.Mesh(graph, "mesh", mtf.utils.BalancedVariablePlacer(["cpu:0"]))


def loops_in_one_graph() -> contextlib.AbstractContextManager:
  """Keeps loops, such as that over microbatches, in one graph, as T5's trainer does."""
  return _control_flow_v2(False)


def loops_as_functions() -> contextlib.AbstractContextManager:
  """Turns loops into functions, which XLA needs."""
  return _control_flow_v2(True)


@contextlib.contextmanager
def _control_flow_v2(wanted: bool) -> Iterator[None]:
  before = tf.control_flow_v2_enabled()
  _set_control_flow_v2(wanted)
  try:
    yield
  finally:
    _set_control_flow_v2(before)


def _set_control_flow_v2(wanted):
  if wanted:
    tf.enable_control_flow_v2()
  else:
    tf.disable_control_flow_v2()


def _build_without_mesh(run, vocabulary_size):
  """Returns the Mesh graph of a loss that is not split, or None if this also fails."""
  run = run._replace(mesh_shape=mtf.Shape([]))
  with tf.Graph().as_default():
    mesh = _tpu_mesh(mtf.Graph())
    try:
      _loss(run, _model(run, vocabulary_size), 1, _features(run, mesh))
    except ValueError:
      return None
  return mesh.graph


def _explain(graph, run, topology, batch_size, cause=None):
  """Raises a LayoutError if tensors of the graph do not fit the mesh."""
  tensors = [(t.name, t.shape, False) for t in _tensors(graph)]
  tensors = [(v.name, v.shape, True) for v in graph.all_variables] + tensors
  problems = layouts.find_problems(tensors, run.mesh_shape, run.layout)
  if problems:
    fits = layouts.propose(
        tensors, mesh_names(run.mesh_shape), run.layout,
        topology.cores, batch_size)
    raise layouts.LayoutError(
        problems, fits, topology.cores) from cause


def _tensors(graph):
  """Returns all tensors, including those in loops."""
  for op in graph.operations:
    yield from op.outputs
    for inner in getattr(op, "_body_ops", ()):
      yield from inner.outputs


def _model(run, vocabulary_size):
  return stack.build_model(
      run.model_type, input_vocab_size=vocabulary_size,
      output_vocab_size=vocabulary_size, layout_rules=run.layout,
      mesh_shape=run.mesh_shape)


def _build(run, mesh, vocabulary_size, mode):
  """Returns the result, the updates of a step, and the number of microbatches."""
  tf.train.get_or_create_global_step()
  model = _model(run, vocabulary_size)
  if mode == "infer":
    return _samples(run, model, mesh), [], 1
  batch_dim = mtf.Dimension("batch", run.batch_size)
  features = _features(run, mesh)
  if mode == "eval":
    return _loss(run, model, 1, features, mode), [], 1
  microbatches = utils.serialize_num_microbatches(
      batch_dim, run.sequence_length, run.mesh_shape, run.layout)
  loss_of = functools.partial(_loss, run, model, microbatches)
  if microbatches > 1:
    grads, losses = mtf.serialize_training_step(
        features, lambda f: {"loss": loss_of(f)}, batch_dim, microbatches)
    loss = losses["loss"]
  else:
    loss = loss_of(features)
    grads = mtf.gradients(
        [loss], [v.outputs[0] for v in mesh.graph.trainable_variables])
  # The value of the learning rate, a scalar, does not change the counts.
  updates = run.optimizer(learning_rate=0.01).apply_grads(
      grads, mesh.graph.trainable_variables)
  return loss, updates, microbatches


def _samples(run, model, mesh):
  """Returns the ids that decoding makes, as in the trainer's mode `infer`."""
  name = "targets" if run.model_type == "lm" else "inputs"
  shape = mtf.Shape([mtf.Dimension("batch", run.batch_size),
                     mtf.Dimension("length", run.sequence_length[name])])
  inputs = mtf.import_fully_replicated(
      mesh, tf.placeholder(tf.int32, shape.to_integer_list), shape, name="inputs")
  dtype = utils.get_variable_dtype()
  if not isinstance(model, transformer.Unitransformer):
    return mtf.anonymize(model.decode(inputs, variable_dtype=dtype))
  inputs = mtf.pad(inputs, [0, run.sequence_length["targets"]], "length")
  return mtf.anonymize(model.sample_autoregressive(
      inputs, variable_dtype=dtype, remove_partial_sequences=True))


def _features(run, mesh):
  """<int32>[outer_batch, batch, length] of each feature, as in the trainer."""
  names = ["targets"] if run.model_type == "lm" else ["inputs", "targets"]
  suffixes = ["", "_segmentation", "_position"] if run.packed else [""]
  features = {}
  for name in names:
    shape = mtf.Shape([mtf.Dimension("outer_batch", 1),
                       mtf.Dimension("batch", run.batch_size),
                       mtf.Dimension("length", run.sequence_length[name])])
    for suffix in suffixes:
      features[name + suffix] = mtf.import_fully_replicated(
          mesh, tf.placeholder(tf.int32, shape.to_integer_list), shape,
          name=name + suffix)
  if run.model_type == "delimited_lm":
    return utils._dynamic_text2self(features)
  return features


def _loss(run, model, microbatches, features, mode=tf.estimator.ModeKeys.TRAIN):
  """Returns the loss of a (micro)batch, with the arguments that the trainer passes."""
  get = features.get
  targets = features["targets"]
  kwargs = {"sequence_id": get("targets_segmentation"),
            "position": get("targets_position")}
  if run.model_type in ("lm", "delimited_lm"):
    inputs = transformer.autoregressive_inputs(
        targets, sequence_id=get("targets_segmentation"))
  else:
    inputs = features["inputs"]
  if run.model_type in ("bitransformer", "bi_student_teacher"):
    kwargs = {"encoder_sequence_id": get("inputs_segmentation"),
              "decoder_sequence_id": get("targets_segmentation"),
              "encoder_position": get("inputs_position"),
              "decoder_position": get("targets_position")}
  return model.call_simple(
      inputs=inputs, targets=targets, compute_loss=True,
      mode=mode,
      variable_dtype=utils.get_variable_dtype(), num_microbatches=microbatches,
      **kwargs)[1]
