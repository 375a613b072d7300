"""Saves and restores the variables of a mesh one at a time.

A host never holds the whole state. TensorFlow's `Saver` would restore all variables at
once, and save the masters of all. The files are those of TensorFlow: shards of a few
variables, merged.
"""

from collections.abc import Iterator
import math
from typing import Any

import mesh_tensorflow as mtf
from synthesizer_mtf.runtime import mesh
import tensorflow.compat.v1 as tf

# A collection of tensors that raise an error unless a variable on devices is finite.
CHECKED = "synthesizer_mtf/checked"
_SHARD = 2 ** 28  # Bytes that a host certainly has.


class Scaffold(tf.train.Scaffold):
  """A scaffold of TensorFlow whose variables have their values on JAX's devices.

  The graph's `Saver` saves and restores these.

  Attributes:
    mesh_impl: the mesh of the model.
    on_devices: its variables, by name.
  """

  def __init__(self, mesh_impl: mesh.JaxMeshImpl,
               local_init_op: tf.Operation | None = None) -> None:
    """Makes the operations.

    Args:
      mesh_impl: the mesh; its variables are in the default graph.
      local_init_op: as for `tf.train.Scaffold`.
    """
    self.mesh_impl, self.on_devices = mesh_impl, mesh_impl.variables
    with mtf.utils.outside_all_rewrites():
      operations = _operations(self.on_devices)
      others = [v for v in tf.global_variables() if v.op.name not in self.on_devices]
      self._initial = [v.assign(v.master.initializer.inputs[1])
                       for v in self.on_devices.values()]
      for variable in self.on_devices.values():
        if variable.old.dtype.is_floating:
          tf.add_to_collection(CHECKED, tf.debugging.check_numerics(
              variable.zero_if_finite(), variable.name))
    savers = tf.get_collection_ref(tf.GraphKeys.SAVERS)
    if savers:  # Mesh has made one, for a training.
      savers[0].saver_def.MergeFrom(operations)
    else:
      savers.append(tf.train.Saver(saver_def=operations))
    super().__init__(
        init_op=tf.variables_initializer(others), init_fn=Scaffold.initialize,
        ready_op=_uninitialized(others + tf.local_variables()),
        ready_for_local_init_op=_uninitialized(others),
        local_init_op=local_init_op)

  def initialize(self, session: tf.Session) -> None:
    """Gives the variables on the devices their initial values, one at a time."""
    for assign in self._initial:
      session.run(assign)


def _uninitialized(variables):
  """The names of those without a value; no session of predictions asks for them.

  TensorFlow complains of a report that no other operation reads.
  """
  return tf.identity(tf.report_uninitialized_variables(variables))


def _operations(values):
  """Names of operations that save and restore, as a `SaverDef`."""
  path = tf.placeholder_with_default("model", [])
  variables = sorted(tf.global_variables(), key=lambda v: v.op.name)
  shards = [*_shards(variables)]
  parts = [tf.raw_ops.ShardedFilename(
      basename=path + "_temp/part", shard=i, num_shards=len(shards))
           for i in range(len(shards))]
  last: list[tf.Operation] = []
  for part, shard in zip(parts, shards):
    with tf.control_dependencies(last):
      tensors = [values[v.op.name].value() if v.op.name in values else tf.identity(v)
                 for v in shard]
      last = [tf.raw_ops.SaveV2(
          prefix=part, tensor_names=[v.op.name for v in shard],
          shape_and_slices=[""] * len(shard), tensors=tensors)]
  with tf.control_dependencies(last):
    merge = tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=tf.stack(parts), destination_prefix=path)
  with tf.control_dependencies([merge]):
    saved = tf.identity(path)
  last = []
  for variable in variables:
    with tf.control_dependencies(last):
      value, = tf.raw_ops.RestoreV2(
          prefix=path, tensor_names=[variable.op.name], shape_and_slices=[""],
          dtypes=[variable.dtype.base_dtype])
      name = variable.op.name
      last = [values[name].assign(value) if name in values else
              tf.assign(variable, value).op]
  with tf.control_dependencies(last):
    restored = tf.no_op()
  return tf.train.SaverDef(
      filename_tensor_name=path.name, save_tensor_name=saved.name,
      restore_op_name=restored.name, version=tf.train.SaverDef.V2)


def _shards(variables: list[Any]) -> Iterator[list[Any]]:
  """Groups of variables, each at most as large as the largest variable or 256 MiB."""
  sizes = [v.dtype.base_dtype.size * math.prod(v.shape.as_list()) for v in variables]
  room, shard, size = max([_SHARD, *sizes]), [], 0
  for variable, more in zip(variables, sizes):
    if shard and size + more > room:
      yield shard
      shard, size = [], 0
    shard.append(variable)
    size += more
  yield shard
