"""One job over two real processes on loopback."""

import json
import os
import re
import shutil
import time
import types

import numpy as np
import pytest
from support import launching
from support.ports import two_tasks
from support.processes import COMMAND
from support.processes import LIMIT
from support.processes import Process
import tensorflow.compat.v1 as tf

FOUR_DEVICES = [f"/job:{job}/task:0/cpu:{i}" for job in ("chief", "worker")
                for i in (0, 1)]
BINDINGS = ["dropout_rate = 0.0", "utils.run.save_checkpoints_steps = 1",
            "mesh_train_dataset_fn.shuffle = False",
            "utils.get_variable_dtype.master_dtype = 'float32'"]


class Processes:
  """Runs the launcher with a tiny R+V model, as one process or as two."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    self.launch = launching.Launcher(folder, vocabulary)
    self.started = []

  def start(self, name, *bindings, task=None, tasks=()):
    """Starts one process; its output goes to NAME.JOB.log."""
    self.launch.model_dir = self.folder / name
    job = task.job if task else "alone"
    variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    if task:
      variables["TF_CONFIG"] = json.dumps({
          "cluster": {t.job: [t.address] for t in tasks},
          "task": {"type": job, "index": 0}})

    def run(words, folder):
      with open(folder / f"{name}.{job}.log", "w") as log:
        return Process([COMMAND, "--verbosity=1", *words], log, cwd=folder,
                       env=variables)

    process = self.launch(bindings=[*BINDINGS, *bindings], run=run,
                          mesh="cluster.gin" if task else "cpu.gin")
    process.log = self.folder / f"{name}.{job}.log"
    self.started.append(process)
    return process

  def start_two(self, name, *bindings):
    """Starts a chief and a worker; returns them and their tasks."""
    tasks = two_tasks()
    return [self.start(name, *bindings, task=task, tasks=tasks)
            for task in tasks], tasks


@pytest.fixture(scope="module")
def processes(tmp_path_factory, sentencepiece_model):
  run = Processes(tmp_path_factory.mktemp("cluster"), sentencepiece_model)
  yield run
  for process in run.started:
    process.kill()


@pytest.fixture(scope="module")
def killed(processes):
  """Two processes whose worker gets killed, and one that starts as they did.

  It trains while the chief waits for the worker.
  """
  (chief, worker), tasks = processes.start_two(
      "two", "utils.run.train_steps = 1000000",
      "utils.run.mesh_shape = 'model:2,batch:2'",
      f"utils.run.mesh_devices = {FOUR_DEVICES}", "Cluster.timeout_seconds = 10",
      "utils.run.keep_checkpoint_max = None")
  wait_for_line(chief, r"(?s)(tf_loss\[.*){5}")  # The log omits some numbers.
  worker.kill()
  one, two = processes.folder / "one", processes.folder / "two"
  one.mkdir()
  for path in two.glob("model.ckpt-0.*"):
    shutil.copy(path, one)
  (one / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
  alone = processes.start("one", "utils.run.train_steps = 3")
  assert alone.wait() == 0, alone.log.read_text()[-3000:]
  chief.wait()
  return types.SimpleNamespace(  # Read before another job writes to the same log.
      one=one, two=two, chief=chief, tasks=tasks, alone=losses(alone),
      losses=losses(chief), last_line=chief.log.read_text().strip().splitlines()[-1])


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


def test_two_processes_have_the_losses_and_gradients_of_one(killed):
  """Adafactor keeps the mean squares of the gradients in its slots.

  The variables themselves cannot be compared. If a gradient is zero except for
  rounding, as for a query that sees one key, Adafactor scales up the rounding. The
  slots are compared after one step, before this affects the gradients.
  """
  assert len(killed.alone) == 3
  np.testing.assert_allclose(killed.losses[:3], killed.alone, atol=1e-4)
  assert killed.losses[2] != killed.losses[0]
  expected, found = (tf.train.load_checkpoint(str(folder / "model.ckpt-1"))
                     for folder in (killed.one, killed.two))
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
      "for 10 seconds (`Cluster.timeout_seconds`): start all processes again, "
      "and training continues from the newest checkpoint.")


def test_the_job_resumes_from_its_checkpoint_and_all_end(processes, killed):
  saved = int(tf.train.latest_checkpoint(str(killed.two)).split("-")[-1])
  assert saved >= 3
  both, _ = processes.start_two(
      "two", f"utils.run.train_steps = {saved + 2}", "utils.run.mesh_shape = 'model:2'")
  codes = [p.wait() for p in both]
  assert codes == [0, 0], both[0].log.read_text()[-3000:]
  assert len(losses(both[0])) == 2
  assert f"The data continue from the position of step {saved}" in (
      both[0].log.read_text())
  assert (killed.two / f"model.ckpt-{saved + 2}.index").exists()
