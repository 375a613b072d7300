"""Seeds: a training repeats its random numbers, an evaluation has the same spans."""

import functools
import time

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import placement_mesh_impl
import numpy as np
import pytest
import seqio
from support import processes
from support import sessions
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.data import seed as seed_lib
from synthesizer_mtf.trainer.model import estimators
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_config

SHAPE = mtf.Shape([mtf.Dimension("rows", 2), mtf.Dimension("columns", 900)])
ITERATIONS = 3


class Estimator:
  """The part of an estimator that `train_with_seed` changes."""

  def __init__(self):
    self.config = tf.estimator.RunConfig()

  def configure(self, **changes):
    self.config = self.config.replace(**changes)


def noise(seed, names=("dropout", "other"), mesh_shape="", layout="",
          draw=mtf.random_uniform):
  """Draws numbers in a training: [name, processor, rows, columns]."""
  processors = mtf.convert_to_shape(mesh_shape)

  def train(estimator):
    tf.set_random_seed(estimator.config.tf_random_seed)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    drawn = [draw(mesh, SHAPE, name=name) for name in names]
    lowering = mtf.Lowering(graph, {mesh: placement_mesh_impl.PlacementMeshImpl(
        processors, mtf.convert_to_layout_rules(layout),
        [""] * processors.size)})
    with sessions.start() as session:
      return session.run([lowering.tensors[t].all_slices for t in drawn])

  with tf.Graph().as_default():
    return np.array(synthesizer_mtf.train_with_seed(
        Estimator(), seed=seed, train_model_fn=train))


def test_numbers_depend_on_the_seed_and_the_name_and_not_on_the_process():
  dropout, other = numbers = noise(1)
  np.testing.assert_array_equal(noise(1), numbers)
  np.testing.assert_array_equal(processes.call(noise, 1), numbers)
  # Whatever else is drawn.
  np.testing.assert_array_equal(noise(1, ["new", "other"])[1], other)
  second_seed, = noise(2, ["dropout"])
  again, = noise(1, ["dropout", "dropout"])[1:]  # A second operation of this name.
  for first, second in ((dropout, other), (dropout, second_seed), (dropout, again)):
    assert abs(np.corrcoef(first.flat, second.flat)[0, 1]) < 0.1
    assert not (first == second).any()


def test_numbers_are_distributed_as_asked():
  uniform = np.sort(noise(1, ["dropout"]).flat)
  evenly = (np.arange(uniform.size) + 0.5) / uniform.size
  assert np.abs(uniform - evenly).max() < 0.04 and 0 <= uniform[0] < uniform[-1] < 1
  normal = noise(1, ["dropout"], draw=mtf.random_normal)
  assert abs(normal.mean()) < 0.1 and 0.9 < normal.std() < 1.1
  assert 2.5 < np.abs(normal).max() < 6


@pytest.mark.parametrize("layout, equal", [("", 1.), ("rows:all", 0.)])
def test_slices_of_the_same_numbers_are_equal_and_others_are_not(layout, equal):
  for one, other in noise(1, mesh_shape="all:2", layout=layout):
    assert np.isclose(one, other).mean() == pytest.approx(equal, abs=0.01)


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
  whole = drawn_numbers(tmp_path / "whole", 4)
  np.testing.assert_array_equal(drawn_numbers(tmp_path / "parts", 1, 4), whole)
  assert whole.shape == (4, ITERATIONS + 1)
  assert len(np.unique(whole)) == whole.size


def test_a_step_reads_its_own_number_however_late_it_does():
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.create_global_step()
    with tf.control_dependencies([
        tf.numpy_function(lambda: time.sleep(.1), [], [])]):
      read = tf.identity(step)
    seen = tf.get_variable("seen", [], tf.int64)
    spec = seed_lib.raising_last(tf.estimator.EstimatorSpec(
        "train", loss=tf.zeros([]),
        train_op=tf.group(tf.group(tf.assign_add(step, 1)), seen.assign(read + 0))))
    session.run(tf.global_variables_initializer())
    for number in range(3):
      session.run(spec.train_op)
      assert session.run([seen, step]) == [number, number + 1]


def evaluated():
  """The inputs that an evaluation of C4 feeds to a model, in order."""
  data, = mesh_transformer.mesh_eval_dataset_fn(
      "synth_c4_span_corruption", {"inputs": 32, "targets": 14}, "validation")
  rows = [row["inputs"] for row in data.dataset_fn().as_numpy_iterator()]
  assert len(rows) > 9
  return np.array(rows)


@pytest.mark.usefixtures("tasks_to_read")
def test_evaluations_have_the_same_spans_unless_gin_binds_a_seed():
  gin.finalize()
  first = evaluated()
  gin.clear_config()
  # A notebook finalizes nothing.
  gin_files.bind(seed_lib.bind_evaluation_seed(gin_internals.bindings()))
  np.testing.assert_array_equal(evaluated(), first)
  for value in (None, 7):
    gin.clear_config()
    gin.parse_config(f"mesh_eval_dataset_fn.seed = {value}")
    gin.finalize()
    assert not np.array_equal(evaluated(), first)


def test_a_seed_is_bound_unless_gin_shuffles_the_examples():
  selector = "t5.models.mesh_transformer.mesh_eval_dataset_fn"
  for shuffles in (True, False):
    bound = seed_lib.bind_evaluation_seed({
        ("", selector): {"shuffle_eval_examples": shuffles}})
    assert bound == (None if shuffles else {f"{selector}.seed": seed_lib.EVALUATION})


def test_functions_without_a_seed_give_data_to_evaluations_as_in_t5():
  def data(split, shuffle_files, seed=None, path=None):
    del split, shuffle_files, seed, path
    return tf.data.Dataset.from_tensors({"targets": "a"})

  functions = {
      "with": data, "partial": functools.partial(data, seed=3),
      "without": lambda split, shuffle_files: data(split, shuffle_files),
      "other": functools.partial(lambda split, shuffle_files, path: data(
          split, shuffle_files), path="x")}
  for name, function in functions.items():
    seqio.TaskRegistry.add(
        f"tests_seed_{name}", seqio.FunctionDataSource(function, splits=["test"]),
        preprocessors=[seqio.preprocessors.tokenize],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())})
  seqio.MixtureRegistry.add("tests_seed_mixture", [
      ("tests_seed_with", 1), ("tests_seed_without", 1)])
  try:
    for name, seed in [("with", 1), ("partial", 1), ("without", None), ("other", None),
                       ("mixture", None)]:
      name = f"tests_seed_{name}"
      for bindings, task in ([f"MIXTURE_NAME = '{name}'"], None), ([], name):
        gin_files.parse(["eval.gin"], ["MIXTURE_NAME = 'synth_text_pairs'", *bindings])
        gin_files.bind(seed_lib.bind_evaluation_seed(gin_internals.bindings(), task))
        assert gin_files.bound("mesh_eval_dataset_fn.seed", None) == seed, name
        first, *_ = mesh_transformer.mesh_eval_dataset_fn(
            name, {"targets": 4}, "test")
        assert len([*first.dataset_fn()]) == 1
  finally:
    seqio.MixtureRegistry.remove("tests_seed_mixture")
    for name in functions:
      seqio.TaskRegistry.remove(f"tests_seed_{name}")
