"""One job over two real processes on loopback."""

import json
import os
import pathlib
import pydoc_data.topics
import re
import shutil
import time
import types

import numpy as np
import pytest
from support.ports import two_tasks
from support.processes import LIMIT
from support.processes import Process
import tensorflow.compat.v1 as tf

FOUR_DEVICES = [f"/job:{job}/task:0/cpu:{i}" for job in ("chief", "worker")
                for i in (0, 1)]


class Processes:
  """Runs the launcher with a tiny R+V model, as one process or as two."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    lines = pydoc_data.topics.topics["naming"].splitlines()
    (folder / "text.txt").write_text("\n".join(l for l in lines if l.strip()))
    self._bindings = [
        "MIXTURE_NAME = 'synth_text_span_corruption'",
        f"synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
        f"'{vocabulary}'",
        f"synthesizer_mtf.tasks.text.train = '{folder}/text.txt'",
        "d_model = 16", "d_ff = 24", "num_heads = 2", "d_kv = 6",
        "num_layers = 1", "dropout_rate = 0.0", "utils.run.batch_size = 4",
        "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
        "utils.run.save_checkpoints_steps = 1",
        "mesh_train_dataset_fn.shuffle = False",
        "utils.get_variable_dtype.master_dtype = 'float32'"]
    self._started = []

  def start(self, model_dir, task, gin_file, bindings):
    """Starts one process; its output goes to MODEL_DIR.TASK.log."""
    files = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
             "learning_rate_schedules/constant_0_001.gin", gin_file]
    words = [f"--model_dir={model_dir}", "--verbosity=1"]
    words += [f"--gin_file={name}" for name in files]
    words += [f"--gin_param={b}" for b in [*self._bindings, *bindings]]
    variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    name = "alone"
    if task:
      name = task[0].job
      variables["TF_CONFIG"] = json.dumps({
          "cluster": {t.job: [t.address] for t in task[1]},
          "task": {"type": name, "index": 0}})
    log = pathlib.Path(f"{model_dir}.{name}.log")
    process = Process(words, self.folder, variables, log, log)
    process.log = log
    self._started.append(process)
    return process

  def start_two(self, model_dir, *bindings):
    """Starts a chief and a worker; returns them and their tasks."""
    tasks = two_tasks()
    processes = [self.start(model_dir, (t, tasks), "cluster.gin", bindings)
                 for t in tasks]
    return processes, tasks

  def end(self):
    for process in self._started:
      process.kill()


@pytest.fixture(scope="module")
def processes(tmp_path_factory, sentencepiece_model):
  run = Processes(tmp_path_factory.mktemp("cluster"), sentencepiece_model)
  yield run
  run.end()


@pytest.fixture(scope="module")
def alone(processes):
  """One process that trains for 3 steps; it saves before and after them."""
  process = processes.start(processes.folder / "one", None, "cpu.gin",
                            ["utils.run.train_steps = 3"])
  assert process.wait() == 0, process.log.read_text()[-3000:]
  return processes.folder / "one", losses(process)


@pytest.fixture(scope="module")
def killed(processes, alone):
  """Two processes from the same variables, whose worker gets killed."""
  model_dir = processes.folder / "two"
  model_dir.mkdir()
  for path in alone[0].glob("model.ckpt-0.*"):
    shutil.copy(path, model_dir)
  (model_dir / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
  (chief, worker), tasks = processes.start_two(
      model_dir, "utils.run.train_steps = 1000000",
      "utils.run.mesh_shape = 'model:2,batch:2'",
      f"utils.run.mesh_devices = {FOUR_DEVICES}",
      "Cluster.timeout_seconds = 15")
  wait_for_line(chief, r"(?s)(tf_loss\[.*){5}")  # The log omits some numbers.
  worker.kill()
  chief.wait()
  return types.SimpleNamespace(  # Read before another job writes to the same log.
      model_dir=model_dir, chief=chief, tasks=tasks, losses=losses(chief),
      last_line=chief.log.read_text().strip().splitlines()[-1])


def wait_for_line(process, pattern):
  deadline = time.monotonic() + LIMIT
  while not re.search(pattern, process.log.read_text()):
    text = process.log.read_text()[-3000:]
    assert process.poll() is None, text
    assert time.monotonic() < deadline, text
    time.sleep(0.1)


def losses(process):
  """The losses of all steps, as Mesh TensorFlow prints them.

  The printed step numbers are unreliable, because Mesh prints them while they change.
  """
  found = re.findall(r"tf_loss\[([^]]+)\]\[\d+\]", process.log.read_text())
  return list(map(float, found))


def test_two_processes_have_the_losses_of_one(alone, killed):
  expected, found = alone[1], killed.losses
  assert len(expected) == 3
  np.testing.assert_allclose(found[:3], expected, atol=1e-4)
  assert found[2] != found[0]


def test_two_processes_have_the_gradients_of_one(alone, killed):
  """Adafactor keeps the mean squares of the gradients in its slots.

  The variables themselves cannot be compared. If a gradient is zero except for
  rounding, as for a query that sees one key, Adafactor scales up the rounding. The
  slots are compared after one step, before this affects the gradients.
  """
  expected, found = (tf.train.load_checkpoint(str(folder / "model.ckpt-1"))
                     for folder in (alone[0], killed.model_dir))
  names = expected.get_variable_to_shape_map()
  assert names == found.get_variable_to_shape_map()
  slots = [name for name in names if "_slot_v" in name]
  assert len(slots) > 20
  for name in slots:
    value = expected.get_tensor(name)
    assert value.max() > 0
    np.testing.assert_allclose(
        found.get_tensor(name), value, atol=0.05 * value.max(), err_msg=name)


def test_a_killed_worker_ends_the_chief_with_one_sentence(killed):
  assert killed.chief.returncode == 1
  assert killed.last_line == (
      f"synthesizer_mesh_transformer: the {killed.tasks[1]} has not answered "
      "for 15 seconds (`Cluster.timeout_seconds`): start all processes again, "
      "and training continues from the newest checkpoint.")


def test_the_job_resumes_from_its_checkpoint_and_all_end(processes, killed):
  saved = int(tf.train.latest_checkpoint(str(killed.model_dir)).split("-")[-1])
  assert saved >= 3
  both, _ = processes.start_two(
      killed.model_dir, f"utils.run.train_steps = {saved + 2}",
      "utils.run.mesh_shape = 'model:2'")
  codes = [p.wait() for p in both]
  assert codes == [0, 0], both[0].log.read_text()[-3000:]
  assert len(losses(both[0])) == 2
  assert f"The data continue from the position of step {saved}" in (
      both[0].log.read_text())
  assert (killed.model_dir / f"model.ckpt-{saved + 2}.index").exists()
