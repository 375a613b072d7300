"""Tests of the choice of the checkpoint to resume from, after crashes."""

import os

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import pytest
from support import checkpoint_files
import synthesizer_mtf
from synthesizer_mtf.training import checkpoints
from synthesizer_mtf.training import optimizer_slots
import tensorflow.compat.v1 as tf


def remove_index(model_dir):
  (model_dir / "model.ckpt-8.index").unlink()


def remove_all_of_the_newest(model_dir):
  for path in model_dir.glob("model.ckpt-8*"):
    path.unlink()


def name_the_older(model_dir):
  checkpoint_files.name_in_state(model_dir, 4)


def remove_state(model_dir):
  (model_dir / "checkpoint").unlink()


def empty_state(model_dir):
  (model_dir / "checkpoint").write_text("")


def tear_state(model_dir):
  checkpoint_files.truncate(model_dir / "checkpoint")


def keep(model_dir):
  del model_dir


@pytest.mark.parametrize("harm, step", [
    (keep, 8), (remove_index, 4), (remove_all_of_the_newest, 4),
    (name_the_older, 8), (remove_state, 8), (empty_state, 8), (tear_state, 8)])
def test_training_resumes_from_the_newest_complete_checkpoint(
    tmp_path, harm, step):
  checkpoint_files.save(tmp_path)
  harm(tmp_path)
  before = checkpoint_files.contents(tmp_path)
  expected = str(tmp_path / f"model.ckpt-{step}")
  assert checkpoints.prepare(str(tmp_path)) == expected
  # The estimator resumes from this checkpoint.
  assert tf.train.latest_checkpoint(str(tmp_path)) == expected
  assert checkpoint_files.contents(tmp_path) == before


def test_steps_are_compared_as_numbers(tmp_path):
  checkpoint_files.save(tmp_path, 8, 10)
  remove_state(tmp_path)
  assert checkpoints.latest(str(tmp_path)).endswith("model.ckpt-10")


def test_an_older_checkpoint_named_on_purpose_stays(tmp_path):
  checkpoint_files.save(tmp_path)
  checkpoint_files.name_in_state(tmp_path, 4, 8)
  assert checkpoints.prepare(str(tmp_path)).endswith("model.ckpt-4")


def test_a_checkpoint_named_in_another_directory_stays(tmp_path):
  other = tmp_path / "other"
  other.mkdir()
  checkpoint_files.save(other, 3)
  path = other / "model.ckpt-3"
  (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n')
  assert checkpoints.prepare(str(tmp_path)) == str(path)


def test_an_empty_directory_begins_at_step_0(tmp_path):
  assert checkpoints.prepare(str(tmp_path / "new")) is None


def test_a_named_checkpoint_with_nothing_else_there_is_an_error(tmp_path):
  checkpoint_files.name_in_state(tmp_path, 8)
  with pytest.raises(ValueError, match="model.ckpt-8, which is not there"):
    checkpoints.prepare(str(tmp_path))


@pytest.mark.parametrize("suffix, harm, message", [
    ("data", checkpoint_files.truncate, r"have [\d,]+ bytes, of [\d,]+"),
    ("data", os.remove, "have 8 bytes, of"),
    ("index", checkpoint_files.truncate, "8.index is damaged")])
def test_a_damaged_newest_checkpoint_is_an_error_that_changes_nothing(
    tmp_path, suffix, harm, message):
  checkpoint_files.save(tmp_path)
  harm(tmp_path / "model.ckpt-8.index" if suffix == "index"
       else checkpoint_files.largest_data_file(tmp_path, 8))
  before = checkpoint_files.contents(tmp_path)
  with pytest.raises(ValueError, match=message) as error:
    checkpoints.prepare(str(tmp_path))
  assert "move model.ckpt-8.* away to continue from model.ckpt-4" in str(
      error.value)
  assert checkpoint_files.contents(tmp_path) == before
  remove_all_of_the_newest(tmp_path)  # As the message advises.
  assert checkpoints.prepare(str(tmp_path)).endswith("model.ckpt-4")


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path):
  checkpoint_files.save(tmp_path)
  (tmp_path / "model.ckpt-12_temp").mkdir()
  leftovers = [
      tmp_path / "model.ckpt-12_temp" / "part-00000-of-00001.index",
      tmp_path / f"model.ckpt-8.meta.tmp{'0a' * 16}",
      tmp_path / f"checkpoint.tmp{'1b' * 16}",
      tmp_path / "model.ckpt-12.index.tempstate123"]
  others = [tmp_path / "model.ckpt-12.data-00000-of-00001",
            tmp_path / "notes_temp", tmp_path / "notes.tmp"]
  for path in leftovers + others:
    path.write_text("half")
  checkpoints.prepare(str(tmp_path))
  assert not any(path.exists() for path in leftovers)
  assert not (tmp_path / "model.ckpt-12_temp").exists()
  assert all(path.exists() for path in others)
  assert len(checkpoints.find(str(tmp_path))) == 2


@pytest.mark.parametrize("here, folder", [
    (".", "runs/m"), ("runs/m", "."), ("runs/m", "../m/")])
def test_a_relative_folder_is_resumed_from_its_newest(
    here, folder, tmp_path, monkeypatch):
  model_dir = tmp_path / "runs" / "m"
  model_dir.mkdir(parents=True)
  checkpoint_files.save(model_dir)
  checkpoint_files.name_in_state(model_dir, 4)
  monkeypatch.chdir(tmp_path / here)
  newest = os.path.join(folder, "model.ckpt-8")
  assert checkpoints.prepare(folder) == newest
  state = tf.train.get_checkpoint_state(folder)
  assert state.model_checkpoint_path == newest
  assert list(state.all_model_checkpoint_paths) == [
      os.path.join(folder, "model.ckpt-4"), newest]
  assert tf.train.latest_checkpoint(folder) == newest


@pytest.fixture
def nobody():
  """Gives up root's rights, because root can write to read-only directories."""
  if os.geteuid():
    yield
    return
  os.seteuid(65534)
  yield
  os.seteuid(0)


def test_a_read_only_directory_is_an_error(tmp_path, request):
  tmp_path.chmod(0o555)
  for parent in tmp_path.parents:
    if parent.name.startswith(("pytest-", "popen-")):
      parent.chmod(0o755)
  request.getfixturevalue("nobody")
  with pytest.raises(ValueError, match="`--model_dir` is .* cannot be written"):
    checkpoints.prepare(str(tmp_path))
  with pytest.raises(ValueError, match="`--model_dir` is .* cannot be made"):
    checkpoints.check_folder(str(tmp_path / "new"))
  checkpoints.check_folder(str(tmp_path))  # Evaluation needs only to read.


def test_a_directory_below_a_file_is_an_error(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="`--model_dir` is .*file/model"):
    checkpoints.check_folder(str(tmp_path / "file" / "model"))


def differences(tmp_path, saved, ours):
  """Returns the message about a checkpoint and a model with other shapes."""
  checkpoint_files.save(tmp_path, 4, shapes=saved)
  with tf.Graph().as_default():
    tf.train.create_global_step()
    for name, shape in ours.items():
      tf.get_variable(name, shape)
    variables = tf.global_variables()
  with pytest.raises(ValueError) as error:
    checkpoints.check_variables(str(tmp_path / "model.ckpt-4"), variables)
  return str(error.value)


@pytest.mark.parametrize("name", ["[x]", "a*", "a?", "a\\b"])
def test_a_folder_that_tensorflow_takes_for_a_pattern_is_refused(name, tmp_path):
  with pytest.raises(ValueError, match="for a part of a pattern.* another name"):
    checkpoints.check_folder(f"{tmp_path}/{name}/model")
  with pytest.raises(ValueError, match="for a part of a pattern"):
    synthesizer_mtf.MtfModel(f"{tmp_path}/{name}", tpu=None)
  assert not os.listdir(tmp_path)


def test_a_checkpoint_in_such_a_folder_is_not_called_damaged(tmp_path):
  (tmp_path / "x").mkdir()
  checkpoint_files.save(tmp_path / "x", 3)
  os.rename(tmp_path / "x", tmp_path / "[x]")
  with pytest.raises(ValueError, match="the checkpoint is .*model.ckpt-3'.* a pattern"):
    checkpoints.latest(str(tmp_path / "[x]"))


def test_variables_of_another_model_are_named(tmp_path):
  ours = {"encoder/q": [7, 11], "encoder/k": [7, 11], "encoder/R1": [2, 3]}
  message = differences(tmp_path, checkpoint_files.SHAPES, ours)
  assert "it lacks 2 variables (encoder/R1, encoder/k)" in message
  assert "it also has 1 variable (encoder/R)" in message


def test_variables_of_another_size_are_named(tmp_path):
  ours = {**checkpoint_files.SHAPES, "encoder/R": [2, 6, 3],
          "encoder/R_slot_vr": [2, 6]}
  assert ("other shapes have 1 variable (encoder/R [2, 5, 3] instead of "
          "[2, 6, 3])") in differences(tmp_path, checkpoint_files.SHAPES, ours)


def test_only_a_few_of_many_variables_are_named(tmp_path):
  ours = {f"layer_{number}": [2] for number in range(9)}
  message = differences(tmp_path, {"layer_0": [2]}, ours)
  assert ("8 variables (layer_1, layer_2, layer_3, layer_4 and 4 more)"
          in message)


def test_a_model_without_an_optimizer_may_read_a_checkpoint_with_one(tmp_path):
  checkpoint_files.save(tmp_path, 4)
  with tf.Graph().as_default():
    for name in ("encoder/q", "encoder/R"):
      tf.get_variable(name, checkpoint_files.SHAPES[name])
    tf.train.create_global_step()
    checkpoints.check_variables(
        str(tmp_path / "model.ckpt-4"), tf.global_variables())


class Lion(optimize.Optimizer):
  """A user's optimizer, with a slot of its own."""

  def __init__(self, learning_rate):
    self._learning_rate = learning_rate

  def apply_grad(self, grad, var):
    slot = mtf.get_variable(
        var.mesh, var.name + "/lion_m", var.shape, trainable=False,
        initializer=tf.zeros_initializer())
    return [mtf.assign(slot, grad),
            mtf.assign_sub(var, grad * self._learning_rate)]


class Broken(Lion):
  """A user's optimizer that cannot make slots by itself."""

  def apply_grad(self, grad, var):
    raise RuntimeError("no data")


def check(tmp_path, optimizer, **others):
  """Checks a checkpoint that has more variables than the model."""
  saved = {"encoder/T": [2, 9], "encoder/v": [7, 3]}
  checkpoint_files.save(tmp_path, 4, shapes={**saved, **others})
  with tf.Graph().as_default():
    for name, shape in saved.items():
      tf.get_variable(name, shape)
    tf.train.create_global_step()
    checkpoints.check_variables(
        str(tmp_path / "model.ckpt-4"), tf.global_variables(), optimizer)


@pytest.mark.parametrize("optimizer", [
    None, optimize.AdafactorOptimizer, optimize.AdamWeightDecayOptimizer, Lion, Broken])
@pytest.mark.parametrize("lost", ["T_after", "v_bias", "T_bias", "v/kernel", "v_slots"])
def test_a_variable_that_begins_like_another_is_not_a_slot(lost, optimizer, tmp_path):
  with pytest.raises(ValueError, match=rf"also has 1 variable \(encoder/{lost}\)"):
    check(tmp_path, optimizer, **{f"encoder/{lost}": [3]})


@pytest.mark.parametrize("slots", [
    ["_slot_v"], ["_slot_vr", "_slot_vc", "_slot_m"], ["_momentum_v"],
    ["/adam_m", "/adam_v"]])
def test_slots_of_mesh_tensorflows_optimizers_need_no_optimizer(slots, tmp_path):
  check(tmp_path, None, **{f"encoder/T{slot}": [2] for slot in slots})


def test_a_users_optimizer_is_asked_for_its_slots(tmp_path):
  slots = {"encoder/T/lion_m": [2, 9], "encoder/v/lion_m": [7, 3]}
  check(tmp_path, Lion, **slots)
  for optimizer in (None, optimize.AdafactorOptimizer, Broken):
    with pytest.raises(ValueError, match="also has 2 variables .*; if an optimizer of "
                       "your own made these, bind it as `utils.run.optimizer`"):
      check(tmp_path, optimizer, **slots)


@pytest.mark.parametrize("name, parts", [
    ("encoder/q_slot_vr", ("encoder/q", "_slot_vr")),
    ("encoder/q_momentum_v", ("encoder/q", "_momentum_v")),
    ("encoder/q/adam_m", ("encoder/q", "/adam_m")),
    ("encoder/adam_model/q", ("encoder/adam_model/q", ""))])
def test_slots_of_the_optimizers_are_known_by_their_endings(name, parts):
  assert optimizer_slots.split(name) == parts
  assert optimizer_slots.is_slot(name) == bool(parts[1])
  assert optimizer_slots.split(name, ["other"]) == (name, "")
  assert optimizer_slots.split(name, [parts[0]]) == parts
