"""Tests of training that fails, with a model of one variable."""

import functools
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import time

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import checkpoint_files
from support import small_training
from support.small_training import SIZE
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import lock
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.model import prediction
from synthesizer_mtf.trainer.watching import best_folder
from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import failures
from synthesizer_mtf.trainer.watching import messages
from synthesizer_mtf.trainer.watching import progress
from synthesizer_mtf.trainer.watching import stopping
from t5.models import utils as t5_utils
import tensorflow.compat.v1 as tf


def input_fn(params):
  del params
  return tf.data.Dataset.from_tensors({"x": tf.ones([1])}).repeat()


@pytest.fixture
def make_estimator(tmp_path):
  """Makes estimators for `tmp_path`."""
  return functools.partial(small_training.make, str(tmp_path))


def train(estimator, steps, *hooks):
  with tf.Graph().as_default():
    estimator.train(input_fn, max_steps=steps, hooks=hooks)


def latest(tmp_path):
  """The step of the checkpoint to resume from, and its weights."""
  path = tf.train.latest_checkpoint(str(tmp_path))
  return (int(path.rpartition("-")[-1]),
          tf.train.load_variable(path, "weights")[0])


@pytest.mark.parametrize("nan_at, steps", [(4, 9), (3, 3)])  # At the end.
def test_weights_that_are_nan_are_not_saved(nan_at, steps, tmp_path, make_estimator):
  # The loss is still finite, because it was computed before the update.
  with pytest.raises(failures.TrainingStopped, match=(
      f"the variable weights is NaN or infinite after step {nan_at}.*"
      "Training continues from model.ckpt-2")):
    train(make_estimator(nan_at=nan_at), steps)
  assert latest(tmp_path) == (2, 3.)
  assert not list(tmp_path.glob(f"model.ckpt-{nan_at}*"))


def test_a_loss_that_is_nan_stops_training(tmp_path, make_estimator):
  with pytest.raises(failures.TrainingStopped,
                     match="the loss is NaN after step 4.*learning rate"):
    train(make_estimator(nan_at=3, save_steps=100), 9)
  assert latest(tmp_path) == (0, 1.)


class LimitAt(tf.train.SessionRunHook):
  """Limits files to a few bytes after some steps, which stands for a full disk."""

  def __init__(self, tmp_path, steps):
    self._folder, self._steps, self.before = tmp_path, steps, {}

  def after_run(self, run_context, run_values):
    self._steps -= 1
    if not self._steps:
      self.before = checkpoint_files.contents(self._folder)
      resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, resource.RLIM_INFINITY))


def test_a_disk_that_is_full_leaves_older_checkpoints_whole(tmp_path, make_estimator):
  disk = LimitAt(tmp_path, 3)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    with pytest.raises(failures.TrainingStopped) as error:
      train(make_estimator(), 9, disk)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
  assert str(error.value) == (
      f"model.ckpt-4 could not be written in {tmp_path}: File too large. "
      "Training continues from model.ckpt-2, once there is room and permission.")
  assert checkpoint_files.contents(tmp_path) == disk.before
  assert not list(tmp_path.glob("*temp*"))
  train(make_estimator(), 5)
  assert latest(tmp_path) == (5, 6.)


def test_a_disk_that_is_full_before_the_first_step_is_one_sentence(
    tmp_path, make_estimator, monkeypatch):
  def full(source, target, **_):
    raise tf.errors.ResourceExhaustedError(
        None, None, f"{target}; No space left on device")

  train(make_estimator(), 4)
  monkeypatch.setattr(tf.io.gfile, "copy", full)
  estimator = make_estimator()
  estimator.validation = callbacks.Callback()
  estimator.validation.around = lambda training: best_folder.copy(str(tmp_path), 4)
  with pytest.raises(failures.TrainingStopped, match=(
      "a file could not be written in .*: No space left on device. Training continues "
      "from model.ckpt-4, once there is room")):
    train(estimator, 6)


def test_errors_of_the_disk_are_explained_and_no_others(tmp_path):
  def raising(error):
    with failures.explained_writes(str(tmp_path)):
      raise error

  for reason in failures._UNWRITTEN:
    with pytest.raises(failures.TrainingStopped, match=f"{reason}.*begins at step 0"):
      raising(tf.errors.ResourceExhaustedError(
          None, None, f"{tmp_path}/graph.pbtxt.tmp; {reason}"))
    with pytest.raises(failures.TrainingStopped, match=reason):
      raising(RuntimeError(f"{tmp_path}/events.out.tfevents.1; {reason}"))
  with pytest.raises(tf.errors.PermissionDeniedError):
    raising(tf.errors.PermissionDeniedError(None, None, "a.tsv; Permission denied"))


def test_an_evaluation_without_room_for_its_events_does_not_begin(
    tmp_path, make_estimator):
  train(make_estimator(), 2)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, limits[1]))
  try:
    with pytest.raises(ValueError, match=(
        f"{tmp_path}/eval_a/.* could not be written: File too large; make room")
        ), messages.explained_files():
      make_estimator().evaluate(lambda params: pytest.fail("it reads"), 1, name="a")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert not list((tmp_path / "eval_a").iterdir())


def test_a_damaged_initial_checkpoint_is_not_taken_for_ours(tmp_path):
  checkpoint_files.save(tmp_path, 4)
  path = str(tmp_path / "model.ckpt-4")
  checkpoint_files.flip(checkpoint_files.largest_data_file(tmp_path, 4))
  with tf.Graph().as_default(), tf.Session() as session:
    restored = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=["encoder/q", "encoder/R"],
        shape_and_slices=["", ""], dtypes=[tf.float32] * 2)
    with pytest.raises(tf.errors.DataLossError), failures.explained_damage(None):
      session.run(restored)


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


# Ways to use a checkpoint.
READS = [lambda e: e.evaluate(input_fn, steps=1), lambda e: next(e.predict(input_fn))]


def test_an_error_about_another_model_names_the_variables_that_differ(
    tmp_path, make_estimator):
  train(make_estimator(), 2)
  before = checkpoint_files.contents(tmp_path)
  for use in (*READS, lambda e: e.train(input_fn, max_steps=9)):
    with tf.Graph().as_default(), pytest.raises(
        ValueError, match=r"it lacks 1 variable \(R\); it also has 1 variable "
        r"\(weights\)"):
      use(make_estimator(variable="R"))
  assert checkpoint_files.contents(tmp_path) == before


def test_a_checkpoint_is_evaluated_and_predicts_unless_it_is_torn_or_missing(
    tmp_path, make_estimator):
  for use in (*READS, lambda e: e.export_saved_model("export", None)):
    with pytest.raises(ValueError, match="`--model_dir` is .* no checkpoint"):
      use(make_estimator())
  train(make_estimator(), 3)
  older = {"checkpoint_path": str(tmp_path / "model.ckpt-2")}
  with tf.Graph().as_default():
    assert make_estimator().evaluate(input_fn, steps=1)["loss"] == 4
    assert next(make_estimator().predict(input_fn, **older))["y"] == 3
  (tmp_path / "model.ckpt-2.index").unlink()
  with pytest.raises(ValueError, match="model.ckpt-2.index is not there. The "
                     "directory holds model.ckpt-0, model.ckpt-3"):
    make_estimator().evaluate(input_fn, **older)


def test_autotune_is_off_unless_the_data_choose_it(make_estimator):
  for module in (tf.data, tf.compat.v2.data):
    for own in (None, False, True):
      def input_fn(params, module=module, own=own):
        del params
        options = tf.data.Options()
        options.deterministic = False
        if own is not None:
          options.autotune.enabled = own
        return module.Dataset.from_tensors({"x": tf.ones([1])}).with_options(options)

      options = make_estimator()._call_input_fn(
          input_fn, tf.estimator.ModeKeys.TRAIN).options()
      assert options.autotune.enabled is bool(own)
      assert options.deterministic is False


def test_the_iterators_of_mesh_and_t5_take_complete_checkpoints_that_were_asked_for(
    tmp_path):
  def taken(steps):
    paths = utils.get_checkpoint_iterator(steps, str(tmp_path))
    steps_taken = [complete.saved_step(path) for path in itertools.islice(paths, 3)]
    assert steps_taken == [*itertools.islice(
        t5_utils.get_checkpoints_iterator(steps, str(tmp_path)), 3)] or steps == "all"
    return steps_taken

  for steps in -1, 4, [4]:
    with pytest.raises(checks.Error, match="`--model_dir` is .* is no checkpoint;"):
      taken(steps)
  checkpoint_files.save(tmp_path, 0)
  with pytest.raises(checks.Error, match="only step 0 is saved, before any training"):
    taken("all")
  checkpoint_files.save(tmp_path, 4, 8, 12)
  (tmp_path / "model.ckpt-12.index").unlink()
  (tmp_path / "model.ckpt-16_temp").mkdir()
  assert taken("all") == [4, 8]
  assert [*t5_utils.get_checkpoints_iterator("all", str(tmp_path))] == [0, 4, 8]
  assert taken(4) == [4] and taken([8, 4, 8]) == [4, 8]
  for steps in 7, 12, [4, 9]:
    with pytest.raises(checks.Error, match=(
        r"`utils.run.eval_checkpoint_step` is (7|12|\[4, 9\]) but .* the steps 0, "
        "4, 8; name one of them, or -1 for the last")):
      taken(steps)
  assert taken(-1) == [8] and taken([-1, 4]) == [4, 8]


def test_a_folder_without_the_file_checkpoint_is_followed_from_its_newest(
    tmp_path, monkeypatch):
  checkpoint_files.save(tmp_path)
  (tmp_path / "checkpoint").unlink()
  steps = t5_utils.get_checkpoints_iterator(None, str(tmp_path))
  assert next(steps) == 8
  checkpoint_files.save(tmp_path, 8, 12)  # By a training; the file is there again.
  assert next(steps) == 12


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


def test_a_signal_stops_after_the_step_with_a_checkpoint(
    tmp_path, make_estimator, capfd, monkeypatch):
  def write(*args):  # To a terminal that was closed.
    raise OSError(5, "Input/output error")

  train(make_estimator(save_steps=100), 1)
  for step, number in {
      3: signal.SIGINT, 6: signal.SIGTERM, 9: signal.SIGHUP}.items():
    if number == signal.SIGHUP:
      monkeypatch.setattr(stopping.os, "write", write)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(number)
    with pytest.raises(stopping.Stopped,
                       match=f"^Stopped at step {step}; the same call co") as stop:
      train(make_estimator(save_steps=100), 12, Signal(number, before=step))
    assert stop.value.number == number
    assert latest(tmp_path) == (step, step + 1.)
    assert ("another interrupt stops at once" in capfd.readouterr().err) == (
        number != signal.SIGHUP)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(number)) == handlers


def test_a_signal_before_the_first_step_stops_at_once(tmp_path, make_estimator):
  with pytest.raises(stopping.Stopped, match="before the first step"):
    train(make_estimator(), 9, Signal(signal.SIGINT, before=0))
  assert not list(tmp_path.glob("model.ckpt*"))


class Twice(Signal):
  """Interrupts this process twice, between two of Python's steps or in one of them."""

  def __init__(self, before, in_one):
    super().__init__(signal.SIGINT, before)
    self._in_one = in_one

  def begin(self):
    self._both = tf.py_func(self._kill, [], [])

  def before_run(self, run_context):
    self._session = run_context.session
    super().before_run(run_context)

  def _send(self, step):
    if step == self._before:
      self._session.run(self._both) if self._in_one else self._kill()

  def _kill(self):
    for _ in range(2):
      os.kill(os.getpid(), self._number)
      time.sleep(.1)


@pytest.mark.parametrize("in_one", [False, True])
def test_a_second_interrupt_raises_in_a_process_of_the_users_and_ends_our_command(
    in_one, tmp_path, make_estimator, monkeypatch):
  ends = []
  monkeypatch.setattr(stopping.os, "_exit", ends.append)
  handler = signal.getsignal(signal.SIGINT)
  for ours in (False, True):
    monkeypatch.setattr(stopping, "_OURS", [ours])
    with pytest.raises(KeyboardInterrupt, match="^Stopped at once; the same " + (
        "command" if ours else "call")):
      train(make_estimator(save_steps=2), 9, Twice(4, in_one))
    assert signal.getsignal(signal.SIGINT) is handler
    assert ends == ours * [130]
    assert latest(tmp_path) == (2, 3.)  # Without a checkpoint of the last step.
  train(make_estimator(), 5)  # In the same process.
  assert latest(tmp_path) == (5, 6.)


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


def test_one_process_and_thread_at_a_time_trains_in_a_folder(tmp_path, make_estimator):
  path = tmp_path / ".lock"
  hold = [sys.executable, "-c", _HOLD, path]
  with subprocess.Popen(hold, text=True, stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE) as other:
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=(
        f"`--model_dir` is '{tmp_path}', where process 7 on another is at work")):
      train(make_estimator(), 3)
    other.kill()
  with lock.held(str(tmp_path), "--model_dir"):
    for _ in range(2):  # The first refusal leaves the lock as it is.
      with pytest.raises(ValueError, match="where this process is at work"):
        train(make_estimator(), 3)
      assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert subprocess.run(hold, input=b"", capture_output=True, check=False).returncode
  train(make_estimator(), 3)
  assert latest(tmp_path) == (3, 4.)


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
    tmp_path, make_estimator, log, monkeypatch):
  monkeypatch.setattr(progress, "_PERIOD", 0.)
  train(make_estimator(), 3)
  started = make_estimator()
  started.start_from(warm_start.WarmStart("/moved/away"))  # Too late.
  train(started, 5)
  told = [re.sub(r"[\d.e+]+ steps/s", "N steps/s", entry.getMessage())
          for entry in log.records if entry.filename == "progress.py"]
  assert told[0].endswith(f", 1,000 parameters, in {tmp_path}.")
  assert told[1] == "step 1 of 3: loss 1"
  assert re.fullmatch(r"step 2 of 3: loss 2, N steps/s, 0:\d\d:\d\d left", told[2])
  assert told[3] == "step 3 of 3: loss 3, N steps/s"
  assert told[5] == "Training continues from step 3."
  assert f"the model continues from its own {tmp_path}/model.ckpt-3." in log.text
  assert "Nothing is trained" not in log.text
  train(make_estimator(), 2)
  assert (f"Nothing is trained: {tmp_path}/model.ckpt-5 is already at step 5 of 2; to "
          "go on, raise `utils.run.train_steps`.") in log.text


def test_the_log_names_the_data_that_are_read():
  for (function, *bindings), said in [
      (["@mesh_train_dataset_fn"], " on synth_text_pairs"),
      (["@tsv_dataset_fn", "tsv_dataset_fn.filename = 'a.tsv'"],
       " on a.tsv with the vocabulary of synth_text_pairs"),
      (["@packed_parallel_tsv_dataset"], " on the data of mesh_tensorflow.transformer."
       "dataset.packed_parallel_tsv_dataset with the vocabulary of synth_text_pairs")]:
    gin.parse_config(["MIXTURE_NAME = 'synth_text_pairs'", *bindings,
                      f"utils.run.train_dataset_fn = {function}"])
    assert progress._bound_data() == said


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

    def predict(self, batch, keys):
      self.batches.append(batch["x"][..., :3].tolist())
      return super().predict(batch, keys)

  monkeypatch.setattr(prediction, "Graph", Recorder)
  return made


def test_all_checkpoints_share_a_graph_and_texts_are_sorted_by_length(
    tmp_path, make_estimator, graphs, capsys, monkeypatch):
  monkeypatch.setattr(prediction, "_UNSEEN", 0)
  train(make_estimator(), 4)
  estimator = make_estimator()
  for step in (2, 4):
    rows = [row["y"] for row in estimator.predict(
        rows_fn, checkpoint_path=str(tmp_path / f"model.ckpt-{step}"))]
    np.testing.assert_array_equal(rows, ROWS * (step + 1))
  graph, = graphs
  assert graph.batches == 2 * [
      [[4, 0, 0], [7, 0, 0]], [[5, 6, 0], [1, 2, 3]], [[8, 9, 1]]]
  assert "5/5" in capsys.readouterr().err
  estimator.texts = lambda: 4  # The last row is padding.
  assert len([*estimator.predict(rows_fn)]) == 5
  assert "4/4" in capsys.readouterr().err
  estimator.keeps_batches = lambda: True  # As in Mesh TensorFlow's beam search.
  again = [row["y"] for row in estimator.predict(rows_fn)]
  np.testing.assert_array_equal(again, rows)
  assert np.concatenate(graph.batches[-3:]).tolist() == ROWS[:, :3].tolist()
  # Another form of batches has another graph.
  assert next(estimator.predict(input_fn))["y"] == 5  # The data never end.
  assert len(graphs) == 2
  assert len([*estimator.predict(rows_fn, predict_keys=["y"])]) == 5
