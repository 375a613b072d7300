"""Training with a seed: the same random numbers in every process and stack."""

import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
import numpy as np
import pytest
from support import sessions
import synthesizer_mtf
import tensorflow.compat.v1 as tf

# The first rows of two random tensors.
DRAWN = [[0.441431, 0.099226, 0.573265, 0.744038],
         [0.384905, 0.568308, 0.488620, 0.999223]]


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
