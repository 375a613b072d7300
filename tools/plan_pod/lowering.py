"""Builds T5's whole step as the program that JAX runs on a mesh, without the mesh.

Only the graph is made; variables never take memory.
"""

from collections.abc import Sequence
import inspect
from typing import Any
from typing import NamedTuple

from absl import flags
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.runtime import devices as devices_lib
from synthesizer_mtf.runtime import mesh
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.trainer.data import seed
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import jax_runtime
import tensorflow.compat.v1 as tf


class Run(NamedTuple):
  """A training run on a topology, as gin describes it: values of `utils.run`."""
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

  @property
  def platform(self) -> str:
    """Whose operations the program has."""
    return "gpu" if self.topology.chip.is_gpu else "tpu"


def read_run(topology: pods.Topology, vocabulary_size: int) -> Run:
  """Reads the run from gin's configuration.

  Raises:
    layouts.LayoutError: the mesh has another number of cores.
  """
  # A flag that mesh_tensorflow reads.
  flags.FLAGS(["plan_pod", f"--logical_cores_per_chip={topology.chip.cores}"])
  run = Run(
      topology, vocabulary_size, _bound("model_type"),
      mtf.convert_to_shape(_bound("mesh_shape")),
      mtf.convert_to_layout_rules(_bound("layout_rules")), _bound("batch_size"),
      lengths(), _bound("optimizer"),
      gin_files.bound("mesh_train_dataset_fn.pack", True))
  if run.mesh_shape.size != topology.cores:
    raise layouts.LayoutError(
        f"`utils.run.mesh_shape` is {devices_lib.flat(run.mesh_shape)!r}, of "
        f"{run.mesh_shape.size} cores, but the topology {topology.name} has "
        f"{topology.cores} (`utils.tpu_mesh_shape.model_parallelism` sets batch and "
        "model)", _fitting([], run), topology.cores)
  return run


def lengths() -> dict[str, int]:
  """Returns a dict from features to their lengths, as gin binds them."""
  bound = _bound("sequence_length")
  return {"inputs": bound, "targets": bound} if isinstance(bound, int) else bound


def _bound(parameter):
  """Returns the value that gin would pass to a parameter of `utils.run`."""
  default = inspect.signature(utils.run).parameters[parameter].default
  return gin_files.bound(f"utils.run.{parameter}", default)


def _fitting(shapes, run):
  """Returns the shapes of T5's mesh dimensions, and others in use, that fit."""
  names = dict.fromkeys(["batch", "model"] + [d.name for d in run.mesh_shape.dims])
  return layouts.propose(
      shapes, list(names), run.layout, run.topology.cores, run.batch_size_on)


class Step(NamedTuple):
  """A step: its graph, the program, and how often a loop over microbatches runs."""
  graph: mtf.Graph
  mesh_impl: mesh.JaxMeshImpl
  microbatches: int


def lower(run: Run, mode: str, devices: Sequence[Any]) -> Step:
  """Builds and lowers a step in TensorFlow's default graph.

  Args:
    run: a `Run`.
    mode: "train"; "eval", the loss alone; or "infer", decoding as gin binds it.
    devices: JAX's devices, one for each core.

  Raises:
    layouts.LayoutError: the mesh does not divide the dimensions of the layout.
  """
  with jax_runtime.loops_as_functions(), seed.remembering_loops():
    try:
      model = _model(run, run.mesh_shape)
      made = _step(run, model, mode)
      mesh_impl = mesh.JaxMeshImpl(
          run.mesh_shape, run.layout, devices, seed.numbers_of_names)
      model.lower(mesh_impl).export_to_tf_tensor(made.result)
    except ValueError as error:
      _explain(run, error)
      raise
  return Step(model.graph, mesh_impl, made.microbatches)


def _model(run, mesh_shape):
  splits.compile_for(run.platform)
  return building.Model(
      (run.vocabulary_size, run.vocabulary_size), run.model_type, mesh_shape,
      run.layout, is_on_tpu=run.platform == "tpu")


def _explain(run, cause):
  """Raises a LayoutError if variables or the batch do not fit the mesh."""
  with tf.Graph().as_default():
    try:
      model = _model(run, "")
      model.call(_features(run, model), building.TRAIN)
    except ValueError:  # It is not the layout.
      return
    shapes = [variable.shape for variable in model.graph.all_variables]
  batch = mtf.Shape([mtf.Dimension("batch", run.batch_size)])
  problem = layouts.problem([*shapes, batch], run.mesh_shape, run.layout)
  if problem:
    raise layouts.LayoutError(
        problem, _fitting(shapes, run), run.topology.cores) from cause


def _step(run, model, mode):
  """Returns the `building.Step` of a mode."""
  if mode == "infer":
    length = run.sequence_length["targets" if run.model_type == "lm" else "inputs"]
    return model.decode(
        model.feed({"inputs": f"batch:{run.batch_size},length:{length}"}),
        run.sequence_length["targets"])
  features = _features(run, model)
  if mode == "eval":
    return model.evaluate(features)
  # The value of the learning rate, a scalar, does not change the figures.
  return model.train(features, run.optimizer, 0.01)


def _features(run, model):
  """<int32>[outer_batch, batch, length] of each feature, as in the trainer."""
  names = ["targets"] if run.model_type == "lm" else ["inputs", "targets"]
  suffixes = ["", "_segmentation", "_position"] if run.packed else [""]
  return model.feed({
      f"{name}{suffix}": f"outer_batch:1,batch:{run.batch_size},"
                         f"length:{run.sequence_length[name]}"
      for name in names for suffix in suffixes})
