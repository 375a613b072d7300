"""The one builder makes what T5's trainer makes, and a session holds its variables."""

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import checkpoint_files
from support import models
from support import sessions
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.model import session
import tensorflow.compat.v1 as tf

BATCH = 4
RATE = 1e-3  # Small, as SGD updates variables that other operations still read.
MICROBATCHES = "serialize_num_microbatches.tokens_per_microbatch_per_replica = 14"


def parse(file, *more):
  models.parse_gin([file], [
      *models.TINY, "num_layers = 1", "synthesizer_stack.attention = 'R+V'",
      "RandomLogits.max_length = 12", "utils.get_variable_dtype.master_dtype = "
      "'float32'", "utils.get_variable_dtype.activation_dtype = 'float32'", *more])


def packed(names):
  """Features <int32>[batch, length] of rows with two examples and padding."""
  features = {}
  for name in names:
    length = models.LENGTHS[name]
    ids = np.random.RandomState(length).randint(2, models.VOCABULARY, (BATCH, length))
    segments = np.repeat([1, 2, 0], [2, length - 3, 1])
    positions = np.concatenate([np.arange(2), np.arange(length - 3), [0]])
    features |= {name: ids * (segments > 0),
                 f"{name}_segmentation": np.tile(segments, (BATCH, 1)),
                 f"{name}_position": np.tile(positions, (BATCH, 1))}
  return features


def trainers_step(folder, model_type, features, values):
  """The loss, and the variables after a step of training, by T5's trainer."""
  estimator = utils.get_estimator(**models.estimator_arguments(
      folder, model_type=model_type, batch_size=BATCH, learning_rate_schedule=RATE,
      optimizer=optimize.SgdOptimizer))
  with tf.Graph().as_default(), sessions.start() as run:
    tf.train.create_global_step()
    spec = estimator._call_model_fn(
        {name: tf.constant(ids, tf.int32) for name, ids in features.items()}, None,
        building.TRAIN, estimator.config)
    variables = {v.op.name: v for v in tf.global_variables()}
    run.run(tf.global_variables_initializer())
    sessions.assign(run, {name: variables[name] for name in values}, values)
    loss = run.run(spec.loss)
    run.run(spec.train_op)
    return loss, run.run({name: variables[name] for name in values})


@pytest.mark.slow
@pytest.mark.parametrize("model_type, file, more", [
    ("bitransformer", "models/bi_v1.gin", [MICROBATCHES]),
    ("delimited_lm", "models/lm_v1.gin", []), ("lm", "models/lm_v1.gin", [])],
                         ids=["microbatches", "delimited_lm", "lm"])
def test_a_step_is_that_of_t5s_trainer(tmp_path, model_type, file, more):
  parse(file, *more)
  features = packed(["targets"] if model_type == "lm" else ["inputs", "targets"])
  with tf.Graph().as_default():
    model = building.Model((models.VOCABULARY, models.VOCABULARY), model_type)
    step = model.train(model.feed({
        name: f"outer_batch:1,batch:{BATCH},length:{ids.shape[1]}"
        for name, ids in features.items()}), optimize.SgdOptimizer, RATE)
    assert step.microbatches == (2 if more else 1)
    lowered = session.Lowered(model, config=sessions.config())
    generator = np.random.RandomState(0)
    values = {name: np.float32(0.3 * generator.randn(*variable.shape))
              for name, variable in sorted(lowered.variables.items())
              if name != "global_step"}
    lowered.assign(values)
    feeds = {placeholder: features[name][None]
             for name, placeholder in model.fed.items()}
    loss = lowered.run(lowered.export(step.result), feeds)
    lowered.run([*map(lowered.lowering.lowered_operation, step.updates)], feeds)
    lowered.run(lowered.lowering.copy_slices_to_masters())
    ours = lowered.run({name: lowered.variables[name] for name in values})
  expected, after = trainers_step(tmp_path, model_type, features, values)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  assert max(abs(after[name] - values[name]).max() for name in values) > 1e-5
  for name, value in after.items():
    np.testing.assert_allclose(ours[name], value, rtol=0, atol=2e-7, err_msg=name)


@pytest.mark.parametrize("is_on_tpu", [False, True])
def test_whether_a_graph_is_for_tpus_is_an_argument(is_on_tpu):
  parse("models/bi_v1.gin")
  with tf.Graph().as_default():
    model = building.Model((models.VOCABULARY, models.VOCABULARY), is_on_tpu=is_on_tpu)
    model.train(model.feed({name: f"batch:2,length:{length}"
                            for name, length in models.LENGTHS.items()}),
                optimize.AdafactorOptimizer, RATE)
  assert model.mesh.variable_placer_fn == "cpu:0"
  assert is_on_tpu != any(op.name.rpartition("/")[2].startswith("adafactor")
                          for op in model.graph.operations)


def session_with_v():
  """A session with the bfloat16 variable "v", and its double after `prepare`."""
  v = tf.get_variable("v", [3], tf.bfloat16)
  doubled = tf.get_variable("doubled", [3], tf.bfloat16, collections=[])
  return session.Session({"v": v}, doubled.assign(v + v).op), doubled


def test_a_checkpoint_in_another_dtype_is_restored_and_rounded(tmp_path):
  checkpoint_writer.write(str(tmp_path), "m", [("old", np.float32([1, 2, 1.001]))])
  with tf.Graph().as_default():
    made, doubled = session_with_v()
    made.restore(str(tmp_path / "m"), {"v": "old"})
    assert made.run(made.variables["v"]).tolist() == [1, 2, 1]
    assert made.run(doubled).tolist() == [2, 4, 2]
    made.restore(str(tmp_path / "m"), new={"v": [5, 6, 7]})
    assert made.run(doubled).tolist() == [10, 12, 14]
    made.save(str(tmp_path / "saved"))
  saved = tf.train.load_checkpoint(str(tmp_path / "saved"))
  assert saved.get_tensor("v").tolist() == [5, 6, 7]


def test_a_checkpoint_of_another_model_or_with_damage_is_one_sentence(tmp_path):
  for name, shape in ("v", [4]), ("w", [3]), ("v", [3]):
    checkpoint_writer.write(str(tmp_path), "model.ckpt-1", [(name, np.ones(shape))])
    with tf.Graph().as_default():
      made, _ = session_with_v()
      if (name, shape) == ("v", [3]):
        checkpoint_files.flip(checkpoint_files.largest_data_file(tmp_path, 1))
      with pytest.raises(checks.Error) as error:
        made.restore(str(tmp_path / "model.ckpt-1"))
    assert {"v": {4: "with shape [4]", 3: "damaged"}, "w": {3: "nowhere"}}[name][
        shape[0]] in str(error.value)


def test_a_model_without_sizes_has_the_vocabulary_that_gin_binds():
  parse("models/bi_v1.gin", "get_vocabulary.mixture_or_task_name = 'synth_text_pairs'",
        f"{vocabulary.PARAMETER} = '{vocabulary.BYTES}'")
  with tf.Graph().as_default():
    model = building.Model()
    model.call(model.feed({"inputs": "batch:1,length:3",
                           "targets": "batch:1,length:4"}))
  embedding, = (v for v in model.graph.all_variables if v.name == "shared/embedding")
  assert embedding.shape.dims[0] == mtf.Dimension("vocab", 384)
