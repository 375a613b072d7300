"""One job over several processes: real ones on loopback, and mistakes."""

import json
import os
import pathlib
import pydoc_data.topics
import re
import shutil
import socket
import time
import types

import gin
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import models
from support.processes import LIMIT
from support.processes import Process
from synthesizer_mtf import launcher
from synthesizer_mtf.command import cluster
from synthesizer_mtf.command import tf_config
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

FOUR_DEVICES = [f"/job:{job}/task:0/cpu:{i}" for job in ("chief", "worker")
                for i in (0, 1)]


def free_ports(count):
  sockets = [socket.socket() for _ in range(count)]
  for s in sockets:
    s.bind(("localhost", 0))
  ports = [s.getsockname()[1] for s in sockets]
  for s in sockets:
    s.close()
  return ports


def two_tasks():
  return [tf_config.Task(job, 0, f"localhost:{port}")
          for job, port in zip(("chief", "worker"), free_ports(2))]


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
        "utils.run.save_checkpoints_steps = 3",
        "mesh_train_dataset_fn.shuffle = False",
        "utils.get_variable_dtype.master_dtype = 'float32'"]
    self._started = []

  def start(self, model_dir, task, gin_file, bindings):
    """Starts one process; its output goes to MODEL_DIR.TASK.log."""
    files = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
             "learning_rate_schedules/constant_0_001.gin", gin_file]
    words = [f"--model_dir={model_dir}"]
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
  wait_for_line(chief, "tf_loss.*\\[5\\]")
  worker.kill()
  began = time.monotonic()
  chief.wait()
  return types.SimpleNamespace(
      model_dir=model_dir, chief=chief, tasks=tasks,
      seconds=time.monotonic() - began)


def wait_for_line(process, pattern):
  deadline = time.monotonic() + LIMIT
  while not re.search(pattern, process.log.read_text()):
    text = process.log.read_text()[-3000:]
    assert process.poll() is None, text
    assert time.monotonic() < deadline, text
    time.sleep(0.1)


def losses(process):
  """The losses of all steps, as Mesh TensorFlow prints them.

  It prints the number of the step, too, but while that is counted up.
  """
  found = re.findall(r"tf_loss\[([^]]+)\]\[\d+\]", process.log.read_text())
  return list(map(float, found))


def test_two_processes_have_the_losses_of_one(alone, killed):
  expected, found = alone[1], losses(killed.chief)
  assert len(expected) == 3
  np.testing.assert_allclose(found[:3], expected, atol=1e-4)
  assert found[2] != found[0]


def test_two_processes_have_the_gradients_of_one(alone, killed):
  """Adafactor keeps the mean squares of the gradients in its slots.

  The variables themselves are no measure: where a gradient is zero but for
  rounding, as for a query that sees one key, Adafactor scales up the rounding.
  """
  expected, found = (tf.train.load_checkpoint(str(folder / "model.ckpt-3"))
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
  assert killed.seconds < 90
  last = killed.chief.log.read_text().strip().splitlines()[-1]
  assert last == (
      f"synthesizer_mesh_transformer: the {killed.tasks[1]} has not answered "
      "for 15 seconds (`Cluster.timeout_seconds`): start all processes again, "
      "and training goes on from the newest checkpoint.")


def test_the_job_resumes_from_its_checkpoint_and_all_end(processes, killed):
  saved = int(tf.train.latest_checkpoint(str(killed.model_dir)).split("-")[-1])
  assert saved >= 3
  both, _ = processes.start_two(
      killed.model_dir, f"utils.run.train_steps = {saved + 2}",
      "utils.run.mesh_shape = 'model:2'")
  codes = [p.wait() for p in both]
  assert codes == [0, 0], both[0].log.read_text()[-3000:]
  assert len(losses(both[0])) == 2
  assert (killed.model_dir / f"model.ckpt-{saved + 2}.index").exists()


def serve(tasks, own, **parameters):
  """Starts the server of a task in this process; returns its `Cluster`."""
  member = cluster.Cluster(tasks, own, None, **parameters)
  cluster.start_server(tasks, own, [])
  return member


def lead(member, job):
  member._lead(job, [])


def follow(member):
  member._follow()


def test_a_worker_ends_as_the_chief_did():
  tasks = two_tasks()
  chief, worker = (serve(tasks, own, timeout_seconds=20) for own in tasks)

  def fail():
    raise KeyError("ours")

  with pytest.raises(KeyError):
    lead(chief, fail)
  with pytest.raises(cluster.LostProcess, match="chief 0 .* with an error"):
    follow(worker)
  lead(chief, lambda: None)
  follow(worker)


def test_a_worker_notices_a_chief_that_hangs():
  tasks = two_tasks()
  with socket.create_server(("localhost", int(tasks[0].address[10:]))):
    with pytest.raises(cluster.LostProcess, match="chief 0 .* for 0.4 seconds"):
      follow(serve(tasks, tasks[1], timeout_seconds=0.4))


@pytest.mark.parametrize("own", [0, 1])
def test_a_process_that_never_starts_is_named(own):
  tasks = two_tasks()
  member = serve(tasks, tasks[own], start_timeout_seconds=0.1)
  other = tasks[1 - own]
  with pytest.raises(cluster.LostProcess) as error:
    if own:
      follow(member)
    else:
      lead(member, None)
  assert str(error.value).startswith(
      f"the {other} has not started within 0.1 seconds")
  assert f'"task": {{"type": "{other.job}", "index": 0}}' in str(error.value)


def test_a_device_that_a_process_lacks_is_named():
  tasks = two_tasks()
  for own in tasks:
    serve(tasks, own)
  gpu = tf.DeviceSpec.from_string("/job:worker/task:0/gpu:3")
  with pytest.raises(ValueError) as error:
    peer = cluster.Peer(tasks[1], 20)
    peer.ask()
    peer.check_devices([gpu])
  assert ("names '/job:worker/task:0/device:GPU:3', but the worker 0" in
          str(error.value))
  assert "/job:worker/task:0/device:CPU:0" in str(error.value)


def test_an_address_in_use_is_named():
  tasks = two_tasks()
  with socket.create_server(("localhost", int(tasks[1].address[10:]))):
    with pytest.raises(ValueError, match=f"the {tasks[1]}, but no server can"):
      serve(tasks, tasks[1])


def config(**changes):
  value = {"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]},
           "task": {"type": "worker", "index": 1}}
  return json.dumps({**value, **changes})


def test_the_tasks_are_those_of_the_variable():
  tasks, own = tf_config.read(config())
  assert [str(t) for t in tasks] == [
      "chief 0 at a:1", "worker 0 at b:2", "worker 1 at c:3"]
  assert own.device == "/job:worker/task:1"


@pytest.mark.parametrize("text, message", [
    ("", "is not JSON (Expecting value: line 1 column 1 (char 0)): ''"),
    ("{'cluster': 3}", "is not JSON"),
    ("[]", "names no cluster"),
    ("{}", "names no cluster"),
    (config(cluster={}), "names no cluster"),
    (config(cluster=["a:1"]), "not a list of addresses per job"),
    (config(cluster={"chief": "a:1"}), "not a list of addresses per job"),
    (config(cluster={"worker": ["a:1", "b:2"]}), "names 0 chiefs, not one"),
    (config(cluster={"chief": ["a:1", "b:2"]}), "names 2 chiefs, not one"),
    (config(cluster={"chief": ["a:1"]}), "names no worker"),
    (config(cluster={"chief": ["a:1"], "ps": ["b:2"]}), "the jobs ['ps'], but"),
    (config(cluster={"chief": ["a:1"], "worker": ["b"]}),
     "gives worker 0 the address 'b', not a host and a port"),
    (config(cluster={"chief": ["a:1"], "worker": ["a:1"]}), "the same address"),
    (config(task=None), "does not say which task this process is"),
    (config(task={"type": "worker"}), "does not say which task"),
    (config(task={"type": "worker", "index": 2}),
     "task {'type': 'worker', 'index': 2}, which is not in its cluster of chief"
     " 0 at a:1, worker 0 at b:2, worker 1 at c:3"),
    (config(task={"type": "evaluator", "index": 0}), "which is not in its"),
])
def test_a_wrong_variable_ends_in_one_sentence_before_anything_runs(
    text, message, monkeypatch, capsys):
  monkeypatch.setenv("TF_CONFIG", text)
  monkeypatch.setattr(cluster.flags, "FLAGS", types.SimpleNamespace(
      tpu=None, use_model_api=False, model_dir="not_made"))
  monkeypatch.setattr(mesh_transformer_main, "main", None)
  with pytest.raises(SystemExit) as exit_info:
    launcher.main([])
  assert exit_info.value.code == 1
  last = capsys.readouterr().err.splitlines()[-1]
  assert last.startswith("synthesizer_mesh_transformer: TF_CONFIG ")
  assert message in last and last.endswith("unset TF_CONFIG.")


CHIEF, WORKER = "/job:chief/task:0/cpu:0", "/job:worker/task:0/cpu:0"


@pytest.mark.parametrize("devices, shape, message", [
    (None, "batch:2", f"is not bound.* as in .\"{CHIEF}\", \"{WORKER}\""),
    ([CHIEF, "/job:worker/task:1/cpu:0"], "batch:2",
     "names '/job:worker/task:1/cpu:0', but the cluster of TF_CONFIG is chief"),
    ([CHIEF, "/job:ps/task:0/cpu:0"], "batch:2", "'/job:ps/task:0/cpu:0', but"),
    ([CHIEF, "cpu:0"], "batch:2", "'cpu:0', which is not a device of a job"),
    ([CHIEF, 3], "batch:2", "names 3, which is not a device of a job"),
    ([CHIEF, "/worker/0"], "batch:2", "'/worker/0', which is not a device of"),
    ([CHIEF, WORKER], "model:2,batch:2",
     "names 2 devices, but `utils.run.mesh_shape` is 'model:2,batch:2' and "
     "needs 4"),
])
def test_a_mesh_that_does_not_lie_on_the_cluster_is_refused(
    devices, shape, message):
  gin.parse_config(f"utils.run.mesh_shape = {shape!r}")
  if devices:
    gin.parse_config(f"utils.run.mesh_devices = {devices!r}")
  tasks = two_tasks()
  with pytest.raises(ValueError, match=message):
    cluster.Cluster(tasks, tasks[0], None).run(None)


def test_export_over_a_cluster_is_refused():
  models.parse_gin(["cluster.gin"], ["utils.run.mode = 'export_infer'"])
  tasks = two_tasks()
  with pytest.raises(ValueError, match="is 'export_infer', which runs in one"):
    cluster.Cluster(tasks, tasks[0], None).run(None)


@pytest.mark.parametrize("name", ["timeout_seconds", "start_timeout_seconds"])
@pytest.mark.parametrize("value", [0, "60", True])
def test_a_time_has_to_be_a_positive_number(name, value):
  with pytest.raises(ValueError, match=f"`Cluster.{name}` is {value!r}"):
    cluster.Cluster([], None, None, **{name: value})


def test_the_shipped_gin_file_suits_two_processes():
  models.parse_gin(["cluster.gin"])
  bound = gin.get_bindings("utils.run")
  devices = tf_config.check_mesh(
      two_tasks(), bound["mesh_shape"], bound["mesh_devices"])
  assert [d.job for d in devices] == ["chief", "worker"]


@pytest.mark.parametrize("variable, tpu", [(None, None), ("", "grpc://a:8470")])
def test_without_the_variable_and_on_tpus_nothing_changes(
    variable, tpu, monkeypatch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  if variable is not None:
    monkeypatch.setenv("TF_CONFIG", variable)
  monkeypatch.setattr(cluster.flags, "FLAGS", types.SimpleNamespace(tpu=tpu))
  run = utils.run
  with cluster.joined(None):
    assert utils.run is run
