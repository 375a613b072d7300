"""A session of TensorFlow, with the variables of a model."""

from collections.abc import Mapping
from typing import Any

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.model import building
import tensorflow.compat.v1 as tf


class Session:
  """A session that computes with the default graph, and its variables by name."""

  def __init__(self, variables: Mapping[str, tf.Variable], prepare: tf.Operation,
               target: str = "", config: tf.ConfigProto | None = None) -> None:
    """Starts it, on a server or in this process; `prepare` runs after assignments."""
    self.variables, self._prepare = dict(variables), prepare
    self._session = tf.Session(target, config=config)
    self.run, self.close = self._session.run, self._session.close

  def initialize(self) -> None:
    """Gives all variables new initial values."""
    with self._session.graph.as_default():
      self.run(tf.global_variables_initializer())
    self.run(self._prepare)

  def assign(self, values: Mapping[str, Any]) -> None:
    """Gives some variables new values, which are rounded to the variables' dtypes."""
    for name, value in values.items():
      self._assign(name, value)
    self.run(self._prepare)

  def _assign(self, name, value):
    initialize = self.variables[name].initializer
    initial = initialize.inputs[1]
    self.run(initialize, {
        initial: np.asarray(value).astype(initial.dtype.as_numpy_dtype)})

  def restore(self, path: str, names: Mapping[str, str] | None = None,
              new: Mapping[str, Any] | None = None) -> None:
    """Takes the variables of a checkpoint.

    Args:
      path: the path of the checkpoint.
      names: the names that variables have there, where these are others.
      new: the values of variables that the checkpoint need not have.

    Raises:
      ValueError: it lacks a variable, has it in another shape, or is damaged.
    """
    names = {name: (names or {}).get(name, name)
             for name in self.variables if name not in (new or {})}
    self._check(path, names)
    self._load(path, names)
    self.assign(new or {})

  def _check(self, path, names):
    shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    for name, saved in names.items():
      shape, in_file = self.variables[name].shape.as_list(), shapes.get(saved)
      if in_file != shape:
        where = "nowhere" if in_file is None else f"with shape {in_file}"
        raise checks.Error(
            f"gin makes a variable {name!r} with shape {shape}, but {path!r} has it "
            f"{where}; give the gin files that the model was trained with.")

  def _load(self, path, names):
    reader = tf.train.load_checkpoint(path)
    for name, saved in names.items():
      try:
        value = reader.get_tensor(saved)
      except tf.errors.OpError as error:
        raise checks.Error(
            f"{path!r} has {saved!r} damaged; bring the files back.") from error
      self._assign(name, value)

  def save(self, path: str) -> None:
    """Writes a checkpoint."""
    with self._session.graph.as_default():
      tf.train.Saver(self.variables).save(
          self._session, path, write_meta_graph=False, write_state=False)


class Lowered(Session):
  """A session with a model on one device, whose `lowering` it has."""

  def __init__(self, model: building.Model, device: str = "cpu:0",
               autostack: bool = False, config: tf.ConfigProto | None = None) -> None:
    """Lowers a model of the default graph, once gradients and updates are made."""
    self.lowering = model.lower(
        mtf.placement_mesh_impl.PlacementMeshImpl("", "", [device]), autostack)
    self.export = self.lowering.export_to_tf_tensor
    step = tf.train.get_global_step()
    super().__init__(
        {**{v.name: v.get_master() for v in model.graph.all_variables},
         step.op.name: step}, self.lowering.copy_masters_to_slices(), config=config)
