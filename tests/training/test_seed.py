"""Training with a seed: the same random numbers in every process and stack."""

import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
import numpy as np
import pytest
from support import sessions
import synthesizer_mtf
from synthesizer_mtf.training import estimators
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_config

# The first rows of two random tensors.
DRAWN = [[0.974887, 0.611237, 0.578845, 0.263088],
         [0.063622, 0.449365, 0.442691, 0.835445]]
ITERATIONS = 3


class Estimator:
  """The part of an estimator that `train_with_seed` changes."""

  def __init__(self):
    self.config = tf.estimator.RunConfig()

  def configure(self, **changes):
    self.config = self.config.replace(**changes)


def noise(seed, mesh_shape="", layout=""):
  """The slices of two random tensors [2, 4] of a model in training."""
  shape = mtf.Shape([mtf.Dimension("rows", 2), mtf.Dimension("columns", 4)])
  processors = mtf.convert_to_shape(mesh_shape)

  def train(estimator):
    tf.set_random_seed(estimator.config.tf_random_seed)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    drawn = [mtf.random_uniform(mesh, shape, name="dropout") for _ in range(2)]
    lowering = mtf.Lowering(graph, {mesh: placement_mesh_impl.PlacementMeshImpl(
        processors, mtf.convert_to_layout_rules(layout),
        [""] * processors.size)})
    with sessions.start() as session:
      return session.run([lowering.tensors[t].all_slices for t in drawn])

  with tf.Graph().as_default():
    return np.array(synthesizer_mtf.train_with_seed(
        Estimator(), seed=seed, train_model_fn=train))


def test_random_numbers_are_these_in_every_process_and_stack():
  np.testing.assert_allclose(noise(1)[:, 0, 0], DRAWN, atol=1e-6)


def test_another_seed_gives_other_random_numbers():
  assert not np.isclose(noise(1), noise(2)).any()


def test_each_operation_has_random_numbers_of_its_own():
  first, second = noise(1)
  assert not np.isclose(first, second).any()


@pytest.mark.parametrize("layout, equal", [("", True), ("rows:all", False)])
def test_slices_of_the_same_numbers_are_equal_and_others_are_not(layout, equal):
  for one, other in noise(1, "all:2", layout):
    assert np.isclose(one, other).all() == equal
    assert np.isclose(one, other).any() == equal


def test_afterwards_mesh_draws_its_own_seeds():
  before = placement_mesh_impl.PlacementMeshImpl.random
  noise(1)
  assert placement_mesh_impl.PlacementMeshImpl.random is before


class Drawn(tf.train.SessionRunHook):
  """Notes the random numbers of each step."""

  def __init__(self):
    self.steps = []

  def before_run(self, run_context):
    return tf.train.SessionRunArgs("drawn:0")

  def after_run(self, run_context, run_values):
    self.steps.append(run_values.results)


def model_fn(features, labels, mode, params):
  """A model that draws a number outside of a loop, and one in each iteration."""
  del features, labels, params
  graph = mtf.Graph()
  mesh = mtf.Mesh(graph, "mesh")
  dim = mtf.Dimension("numbers", ITERATIONS + 1)

  def draw(i):
    number = mtf.random_uniform(mesh, [], name="dropout")
    return mtf.one_hot(i, dim, dtype=tf.float32) * number

  zero = mtf.constant(mesh, 0, dtype=tf.int32)
  _, drawn = mtf.while_loop(
      lambda i: mtf.less(i, ITERATIONS), lambda i: [i + 1, draw(i)], [zero],
      has_accumulators=True)
  drawn += draw(zero + ITERATIONS)
  lowering = mtf.Lowering(graph, {
      mesh: placement_mesh_impl.PlacementMeshImpl([], [], [""])})
  drawn = tf.identity(lowering.export_to_tf_tensor(drawn), "drawn")
  loss = tf.reduce_sum(drawn)
  with tf.control_dependencies([loss]):
    train_op = tf.group(tf.assign_add(tf.train.get_global_step(), 1))
  return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def drawn_numbers(folder, *ends):
  """Trains to each of the steps `ends`; returns the random numbers of all steps."""
  hook = Drawn()
  for end in ends:
    estimator = estimators.CarefulEstimator(
        model_fn, config=tpu_config.RunConfig(model_dir=str(folder)), use_tpu=False,
        train_batch_size=1, params={})
    with tf.Graph().as_default():
      synthesizer_mtf.train_with_seed(
          estimator, lambda params: tf.data.Dataset.from_tensors({"x": [1.]}).repeat(),
          [hook], max_steps=end, seed=1,
          train_model_fn=estimators.CarefulEstimator.train)
  return np.array(hook.steps)


@pytest.mark.parametrize("version", [1, 2])
def test_a_restart_draws_what_follows_and_no_number_comes_twice(version, tmp_path):
  if version == 1:
    tf.disable_control_flow_v2()
  try:
    whole = drawn_numbers(tmp_path / "whole", 4)
    np.testing.assert_array_equal(drawn_numbers(tmp_path / "parts", 1, 4), whole)
  finally:
    tf.enable_control_flow_v2()
  assert whole.shape == (4, ITERATIONS + 1)
  assert len(np.unique(whole)) == whole.size
