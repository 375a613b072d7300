"""Tests of training that fails, with an estimator like Mesh TensorFlow's.

Its model is one variable; hooks, saver and session are those of Mesh.
"""

import logging
import os
import re
import resource
import signal
import subprocess
import sys

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import checkpoint_files
from synthesizer_mtf.training import estimators
from synthesizer_mtf.training import guards
from synthesizer_mtf.training import lock
from synthesizer_mtf.training import prediction
from synthesizer_mtf.training import progress
from synthesizer_mtf.training import stopping
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_config
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

SIZE = 1000


def make_model_fn(model_dir, nan_at, save_steps, variable):
  """A model whose weights become NaN in the step `nan_at`."""

  def model_fn(features, labels, mode, params):
    del labels, params
    weights = tf.get_variable(
        variable, [SIZE], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(weights * features["x"])
    if mode == "infer":
      return tpu_estimator.TPUEstimatorSpec(
          mode, predictions={"y": weights[:1] * features["x"]})
    if mode == "eval":
      return tpu_estimator.TPUEstimatorSpec(mode, loss=loss)
    step = tf.train.get_global_step()
    with tf.control_dependencies([loss]):
      broken = tf.equal(step + 1, nan_at)
      update = weights.assign(weights + tf.where(broken, np.nan, 1.))
      with tf.control_dependencies([update]):
        train_op = tf.assign_add(step, 1)
    saver = tf.train.Saver(sharded=True, save_relative_paths=True)
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=tf.group(train_op), training_chief_hooks=[
            tf.train.CheckpointSaverHook(
                model_dir, save_steps=save_steps, saver=saver)])

  return model_fn


def input_fn(params):
  del params
  return tf.data.Dataset.from_tensors({"x": tf.ones([1])}).repeat()


@pytest.fixture
def make_estimator(tmp_path):
  """Makes estimators for `tmp_path`."""

  def make(nan_at=-1, save_steps=2, variable="weights"):
    return estimators.CarefulEstimator(
        make_model_fn(str(tmp_path), nan_at, save_steps, variable),
        config=tpu_config.RunConfig(model_dir=str(tmp_path)),
        use_tpu=False, train_batch_size=1, eval_batch_size=1,
        predict_batch_size=1, params={}, export_to_tpu=False)

  return make


def train(estimator, steps):
  with tf.Graph().as_default():
    estimator.train(input_fn, max_steps=steps)


def latest(tmp_path):
  """The step of the checkpoint to resume from, and its weights."""
  path = tf.train.latest_checkpoint(str(tmp_path))
  return (int(path.rpartition("-")[-1]),
          tf.train.load_variable(path, "weights")[0])


def stopped(estimator, steps):
  """Trains until it stops; returns the sentence that a user gets."""
  with pytest.raises(guards.TrainingStopped) as error:
    train(estimator, steps)
  return str(error.value)


@pytest.mark.parametrize("nan_at, steps", [(4, 9), (3, 3)])  # At the end.
def test_weights_that_are_nan_are_not_saved(nan_at, steps, tmp_path, make_estimator):
  # The loss is still finite, because it was computed before the update.
  message = stopped(make_estimator(nan_at=nan_at), steps)
  assert f"the variable weights is NaN or infinite after step {nan_at}" in message
  assert "Training continues from model.ckpt-2" in message
  assert latest(tmp_path) == (2, 3.)
  assert not list(tmp_path.glob(f"model.ckpt-{nan_at}*"))


def test_a_loss_that_is_nan_stops_training(tmp_path, make_estimator):
  message = stopped(make_estimator(nan_at=3, save_steps=100), 9)
  assert "the loss is NaN after step 4" in message
  assert "learning rate" in message
  assert latest(tmp_path) == (0, 1.)


@pytest.fixture
def small_files():
  """Limits files to a few bytes, which stands for a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

  def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

  yield limit
  limit(before[0])
  signal.signal(signal.SIGXFSZ, handler)


class LimitAt(tf.train.SessionRunHook):
  """Fills the disk after some steps."""

  def __init__(self, limit, steps):
    self._limit, self._steps = limit, steps

  def after_run(self, run_context, run_values):
    self._steps -= 1
    if not self._steps:
      self._limit(SIZE)


def test_a_disk_that_is_full_leaves_older_checkpoints_whole(
    tmp_path, make_estimator, small_files):
  estimator = make_estimator()
  before = {}

  def fill(size):
    before.update(checkpoint_files.contents(tmp_path))
    small_files(size)

  with tf.Graph().as_default(), pytest.raises(
      guards.TrainingStopped) as error:
    estimator.train(input_fn, max_steps=9, hooks=[LimitAt(fill, 3)])
  small_files(resource.RLIM_INFINITY)
  assert str(error.value) == (
      f"model.ckpt-4 could not be written in {tmp_path}: File too large. "
      "Training continues from model.ckpt-2, once there is room and permission.")
  assert checkpoint_files.contents(tmp_path) == before
  assert not list(tmp_path.glob("*temp*"))
  train(make_estimator(), 5)
  assert latest(tmp_path) == (5, 6.)


@pytest.mark.parametrize("reason", guards._UNWRITTEN)
def test_an_error_of_the_disk_is_explained(tmp_path, reason):
  error = tf.errors.ResourceExhaustedError(
      None, None, f"{tmp_path}/graph.pbtxt.tmp; {reason}")
  with pytest.raises(guards.TrainingStopped, match=reason) as stop:
    with guards.explained_writes(str(tmp_path)):
      raise error
  assert "begins at step 0" in str(stop.value)


def test_a_damaged_initial_checkpoint_is_not_taken_for_ours(tmp_path):
  checkpoint_files.save(tmp_path, 4)
  path = str(tmp_path / "model.ckpt-4")
  checkpoint_files.flip(checkpoint_files.largest_data_file(tmp_path, 4))
  with tf.Graph().as_default(), tf.Session() as session:
    restored = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=["encoder/q", "encoder/R"],
        shape_and_slices=["", ""], dtypes=[tf.float32] * 2)
    with pytest.raises(tf.errors.DataLossError), guards.explained_damage(None):
      session.run(restored)


def test_other_errors_are_not_taken_for_one_of_the_disk(tmp_path):
  error = tf.errors.PermissionDeniedError(
      None, None, "a.tsv; Permission denied")
  with pytest.raises(tf.errors.PermissionDeniedError):
    with guards.explained_writes(str(tmp_path)):
      raise error


def test_a_changed_byte_is_an_error_that_changes_nothing(
    tmp_path, make_estimator):
  train(make_estimator(), 4)
  checkpoint_files.flip(checkpoint_files.largest_data_file(tmp_path, 4))
  before = checkpoint_files.contents(tmp_path)
  with pytest.raises(ValueError, match="variable weights in .* is damaged; .*"
                     "move model.ckpt-4.* away to continue from model.ckpt-2"):
    train(make_estimator(), 6)
  with tf.Graph().as_default(), pytest.raises(ValueError, match="is damaged"):
    make_estimator().evaluate(input_fn, steps=1)
  assert checkpoint_files.contents(tmp_path) == before


@pytest.mark.parametrize("use", [
    lambda e: e.train(input_fn, max_steps=9),
    lambda e: e.evaluate(input_fn, steps=1),
    lambda e: next(e.predict(input_fn))])
def test_an_error_about_another_model_names_the_variables_that_differ(
    tmp_path, make_estimator, use):
  train(make_estimator(), 2)
  before = checkpoint_files.contents(tmp_path)
  with tf.Graph().as_default(), pytest.raises(
      ValueError, match=r"it lacks 1 variable \(R\); it also has 1 variable "
      r"\(weights\)"):
    use(make_estimator(variable="R"))
  assert checkpoint_files.contents(tmp_path) == before


def test_evaluation_and_prediction_read_a_checkpoint(tmp_path, make_estimator):
  train(make_estimator(), 3)
  with tf.Graph().as_default():
    assert make_estimator().evaluate(input_fn, steps=1)["loss"] == 4
    path = str(tmp_path / "model.ckpt-2")
    assert next(make_estimator().predict(
        input_fn, checkpoint_path=path))["y"] == 3


@pytest.mark.parametrize("module", [tf.data, tf.compat.v2.data])
@pytest.mark.parametrize("own, used", [(None, False), (False, False), (True, True)])
def test_autotune_is_off_unless_the_data_choose_it(
    make_estimator, module, own, used):
  def with_own_choice(params):
    del params
    options = tf.data.Options()
    if own is not None:
      options.autotune.enabled = own
    options.deterministic = False
    return module.Dataset.from_tensors({"x": tf.ones([1])}).with_options(options)

  options = make_estimator()._call_input_fn(
      with_own_choice, tf.estimator.ModeKeys.TRAIN).options()
  assert options.autotune.enabled is used
  assert options.deterministic is False


@pytest.mark.parametrize("use", [
    lambda e: e.evaluate(input_fn, steps=1),
    lambda e: next(e.predict(input_fn)),
    lambda e: e.export_saved_model("export", None)])
def test_nothing_is_evaluated_without_a_checkpoint(make_estimator, use):
  with pytest.raises(ValueError, match="`--model_dir` is .* no checkpoint"):
    use(make_estimator())


def test_a_torn_checkpoint_is_not_evaluated(tmp_path, make_estimator):
  train(make_estimator(), 3)
  (tmp_path / "model.ckpt-2.index").unlink()
  with pytest.raises(ValueError, match="model.ckpt-2.index is not there. The "
                     "directory holds model.ckpt-0, model.ckpt-3"):
    make_estimator().evaluate(
        input_fn, checkpoint_path=str(tmp_path / "model.ckpt-2"))


def test_torn_checkpoints_are_not_among_all_checkpoints(tmp_path):
  checkpoint_files.save(tmp_path, 4, 8)
  (tmp_path / "model.ckpt-8.index").unlink()
  (tmp_path / "model.ckpt-12_temp").mkdir()
  assert list(utils.get_checkpoint_iterator("all", str(tmp_path))) == [
      str(tmp_path / "model.ckpt-4")]


@pytest.mark.parametrize("steps, told", [(4, []), (7, [7]), ([4, 9], [9])])
def test_a_step_without_a_checkpoint_gets_the_nearest_and_says_so(
    steps, told, tmp_path, monkeypatch):
  checkpoint_files.save(tmp_path, 4, 8)
  lines = []
  monkeypatch.setattr(estimators.logging, "warning", lambda *args: lines.append(args))
  list(utils.get_checkpoint_iterator(steps, str(tmp_path)))
  assert [(step, path) for _, step, path in lines] == [
      (step, str(tmp_path / "model.ckpt-8")) for step in told]


def test_asking_for_the_last_checkpoint_is_an_error_if_there_is_none(tmp_path):
  with pytest.raises(ValueError, match="`--model_dir` is .* no checkpoint"):
    list(utils.get_checkpoint_iterator(-1, str(tmp_path)))


class Signal(tf.train.SessionRunHook):
  """Sends a signal to this process before a step, or before the session."""

  def __init__(self, number, before):
    self._number, self._before = number, before

  def begin(self):
    self._send(0)

  def before_run(self, run_context):
    self._send(self._before and 1 + run_context.session.run(
        tf.train.get_global_step()))

  def _send(self, step):
    if step == self._before:
      os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_after_the_step_with_a_checkpoint(
    number, tmp_path, make_estimator, capfd):
  handlers = signal.getsignal(signal.SIGINT), signal.getsignal(number)
  with tf.Graph().as_default(), pytest.raises(
      stopping.Stopped, match="^Stopped at step 3; the same command") as stop:
    make_estimator(save_steps=100).train(
        input_fn, [Signal(number, before=3)], max_steps=9)
  assert stop.value.number == number
  assert latest(tmp_path) == (3, 4.)
  assert "Ctrl-C again stops at once" in capfd.readouterr().err
  assert (signal.getsignal(signal.SIGINT), signal.getsignal(number)) == handlers
  train(make_estimator(), 5)
  assert latest(tmp_path) == (5, 6.)


def test_a_closed_terminal_does_not_hinder_the_checkpoint(
    tmp_path, make_estimator, monkeypatch):
  def write(*args):
    raise OSError(5, "Input/output error")

  monkeypatch.setattr(stopping.os, "write", write)
  with tf.Graph().as_default(), pytest.raises(stopping.Stopped, match="at step 3"):
    make_estimator(save_steps=100).train(
        input_fn, [Signal(signal.SIGHUP, before=3)], max_steps=9)
  assert latest(tmp_path) == (3, 4.)


def test_a_signal_before_the_first_step_stops_at_once(tmp_path, make_estimator):
  with tf.Graph().as_default(), pytest.raises(
      stopping.Stopped, match="before the first step"):
    make_estimator().train(
        input_fn, [Signal(signal.SIGINT, before=0)], max_steps=9)
  assert not list(tmp_path.glob("model.ckpt*"))


# Python alone, which starts faster than our packages.
_HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
  file.write("process 7 on another")
  file.flush()
  fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  print("held", flush=True)
  sys.stdin.read()
"""


def test_one_process_at_a_time_trains_in_a_folder(tmp_path, make_estimator):
  path = tmp_path / ".lock"
  with subprocess.Popen([sys.executable, "-c", _HOLD, path], text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=(
        f"`--model_dir` is '{tmp_path}', where process 7 on another is at work")):
      train(make_estimator(), 3)
    other.kill()
  train(make_estimator(), 3)
  assert latest(tmp_path) == (3, 4.)
  assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_one_thread_at_a_time_trains_in_a_folder(tmp_path, make_estimator):
  path = tmp_path / ".lock"
  with lock.held(str(tmp_path), "--model_dir"):
    for _ in range(2):  # The first refusal leaves the lock as it is.
      with pytest.raises(ValueError, match="where this process is at work"):
        train(make_estimator(), 3)
      path.read_bytes()  # As a copy of the folder does.
    assert subprocess.run([sys.executable, "-c", _HOLD, path], input=b"",
                          capture_output=True, check=False).returncode
  train(make_estimator(), 3)


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(lock.logging, "warning",
                      lambda text, *args: said.append(text % args))
  def fail(*args):
    raise OSError(95, "Operation not supported")
  monkeypatch.setattr(lock.fcntl, "flock", fail)
  assert lock.acquire(str(tmp_path), "--model_dir") is None
  assert lock.acquire("gs://bucket/model", "--model_dir") is None
  assert "cannot be locked (Operation not supported)" in said[0] and len(said) == 2


def test_a_training_logs_its_folder_loss_speed_and_end(
    tmp_path, make_estimator, caplog, monkeypatch):
  monkeypatch.setattr(progress, "_PERIOD", 0.)
  with caplog.at_level(logging.INFO, logger="absl"):
    train(make_estimator(), 3)
    train(make_estimator(), 5)
  told = [re.sub(r"[\d.e+]+ steps/s", "N steps/s", each.getMessage())
          for each in caplog.records if each.filename == "progress.py"]
  assert told[0].endswith(f", 1,000 parameters, in {tmp_path}.")
  assert told[1] == "step 1 of 3: loss 1"
  assert re.fullmatch(r"step 2 of 3: loss 2, N steps/s, 0:\d\d:\d\d left", told[2])
  assert told[3] == "step 3 of 3: loss 3, N steps/s"
  assert told[5] == "Training continues from step 3."


@pytest.mark.parametrize("bindings, said", [
    (["@mesh_train_dataset_fn"], " on synth_text_pairs"),
    (["@tsv_dataset_fn", "tsv_dataset_fn.filename = 'a.tsv'"],
     " on a.tsv with the vocabulary of synth_text_pairs"),
    (["@packed_parallel_tsv_dataset"],
     " on the data of mesh_tensorflow.transformer.dataset.packed_parallel_tsv_dataset "
     "with the vocabulary of synth_text_pairs")])
def test_the_log_names_the_data_that_are_read(bindings, said):
  function, *bindings = bindings
  gin.parse_config([
      "MIXTURE_NAME = 'synth_text_pairs'", *bindings,
      f"utils.run.train_dataset_fn = {function}"])
  assert progress._data() == said


ROWS = np.pad(np.float32([[1, 2, 3], [4, 0, 0], [5, 6, 0], [7, 0, 0], [8, 9, 1]]),
              ((0, 0), (0, SIZE - 3)))


def rows_fn(params):
  """Rows of one to three numbers, two in a batch, the last one alone."""
  del params
  return tf.data.Dataset.from_tensor_slices({"x": ROWS}).batch(2)


@pytest.fixture
def graphs(monkeypatch):
  """The graphs that predict; each with `.batches`, those that it was given."""
  made = []

  class Recorder(prediction.Graph):

    def __init__(self, *args):
      super().__init__(*args)
      self.batches = []
      made.append(self)

    def run(self, batch, keys):
      self.batches.append(batch["x"][..., :3].tolist())
      return super().run(batch, keys)

  monkeypatch.setattr(prediction, "Graph", Recorder)
  return made


def test_all_checkpoints_share_a_graph_and_texts_are_sorted_by_length(
    tmp_path, make_estimator, graphs, capsys):
  train(make_estimator(), 4)
  estimator = make_estimator()
  for step in (2, 4):
    found = [row["y"] for row in estimator.predict(
        rows_fn, checkpoint_path=str(tmp_path / f"model.ckpt-{step}"))]
    np.testing.assert_array_equal(found, ROWS * (step + 1))
  graph, = graphs
  assert graph.batches == 2 * [
      [[4, 0, 0], [7, 0, 0]], [[5, 6, 0], [1, 2, 3]], [[8, 9, 1]]]
  assert "5/5" in capsys.readouterr().err


def test_another_form_of_batches_has_another_graph(make_estimator, graphs):
  train(make_estimator(), 2)
  estimator = make_estimator()
  assert len([*estimator.predict(rows_fn)]) == 5
  first = next(estimator.predict(input_fn))  # The data never end.
  assert first["y"] == 3 and len(graphs) == 2
  assert len([*estimator.predict(rows_fn, predict_keys=["y"])]) == 5


def test_a_training_whose_end_is_reached_says_so(tmp_path, make_estimator, caplog):
  train(make_estimator(), 3)
  assert "Nothing is trained" not in caplog.text
  train(make_estimator(), 2)
  assert (f"{tmp_path}/model.ckpt-3 has reached step 3, and the training is to end at "
          "step 2; to go on, raise `utils.run.train_steps`") in caplog.text
