"""Each way in to a warm start is asked where each variable came from, bit by bit."""

import types

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import models
from synthesizer_mtf.training import warm_start
import tensorflow.compat.v1 as tf

SIZES = [*models.TINY, "num_layers = 1", "d_model = 8", "d_ff = 8",
         "AdafactorOptimizer.min_dim_size_to_factor = 8",
         "utils.get_variable_dtype.activation_dtype = 'float32'",
         "transformer_layers.SelfAttention.relative_attention_type = 'bias_shared'",
         "Unitransformer.positional_embedding = False"]
BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"
STEP = 7
LENGTHS = {"inputs": 5, "targets": 7}


def parse(attention, *bindings):
  models.parse_gin(["models/bi_v1.gin"], [
      *SIZES, f"synthesizer_stack.attention = {attention!r}", *bindings])


def estimator(folder, **others):
  """What `utils.run` makes of the bindings."""
  return utils.get_estimator(**{
      "model_type": "bitransformer", "model_dir": str(folder),
      "vocabulary": types.SimpleNamespace(vocab_size=models.VOCABULARY),
      "mesh_shape": mtf.Shape([]), "layout_rules": mtf.convert_to_layout_rules(""),
      "batch_size": 2, "sequence_length": LENGTHS, "autostack": True,
      "learning_rate_schedule": 0.1, "keep_checkpoint_max": 9,
      "save_checkpoints_steps": 100, "optimizer": optimize.AdafactorOptimizer,
      "predict_fn": None, "variable_filter": None, "ensemble_inputs": None,
      "use_tpu": None, "tpu_job_name": None, "iterations_per_loop": 1,
      "cluster": None, "mesh_devices": ["cpu:0"], **others})


def data(params):
  del params
  return tf.data.Dataset.from_tensors({
      name: tf.fill([2, length], 3) for name, length in LENGTHS.items()}).repeat()


def train(folder, steps, **others):
  """Trains, and returns the variables of the first checkpoint by name."""
  with tf.Graph().as_default():
    estimator(folder, **others).train(data, max_steps=steps)
  paths = tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths
  return read(paths[0])


def read(path):
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def save(path, like):
  """Writes a checkpoint of random variables; returns them by name."""
  random = np.random.RandomState(0)
  values = {name: np.abs(random.randn(*value.shape)).astype(value.dtype)
            for name, value in like.items()}  # Slots are positive.
  values["global_step"] = np.int64(STEP)
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.raw_ops.SaveV2(
        prefix=path, tensor_names=list(values),
        shape_and_slices=[""] * len(values), tensors=list(values.values())))
  return values


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
  """A checkpoint of T5's own model, and its variables."""
  folder = tmp_path_factory.mktemp("stock")
  path = str(folder / "model.ckpt-7")
  parse(None)
  return path, save(path, train(folder / "made", 1))


def sources(variables, checkpoint):
  """For each variable the one in the checkpoint that has the same bits, or None."""
  names = {value.tobytes(): name for name, value in checkpoint.items()}
  assert len(names) == len(checkpoint)
  return {name: names.get(value.tobytes()) for name, value in variables.items()}


def in_t5(name):
  return name.replace("SyntheticAttention", "SelfAttention")


def new(name):
  return name.split("/")[-1].startswith(("R", "alpha"))


def test_t5s_parameter_fills_all_but_what_is_new_and_goes_on(stock, tmp_path):
  path, checkpoint = stock
  parse("R+V", BIAS)
  found = sources(train(tmp_path, STEP + 1, init_checkpoint=path), checkpoint)
  assert found == {name: None if new(name) else in_t5(name) for name in found}
  assert {in_t5(name) for name in found if not new(name)} == set(checkpoint)


def test_a_warm_start_fills_the_same_but_counts_from_0(stock, tmp_path):
  path, checkpoint = stock
  parse("R+V", BIAS, f"warm_start.checkpoint = '{path}'")
  variables = train(tmp_path, 1)
  assert variables["global_step"] == 0
  slots = {name for name in variables if "_slot_" in name}
  found = sources(variables, checkpoint)
  assert found == {
      name: None if new(name) or name in slots or name == "global_step"
      else in_t5(name) for name in found}


def test_a_folder_goes_on_from_its_own_checkpoint(stock, tmp_path):
  path, _ = stock
  parse("R+V", BIAS)
  before = train(tmp_path, STEP + 1, init_checkpoint=path)
  train(tmp_path, STEP + 2, init_checkpoint="/moved/away")
  after = read(str(tmp_path / f"model.ckpt-{STEP + 2}"))
  assert after["global_step"] == STEP + 2 and set(after) == set(before)


def test_a_missing_checkpoint_is_named_by_t5s_parameter(tmp_path):
  parse("R+V")
  with pytest.raises(ValueError, match="`init_checkpoint` is '/nowhere/model.ckpt-1' "
                     "but there is no checkpoint"):
    train(tmp_path, STEP + 1, init_checkpoint="/nowhere/model.ckpt-1")


@pytest.mark.parametrize("binding, message", [
    ("warm_start.checkpoint = 'one'", "`warm_start.checkpoint` is 'one'; leave out"),
    ("warm_start.continue_training = False", "with which the step goes on, but `warm_s")
])
def test_a_binding_that_contradicts_t5s_parameter_is_an_error(
    binding, message, tmp_path):
  parse("R+V", binding)
  with pytest.raises(ValueError, match=message):
    estimator(tmp_path, init_checkpoint="two")


def test_what_gin_binds_for_either_parameter_counts():
  parse("R+V", "warm_start.fresh = 'R'", "warm_start.renames = [('a', 'b')]",
        "utils.tpu_estimator_model_fn.init_checkpoint = 'two'")
  assert warm_start.chosen(None) == warm_start.WarmStart(
      "two", "R", [("a", "b")], True, "init_checkpoint")
