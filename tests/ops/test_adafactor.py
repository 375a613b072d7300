"""Adafactor in few passes computes what the paper says, and what Mesh's computes."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from support import sessions
from synthesizer_mtf import optimizer
from synthesizer_mtf.ops import adafactor
import tensorflow.compat.v1 as tf

STEPS = 3
# Both factored dimensions at each place, with and without others around.
SHAPES = {
    "matrix": "a:7,b:5", "wide": "a:5,b:7", "square": "a:6,b:6", "vector": "a:11",
    "scalar": "", "narrow": "a:9,b:2", "stacked": "s:3,a:7,b:5",
    "last": "s:2,t:3,a:5,b:11", "outer": "a:7,s:3,b:5", "first": "a:5,b:7,s:2,t:3",
    "mixed": "s:3,a:5,t:2,b:7"}
OPTIONS = {
    "default": {}, "momentum": {"beta1": 0.9}, "no clipping": {"clipping_threshold": None},
    "clipping": {"clipping_threshold": 0.3}, "not factored": {"factored": False},
    "absolute": {"multiply_by_parameter_scale": False},
    "absolute for some": {"exclude_from_parameter_scale": ["ma", "st"]},
    "stacked": {"stacked_dim_names": ["s", "nothing"]},
    "stacked twice": {"stacked_dim_names": ["s", "a"], "beta1": 0.5},
    "epsilons": {"epsilon1": 0.3, "epsilon2": 0.7}, "decay": {"decay_rate": 0.6},
    "size": {"min_dim_size_to_factor": 6}}


def parse(fast=True, attention="'R'"):
  models.parse_gin([], [f"synthesizer_stack.attention = {attention}",
                        f"synthesizer_optimizer.fast = {fast}"])


def numbers(shapes, seed=0):
  """Variables by name, and their gradients for each step."""
  generator = np.random.RandomState(seed)

  def draw(scale):
    return {name: np.float32(generator.normal(
        scale=scale, size=mtf.convert_to_shape(shape).to_integer_list))
            for name, shape in shapes.items()}

  return draw(0.1), [draw(10. ** -step) for step in range(STEPS)]


class Trainer:
  """Variables of a graph, which gradients from outside update."""

  def __init__(self, options, shapes, mesh_shape="", layout="", autostack=True,
               dtype=tf.float32, make=optimize.AdafactorOptimizer):
    self.tf_graph = tf.Graph()
    mesh_shape = mtf.convert_to_shape(mesh_shape)
    with self.tf_graph.as_default():
      tf.train.get_or_create_global_step()
      graph = mtf.Graph()
      mesh = mtf.Mesh(graph, "mesh")
      self.fed = {}
      grads = []
      for name, shape in shapes.items():
        shape = mtf.convert_to_shape(shape)
        value = mtf.get_variable(mesh, name, shape, dtype=dtype)
        self.fed[name] = tf.placeholder(tf.float32, shape.to_integer_list)
        grads.append(mtf.cast(mtf.import_tf_tensor(
            mesh, self.fed[name], shape), value.dtype))
      options = {"min_dim_size_to_factor": 4, "learning_rate": 0.1,
                 "decay_rate": 0.8, **options}
      updates = make(**options).apply_grads(grads, graph.trainable_variables)
      masters = {v.name: v.get_master() for v in graph.all_variables}
      lowering = mtf.Lowering(graph, {
          mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
              mesh_shape, mtf.convert_to_layout_rules(layout),
              [""] * mesh_shape.size)}, autostack=autostack)
    self.graph, self.lowering, self.updates = graph, lowering, updates
    self.masters = masters

  def run(self, start, grads):
    """The variables and slots by name, after steps from some of them."""
    with self.tf_graph.as_default(), sessions.start() as session:
      session.run(tf.global_variables_initializer())
      known = {name: self.masters[name] for name in start}
      sessions.assign(session, known, start)
      session.run(self.lowering.copy_masters_to_slices())
      update = [self.lowering.lowered_operation(op) for op in self.updates]
      for step in grads:
        session.run(update, {self.fed[name]: grad for name, grad in step.items()})
      session.run(self.lowering.copy_slices_to_masters())
      return session.run(self.masters)

  def is_fast(self):
    """Whether every variable has our operation, or none."""
    count = sum(isinstance(op, adafactor.AdafactorOperation)
                for op in self.graph.operations)
    assert count in (0, len(self.fed))
    return count > 0


def train(options, shapes=SHAPES, fast=True, steps=slice(None), start=None, **kwargs):
  parse(fast)
  values, grads = numbers(shapes)
  trainer = Trainer(options, shapes, **kwargs)
  assert trainer.is_fast() == fast
  return trainer.run(start or values, grads[steps])


def check(one, other, rtol=2e-6):
  assert one.keys() == other.keys()
  for name, value in one.items():
    scale = np.abs(np.float32(value)).max()
    assert scale > 0, name
    np.testing.assert_allclose(
        np.float32(other[name]), np.float32(value), rtol=rtol, atol=rtol * scale,
        err_msg=name)


def rms(x, axes=None):
  return np.sqrt(np.mean(np.square(x), axes, keepdims=True))


def reference_moment(grad, slots, key, largest_two, decay_rate, epsilon1):
  """1/sqrt of the second moment of one variable, and its slots."""
  squares = np.square(grad) + epsilon1
  if largest_two is None:
    moments = {"_slot_v": squares}
  else:
    first, second = largest_two
    moments = {"_slot_vr": squares.mean(first, keepdims=True),
               "_slot_vc": squares.mean(second, keepdims=True)}
  for ending, mean in moments.items():
    slots[key + ending] = (decay_rate * slots.get(key + ending, 0) +
                           (1 - decay_rate) * mean)
  if largest_two is None:
    return slots[key + "_slot_v"]
  rows, columns = slots[key + "_slot_vr"], slots[key + "_slot_vc"]
  return rows * columns / rows.mean(second, keepdims=True)


def reference(shapes, learning_rate=0.1, decay_rate=0.8, beta1=0.0,
              clipping_threshold=1.0, factored=True, epsilon1=1e-30, epsilon2=1e-3,
              min_dim_size_to_factor=4, multiply_by_parameter_scale=True,
              stacked_dim_names=(), exclude_from_parameter_scale=()):
  """arXiv:1804.04235, algorithms 4 to 6, in float64; slots keep axes of size 1."""
  values, grads = numbers(shapes)
  values = {name: np.float64(value) for name, value in values.items()}
  slots = {}
  for step in grads:
    for name, grad in step.items():
      dims = mtf.convert_to_shape(shapes[name]).dims
      free = [i for i, d in enumerate(dims) if d.name not in stacked_dim_names]
      by_size = sorted(free, key=lambda i: -dims[i].size)[:2]
      is_factored = (factored and len(by_size) == 2 and
                     dims[by_size[1]].size >= min_dim_size_to_factor)
      x = np.float64(grad) / np.sqrt(reference_moment(
          np.float64(grad), slots, name, by_size if is_factored else None,
          decay_rate, epsilon1))
      if clipping_threshold is not None:
        x /= np.maximum(1, rms(x) / clipping_threshold)
      x *= learning_rate
      if multiply_by_parameter_scale and not any(
          part in name for part in exclude_from_parameter_scale):
        x *= np.maximum(rms(values[name], tuple(free)), epsilon2)
      if beta1:
        x = beta1 * slots.get(name + "_slot_m", 0) + (1 - beta1) * x
        slots[name + "_slot_m"] = x
      values[name] = values[name] - x
  return {**values, **slots}


def comparable(results):
  """Without axes of size 1, which no variable here has itself."""
  return {name: np.squeeze(value) for name, value in results.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_variables_and_slots_are_those_of_the_paper(options):
  found = train(options)
  check(comparable(reference(SHAPES, **options)), found, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_variables_and_slots_are_those_of_mesh_tensorflow(options):
  check(train(options, fast=False), train(options))
