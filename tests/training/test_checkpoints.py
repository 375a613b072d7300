"""Tests of the choice of the checkpoint to resume from, after crashes."""

import os
import re
import shutil

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import pytest
from support import checkpoint_files
from support import small_training
import synthesizer_mtf
from synthesizer_mtf.tools.base import trained_model
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import matching
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.checkpoints import warm_start
import tensorflow.compat.v1 as tf


def remove(model_dir, pattern):
  for path in model_dir.glob(pattern):
    path.unlink()


# Harms to a folder of the steps 4 and 8, and the step to resume from.
HARMS = {
    "none": (lambda folder: None, 8),
    "no index": (lambda folder: remove(folder, "model.ckpt-8.index"), 4),
    "nothing of the newest": (lambda folder: remove(folder, "model.ckpt-8*"), 4),
    "only the older is named": (
        lambda folder: checkpoint_files.name_in_state(folder, 4), 8),
    # On purpose: the state names both.
    "the older is named first": (
        lambda folder: checkpoint_files.name_in_state(folder, 4, 8), 4),
    "no state": (lambda folder: remove(folder, "checkpoint"), 8),
    "empty state": (lambda folder: (folder / "checkpoint").write_text(""), 8),
    "torn state": (
        lambda folder: checkpoint_files.truncate(folder / "checkpoint"), 8)}


def test_training_resumes_from_the_newest_complete_checkpoint(tmp_path):
  for name, (harm, step) in HARMS.items():
    folder = tmp_path / name
    folder.mkdir()
    checkpoint_files.save(folder)
    harm(folder)
    before = checkpoint_files.contents(folder)
    expected = str(folder / f"model.ckpt-{step}")
    assert branches.prepare(str(folder)) == expected, name
    # The estimator resumes from this checkpoint.
    assert tf.train.latest_checkpoint(str(folder)) == expected
    assert checkpoint_files.contents(folder) == before


def test_a_checkpoint_named_in_another_directory_stays(tmp_path):
  other = tmp_path / "other"
  other.mkdir()
  checkpoint_files.save(other, 3)
  path = other / "model.ckpt-3"
  (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n')
  assert branches.prepare(str(tmp_path)) == str(path)


def test_a_copied_folder_has_the_checkpoints_that_are_in_it(tmp_path):
  """Whoever reads it; `checkpoint` was lost, or names another place, also one that is.

  Where the file names the older checkpoint, and lists both, the user has gone back.
  """
  origin, copy = tmp_path / "origin", tmp_path / "copy"
  origin.mkdir()
  checkpoint_files.save(origin)
  for place, steps, step in [
      (None, [], 8), ("/other/machine", [8, 4], 8), ("/other/machine", [12, 4], 8),
      (origin, [8, 4], 8), (origin, [4, 8], 4)]:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(origin, copy)
    (copy / "checkpoint").unlink()
    if place:
      lines = [f'all_model_checkpoint_paths: "{place}/model.ckpt-{step}"'
               for step in steps]
      (copy / "checkpoint").write_text("\n".join([lines[0][len("all_"):].replace(
          "paths", "path"), *lines]) + "\n")
    expected = str(copy / f"model.ckpt-{step}")
    assert complete.chosen(str(copy)) == expected
    assert complete.at_steps(str(copy), [-1], "steps") == [expected]
    assert trained_model.find_checkpoint(str(copy), None) == expected
    assert warm_start.find_checkpoint(str(copy)) == expected
    assert small_training.make(str(copy)).latest_checkpoint() == expected
    # TensorFlow, which trains, reads the file as it stands then.
    assert branches.prepare(str(copy)) == expected
    assert tf.train.latest_checkpoint(str(copy)) == expected


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path):
  with pytest.raises(ValueError, match="`it` is '.*', where there is no checkpoint"):
    complete.at_steps(str(tmp_path), [4], "`steps`", "it")
  checkpoint_files.save(tmp_path, 4)
  with pytest.raises(ValueError, match=r"`steps` is \[4, 5\] but .* the step 4; name"):
    complete.at_steps(str(tmp_path), [4, 5], "`steps`")
  checkpoint_files.save(tmp_path, *range(1, 20))
  with pytest.raises(ValueError, match=r" 5, 6, \.\.\., 14, 15, 16, 17, 18, 19;"):
    complete.at_steps(str(tmp_path), [0], "`steps`")


def test_an_empty_directory_begins_at_step_0_unless_a_checkpoint_is_named(tmp_path):
  assert branches.branch(str(tmp_path)) == []
  model_folder.check_folder(str(tmp_path / "new"))
  assert branches.prepare(str(tmp_path / "new")) is None
  checkpoint_files.name_in_state(tmp_path, 8)
  with pytest.raises(ValueError, match="model.ckpt-8, which is not there"):
    branches.prepare(str(tmp_path))


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
    branches.prepare(str(tmp_path))
  assert "move model.ckpt-8.* away to continue from model.ckpt-4" in str(
      error.value)
  assert checkpoint_files.contents(tmp_path) == before
  remove(tmp_path, "model.ckpt-8*")  # As the message advises.
  assert branches.prepare(str(tmp_path)).endswith("model.ckpt-4")


def test_the_message_about_a_damaged_checkpoint_names_a_whole_best_one(tmp_path):
  best = tmp_path / "best"
  best.mkdir()
  for folder, step in ((tmp_path, 8), (best, 6)):
    checkpoint_files.save(folder, step)
  checkpoint_files.truncate(checkpoint_files.largest_data_file(tmp_path, 8))
  advice = "or, with best/model.ckpt-6.* copied here, to continue from model.ckpt-6"
  with pytest.raises(ValueError, match="is damaged|bytes, of") as error:
    complete.latest(str(tmp_path))
  assert advice in str(error.value)
  remove(tmp_path, "model.ckpt-8*")
  with pytest.raises(ValueError, match="which is not there") as error:
    complete.latest(str(tmp_path))
  assert advice in str(error.value)
  for path in best.glob("model.ckpt-6.*"):  # As the message advises.
    shutil.copy(path, tmp_path)
  assert branches.prepare(str(tmp_path)).endswith("/model.ckpt-6")
  checkpoint_files.truncate(checkpoint_files.largest_data_file(best, 6))
  checkpoint_files.truncate(checkpoint_files.largest_data_file(tmp_path, 6))
  with pytest.raises(ValueError, match="begin at step 0. Nothing was changed"):
    complete.latest(str(tmp_path))


def steps(paths):
  return [complete.saved_step(path) for path in paths]


@pytest.mark.parametrize("keeps_all", [False, True])
def test_checkpoints_that_were_left_did_not_lead_to_the_last(tmp_path, keeps_all):
  folder = str(tmp_path)
  saved = [2, 4, 6, 8]

  def name(step):
    # TensorFlow lists only the last of the checkpoints if it keeps them all.
    checkpoint_files.name_in_state(tmp_path, step, *([8] if keeps_all else saved))

  def go_to(step):
    name(step)
    branches.prepare(folder)

  def save(step):
    branches.will_save(folder, step)
    saved.append(step)
    checkpoint_files.save(tmp_path, step)
    name(step)

  checkpoint_files.save(tmp_path, *saved)
  assert steps(branches.branch(folder)) == [2, 4, 6, 8]
  name(2)
  assert steps(branches.branch(folder)) == [2]
  go_to(2)
  for step, led in ((2, [2]), (3, [2, 3]), (5, [2, 3, 5]), (6, [2, 3, 5, 6])):
    save(step)  # Step 4 was left, and step 6 has its own place.
    assert steps(branches.branch(folder)) == led
  branches.prepare(folder)  # A restart changes nothing.
  assert steps(branches.branch(folder)) == [2, 3, 5, 6]
  go_to(3)
  save(7)
  assert steps(branches.branch(folder)) == [2, 3, 7]
  go_to(8)  # It goes forth again.
  assert steps(branches.branch(folder))[-1] == 8


def test_without_a_list_every_checkpoint_led_to_the_last_by_their_numbers(tmp_path):
  checkpoint_files.save(tmp_path, 8, 10)
  remove(tmp_path, "checkpoint")
  assert complete.latest(str(tmp_path)).endswith("model.ckpt-10")
  assert steps(branches.branch(str(tmp_path))) == [8, 10]
  (tmp_path / "left_checkpoints.json").write_text("[")
  with pytest.raises(ValueError, match="cannot be read .* every checkpoint counts"):
    branches.branch(str(tmp_path))


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path):
  checkpoint_files.save(tmp_path)
  (tmp_path / "model.ckpt-12_temp").mkdir()
  leftovers = [
      tmp_path / "model.ckpt-12_temp" / "part-00000-of-00001.index",
      tmp_path / f"model.ckpt-8.meta.tmp{'0a' * 16}",
      tmp_path / f"checkpoint.tmp{'1b' * 16}",
      tmp_path / "checkpoint.unfinished", tmp_path / "validation.json.unfinished",
      tmp_path / "model.ckpt-12.index.tempstate123"]
  others = [tmp_path / "model.ckpt-12.data-00000-of-00001",
            tmp_path / "notes_temp", tmp_path / "notes.tmp",
            tmp_path / "mine.unfinished"]
  for path in leftovers + others:
    path.write_text("half")
  branches.prepare(str(tmp_path))
  assert not any(path.exists() for path in leftovers)
  assert not (tmp_path / "model.ckpt-12_temp").exists()
  assert all(path.exists() for path in others)
  assert len(complete.find(str(tmp_path))) == 2


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
  assert branches.prepare(folder) == newest
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
    branches.prepare(str(tmp_path))
  with pytest.raises(ValueError, match="`--model_dir` is .* cannot be made"):
    model_folder.check_folder(str(tmp_path / "new"))
  model_folder.check_folder(str(tmp_path))  # Evaluation needs only to read.


def test_a_folder_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path):
  for name in ("[x]", "a*", "a?", "a\\b"):
    with pytest.raises(ValueError, match="for a part of a pattern.* another name"):
      model_folder.check_folder(f"{tmp_path}/{name}/model")
    with pytest.raises(ValueError, match="for a part of a pattern"):
      synthesizer_mtf.MtfModel(f"{tmp_path}/{name}", tpu=None)
  assert not os.listdir(tmp_path)
  (tmp_path / "x").mkdir()
  checkpoint_files.save(tmp_path / "x", 3)
  os.rename(tmp_path / "x", tmp_path / "[x]")
  with pytest.raises(ValueError, match="the checkpoint is .*model.ckpt-3'.* a pattern"):
    complete.latest(str(tmp_path / "[x]"))  # It is not called damaged.


def check(folder, saved, ours, optimizer=None, dtypes=None):
  """Checks a checkpoint of the step and other variables against a model."""
  checkpoint_files.save(folder, 4, shapes=saved)
  with tf.Graph().as_default():
    tf.train.create_global_step()
    for name, shape in ours.items():
      tf.get_variable(name, shape, (dtypes or {}).get(name, tf.float32))
    matching.check_variables(
        str(folder / "model.ckpt-4"), tf.global_variables(), optimizer)


SHAPES = checkpoint_files.SHAPES
WEIGHTS = {name: SHAPES[name] for name in ("encoder/q", "encoder/R")}


def test_a_model_without_an_optimizer_may_read_a_checkpoint_with_one(tmp_path):
  check(tmp_path, SHAPES, WEIGHTS)


@pytest.mark.parametrize("saved, ours, dtypes, said", [
    (SHAPES, {**SHAPES, "encoder/R": [2, 6, 3], "encoder/R_slot_vr": [2, 6]}, {},
     "other shapes have 1 variable (encoder/R [2, 5, 3] instead of [2, 6, 3])"),
    ({"layer_0": [2]}, {f"layer_{number}": [2] for number in range(9)}, {},
     "8 variables (layer_1, layer_2, layer_3, layer_4 and 4 more)"),
    (SHAPES, WEIGHTS, {"encoder/q": tf.bfloat16},
     "model.ckpt-4 holds float32, but the model has bfloat16 in 1 variable "
     "(encoder/q); bind `get_variable_dtype.master_dtype` as in the training of the "
     "checkpoint, or start a model of another folder from it, by `warm_start.check")])
def test_variables_of_another_size_or_dtype_and_a_few_of_many_are_named(
    saved, ours, dtypes, said, tmp_path):
  with pytest.raises(ValueError, match=re.escape(said)):
    check(tmp_path, saved, ours, dtypes=dtypes)


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


OURS = {"encoder/T": [2, 9], "encoder/v": [7, 3]}


@pytest.mark.parametrize("optimizer", [
    None, optimize.AdafactorOptimizer, optimize.AdamWeightDecayOptimizer, Lion, Broken])
def test_a_variable_that_begins_like_another_is_not_a_slot(optimizer, tmp_path):
  lost = {f"encoder/{name}": [3]
          for name in ("T_after", "T_bias", "v/kernel", "v_bias", "v_slots")}
  with pytest.raises(ValueError, match=r"also has 5 variables \(encoder/T_after, "):
    check(tmp_path, {**OURS, **lost}, OURS, optimizer)


def test_slots_of_mesh_tensorflows_optimizers_need_no_optimizer(tmp_path):
  slots = ("T_slot_v", "v_slot_vr", "v_slot_vc", "v_slot_m", "T_momentum_v", "T/adam_m",
           "T/adam_v")
  check(tmp_path, {**OURS, **{f"encoder/{slot}": [2] for slot in slots}}, OURS)


def test_a_users_optimizer_is_asked_for_its_slots(tmp_path):
  saved = {**OURS, **{f"{name}/lion_m": shape for name, shape in OURS.items()}}
  check(tmp_path, saved, OURS, Lion)
  for optimizer in (None, optimize.AdafactorOptimizer, Broken):
    with pytest.raises(ValueError, match="also has 2 variables .*; if an optimizer of "
                       "your own made these, bind it as `utils.run.optimizer`"):
      check(tmp_path, saved, OURS, optimizer)
