"""Makes the graphs of small models on the CPU with few operations.

TensorFlow takes longer to make an operation, about half a millisecond, than to run it.
Mesh TensorFlow makes many: a constant for each axis, a variable for each slice, and the
same operations on each processor for what processors have in common.
"""

from collections.abc import Iterator
import contextlib
import functools
from unittest import mock

import mesh_tensorflow as mtf
from mesh_tensorflow import ops
from mesh_tensorflow import placement_mesh_impl
import numpy as np
from support import sessions
from synthesizer_mtf.fast import packed_segments
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as tf_ops

_MESH = placement_mesh_impl.PlacementMeshImpl


@contextlib.contextmanager
def light(share: bool = True, placeholders: bool = True) -> Iterator[None]:
  """Within a `with` block, models and their `values` take few operations.

  Nothing may change variables. Constants are shared as `few_operations` says.

  Args:
    share: whether processors with the same inputs share operations. Decoding writes
      into its caches in place, so that each processor needs its own.
    placeholders: whether variables are placeholders, without initial values.
  """
  parallel = _shared if share else _parallel
  with contextlib.ExitStack() as patches:
    for owner, name, replacement in [
        (ops, "parallel", parallel),
        (placement_mesh_impl.mtf, "parallel", parallel),
        (ops, "_expand_dims", _expand_dims), (_MESH, "LaidOutVariable", _Slices),
        (_MESH, "laid_out_pcoord", _coordinates),
        (placement_mesh_impl, "allreduce_ring", _reduced),
        (placement_mesh_impl, "allconcat_ring", _concatenated)]:
      patches.enter_context(mock.patch.object(owner, name, replacement))
    if placeholders:
      patches.enter_context(tf.variable_scope("", custom_getter=_placeholder))
    yield


def values(model, *tensors, seed, scale):
  """The values of tensors of a `models.Model`, as those that its `run` returns."""
  mesh_impl = _MESH(model.mesh_shape, model.layout, [""] * model.mesh_shape.size)
  lowering = mtf.Lowering(model.graph, {model.mesh: mesh_impl}, autostack=False)
  fetches = [lowering.export_to_tf_tensor(t) for t in tensors]
  generator = np.random.RandomState(seed)
  variables = [v.get_master() for v in model.graph.all_variables]
  with sessions.start() as session:
    return session.run(fetches, {
        v: scale * generator.randn(*v.shape.as_list()) for v in variables})


def _placeholder(getter, name, shape, dtype, **kwargs):
  del getter, kwargs
  with tf.name_scope(None):
    return tf.placeholder(dtype, shape, name)


class _Slices:
  """The slices of a placeholder, or of a variable, on the processors."""

  def __init__(self, variable, mesh_impl):
    shape, master = variable.shape, tf.cast(variable.get_master(), variable.slice_dtype)
    begins = [tuple(mesh_impl.slice_begin(shape, n)) for n in range(mesh_impl.size)]
    slices = {begin: tf.slice(master, begin, mesh_impl.slice_shape(shape))
              for begin in set(begins)} if len(set(begins)) > 1 else {begins[0]: master}
    self.laid_out_tensor = mesh_impl.LaidOutTensor([slices[b] for b in begins])


def _parallel(devices, fn, *args, **kwargs):
  """Calls a function for each processor, outside of scopes."""
  return [fn(*(arg[n] for arg in args), **{
      name: arg[n] for name, arg in kwargs.items()}) for n in range(len(devices))]


def _shared(devices, fn, *args, **kwargs):
  """Calls a function for each processor, once for those with the same arguments."""
  keys = [tuple(id(arg[n]) for arg in [*args, *kwargs.values()])
          for n in range(len(devices))]
  own = {key: n for n, key in enumerate(keys)}
  chosen = [[arg[n] for n in own.values()] for arg in args]
  results = dict(zip(own, _parallel(own, fn, *chosen, **{
      name: [arg[n] for n in own.values()] for name, arg in kwargs.items()})))
  return [results[key] for key in keys]


def _coordinates(mesh_impl, mesh_axis):
  return mesh_impl.LaidOutTensor([
      mtf.pnum_to_processor_coordinates(mesh_impl.shape, n)[mesh_axis]
      for n in range(mesh_impl.size)])


def _reduced(xs, devices, reduction_fn_string="SUM"):
  reduction = mtf.binary_reduction_fn(reduction_fn_string)
  return [functools.reduce(reduction, xs)] * len(devices)


def _concatenated(xs, devices, concat_axis):
  return [tf.concat(xs, concat_axis)] * len(devices)


def _expand_dims(x, input_shape, output_shape):
  """As Mesh's, but without operations that change nothing."""
  ops.verify_no_new_dims([output_shape], input_shape)
  if input_shape == output_shape or not input_shape.ndims:
    return x
  order = [input_shape.dims.index(d) for d in output_shape.dims
           if d in input_shape.dims]
  if order != sorted(order):
    x = tf.transpose(x, order)
  sizes = iter(x.shape.as_list())
  new_shape = [next(sizes) if d in input_shape.dims else 1 for d in output_shape.dims]
  return x if x.shape.as_list() == new_shape else tf.reshape(x, new_shape)


def _once(original):
  """Makes constants of Python's numbers once for each graph, but for those in loops."""
  @functools.wraps(original)
  def make(value, dtype, shape, *args, **kwargs):
    is_list = isinstance(value, (list, tuple))
    numbers = value if is_list else [value]
    graph = tf.get_default_graph()
    if (shape is not None or graph._get_control_flow_context() or
        {type(number) for number in numbers} - {int, float, bool}):
      return original(value, dtype, shape, *args, **kwargs)
    if not hasattr(graph, "constants_of_tests"):
      graph.constants_of_tests = {}
    made = graph.constants_of_tests
    key = dtype, is_list, *((type(n), repr(n)) for n in numbers)
    if key not in made:
      with graph.control_dependencies(None):
        made[key] = original(value, dtype, shape, *args, **kwargs)
    return made[key]
  return make


def few_operations() -> None:
  """Halves the operations of the models that this process makes from now on.

  A graph has each constant once, and packed rows two groups of segments, not six.
  """
  tf_ops._create_graph_constant = _once(tf_ops._create_graph_constant)
  packed_segments._GROUPS = 2
