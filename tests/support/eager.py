"""Computes Mesh TensorFlow's models at once, without a graph of TensorFlow.

Making a graph takes three times as long as this. Variables are only read. What a graph
changes in place is copied: without a graph, others may still read it.
"""

import contextlib
import copy
from unittest import mock
import zlib

import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
import numpy as np
from support import sessions
import tensorflow.compat.v1 as tf


class NoGraph:
  """Takes the place of a `tf.Graph`."""

  @contextlib.contextmanager
  def as_default(self):
    with tf.init_scope(), tf.variable_scope("", custom_getter=_Variable):
      yield


class Placer(mtf.utils.BalancedVariablePlacer):
  """Tells a model that it is on a TPU."""
  device_function = None


class _Variable:
  """The name of a variable, and its value, which is known when the model runs."""

  def __init__(self, getter, name, *unused_args, **unused):
    self.name, self.value = f"{name}:0", None


class _LaidOutVariable:
  """The slices of a variable."""

  def __init__(self, variable, mesh_impl):
    self.laid_out_tensor = mesh_impl.LaidOutTensor([
        tf.cast(x, variable.slice_dtype) for x in mesh_impl.make_slices(
            variable.get_master().value, variable.shape)])


class _MeshImpl(placement_mesh_impl.PlacementMeshImpl):
  """A mesh on one CPU."""
  LaidOutVariable = _LaidOutVariable


@contextlib.contextmanager
def same_numbers():
  """Draws the numbers of an operation by its name, with a graph and without."""
  def lower(self, lowering):
    mesh_impl, (out,) = lowering.mesh_impl(self), self.outputs
    assert self._tf_fn is tf.random.uniform, self._tf_fn
    lowering.set_tensor_lowering(out, mesh_impl.LaidOutTensor([
        tf.constant(np.random.RandomState(zlib.crc32(
            f"{self.name} {mesh_impl.slice_begin(out.shape, processor)}".encode(),
        )).uniform(size=mesh_impl.slice_shape(out.shape)), out.dtype)
        for processor in range(mesh_impl.size)]))

  with mock.patch.object(mtf.RandomOperation, "lower", lower):
    yield


def run(model, tensors, values):
  """Returns the values of Mesh tensors.

  Args:
    model: a `models.Model`.
    tensors: a list of Mesh tensors.
    values: a dict from the names of variables to their values.
  """
  for variable in model.graph.all_variables:
    variable.get_master().value = tf.constant(values[variable.name])
  mesh_impl = _MeshImpl(model.mesh_shape, model.layout, [""] * model.mesh_shape.size)
  with mock.patch.object(
      mtf.GenericGradOperation, "lower", _lower_gradient), mock.patch.multiple(
          tf.raw_ops, InplaceUpdate=_updated, InplaceAdd=_added):
    lowering = mtf.Lowering(model.graph, {model.mesh: mesh_impl}, autostack=False)
  return [lowering.export_to_tf_tensor(t).numpy() for t in tensors]


def _updated(x, i, v):
  return tf.tensor_scatter_nd_update(x, tf.expand_dims(i, -1), v)


def _added(x, i, v):
  return tf.tensor_scatter_nd_add(x, tf.expand_dims(i, -1), v)


def _lower_gradient(self, lowering):
  """Differentiates one operation in a graph of its own."""
  op, laid_out = self._forward_op, lowering.mesh_impl(self).LaidOutTensor

  def slices(tensors, lowering=lowering):
    return [lowering.tensors[t].to_laid_out_tensor().tensor_list for t in tensors]

  values = tf.nest.map_structure(
      lambda x: x.numpy(), [slices(op.inputs), slices(self._grad_ys)])
  with tf.Graph().as_default():
    xs, grad_ys = tf.nest.map_structure(tf.constant, values)
    again = copy.copy(lowering)
    again.tensors = dict(zip(op.inputs, map(laid_out, xs)))
    op.lower(again)
    grads = [tf.gradients(*each, unconnected_gradients="zero") for each in zip(
        *map(_by_processor, [slices(op.outputs, again), xs, grad_ys]))]
    with sessions.start() as session:
      found = session.run(tf.nest.map_structure(tf.convert_to_tensor, grads))
  for out, each in zip(self.outputs, zip(*found)):
    lowering.set_tensor_lowering(out, laid_out([tf.constant(x) for x in each]))


def _by_processor(slices):
  return [list(each) for each in zip(*slices)]


def draw(variables, scale, seed):
  """Returns normally distributed values of variables, by name."""
  generator = np.random.RandomState(seed)
  return {v.name: (scale * generator.randn(*v.shape.to_integer_list)).astype(np.float32)
          for v in variables}
