"""The launcher starts a model from the checkpoint of another."""

import re

import numpy as np
from support import launching
import tensorflow.compat.v1 as tf

FROM_T5 = "warm_start/from_t5.gin"
ENCODER = "encoder/block_000/layer_000/"
SELF = ENCODER + "SelfAttention/"
OURS = ENCODER + "SyntheticAttention/"


def test_the_launcher_starts_r_plus_v_from_the_stock_layers_checkpoint(
    tmp_path, sentencepiece_model):
  launch = launching.Launcher(tmp_path, sentencepiece_model)
  common = ["num_layers = 1"]
  done = launch(bindings=common + [
      "synthesizer_stack.attention = None", launching.STEPS.format(3)])
  assert done.returncode == 0, done.stderr[-3000:]
  old = tf.train.load_checkpoint(str(tmp_path / "model"))
  launch.model_dir = tmp_path / "warm"
  done = launch(FROM_T5, bindings=common + [
      f"warm_start.checkpoint = '{tmp_path}/model'",
      launching.STEPS.format(2)])
  assert done.returncode == 0, done.stderr[-3000:]
  assert "Warm start: fresh: encoder/block_*/layer_000/SyntheticAttention/R, " in (
      done.stderr)
  new = tf.train.load_checkpoint(str(tmp_path / "warm" / "model.ckpt-0"))
  assert new.get_tensor("global_step") == 0
  for name in ("q", "relative_attention_bias"):
    np.testing.assert_array_equal(
        new.get_tensor(OURS + name), old.get_tensor(SELF + name))
  assert launching.steps(launch)[-1] == 2
  # T5's own parameter: the step and the optimizer go on.
  launch.model_dir = tmp_path / "init"
  done = launch(bindings=common + [
      f"utils.run.init_checkpoint = '{tmp_path}/model/model.ckpt-3'",
      launching.STEPS.format(4)])
  assert done.returncode == 0, done.stderr[-3000:]
  assert "Warm start: the step count continues; " in done.stderr
  assert "is missing, so training reads the data" not in done.stderr
  new = tf.train.load_checkpoint(str(tmp_path / "init" / "model.ckpt-3"))
  for name in new.get_variable_to_shape_map():
    if not re.search(r"/(R|alpha)(_slot_\w+)?$", name):
      np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(
          name.replace("SyntheticAttention", "SelfAttention")))
