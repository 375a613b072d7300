"""One job over several processes: real processes on loopback, and mistakes."""

import json
import socket
import types

from absl.testing import flagsaver
import gin
import pytest
from support import models
from support.ports import two_tasks
from synthesizer_mtf import launcher
from synthesizer_mtf.trainer.command import cluster
from synthesizer_mtf.trainer.command import tf_config
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf


def serve(tasks, own, **parameters):
  """Starts the server of a task in this process; returns its `Cluster`."""
  member = cluster.Cluster(tasks, own, None, **parameters)
  cluster.start_server(tasks, own, [])
  return member


def test_a_worker_ends_in_the_same_way_as_the_chief():
  tasks = two_tasks()
  chief, worker = (serve(tasks, own, timeout_seconds=20) for own in tasks)

  def fail():
    raise KeyError("ours")

  with pytest.raises(KeyError):
    chief._lead(fail, [])
  with pytest.raises(cluster.LostProcess, match="chief 0 .* with an error"):
    worker._follow()
  chief._lead(lambda: None, [])
  worker._follow()


@pytest.mark.slow
def test_a_worker_notices_a_chief_that_hangs():
  tasks = two_tasks()
  with socket.create_server(("localhost", int(tasks[0].address[10:]))):
    with pytest.raises(cluster.LostProcess, match="chief 0 .* for 0.4 seconds"):
      serve(tasks, tasks[1], timeout_seconds=0.4)._follow()


@pytest.mark.parametrize("own", [0, 1])
def test_a_process_that_never_starts_is_named(own):
  tasks = two_tasks()
  member = serve(tasks, tasks[own], start_timeout_seconds=0.1)
  other = tasks[1 - own]
  with pytest.raises(cluster.LostProcess) as error:
    if own:
      member._follow()
    else:
      member._lead(None, [])
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


def test_the_tasks_come_from_the_variable_tf_config():
  tasks, own = tf_config.read(config())
  assert [str(t) for t in tasks] == [
      "chief 0 at a:1", "worker 0 at b:2", "worker 1 at c:3"]
  assert own.device == "/job:worker/task:1"


WRONG_VARIABLES = [
    ("", "is not JSON (Expecting value: line 1 column 1 (char 0)): ''"),
    (config(cluster={}), "names no cluster"),
    (config(cluster={"chief": "a:1"}), "not a list of addresses per job"),
    (config(cluster={"worker": ["a:1", "b:2"]}), "names 0 chiefs, not one"),
    (config(cluster={"chief": ["a:1"]}), "names no worker"),
    (config(cluster={"chief": ["a:1"], "ps": ["b:2"]}), "the jobs ['ps'], but"),
    (config(cluster={"chief": ["a:1"], "worker": ["b"]}),
     "gives worker 0 the address 'b', not a host and a port"),
    (config(cluster={"chief": ["a:1"], "worker": ["a:1"]}), "the same address"),
    (config(task=None), "does not say which task this process is"),
    (config(task={"type": "worker", "index": 2}), "'index': 2}, which is not in its "
     "cluster of chief 0 at a:1, worker 0 at b:2, worker 1 at c:3")]


@pytest.mark.usefixtures("parsed_flags")
def test_a_wrong_variable_ends_in_one_sentence_before_anything_runs(monkeypatch):
  monkeypatch.setattr(mesh_transformer_main, "main", None)
  for text, message in WRONG_VARIABLES:
    monkeypatch.setenv("TF_CONFIG", text)
    with flagsaver.flagsaver(model_dir="not_made"), pytest.raises(
        SystemExit) as exit_info:
      launcher.main([])
    last = exit_info.value.code
    assert last.startswith("synthesizer_mesh_transformer: TF_CONFIG ")
    assert message in last and last.endswith("unset TF_CONFIG.")


CHIEF, WORKER = "/job:chief/task:0/cpu:0", "/job:worker/task:0/cpu:0"


@pytest.mark.parametrize("devices, shape, message", [
    (None, "batch:2", f"is not bound.* as in .\"{CHIEF}\", \"{WORKER}\""),
    ([CHIEF, "/job:worker/task:1/cpu:0"], "batch:2",
     "names '/job:worker/task:1/cpu:0', but the cluster of TF_CONFIG is chief"),
    ([CHIEF, "cpu:0"], "batch:2", "'cpu:0', which is not a device of a job"),
    ([CHIEF, 3], "batch:2", "names 3, which is not a device of a job"),
    ([CHIEF, WORKER], "model:2,batch:2",
     "names 2 devices, but `utils.run.mesh_shape` is 'model:2,batch:2' and needs 4")])
def test_a_mesh_that_does_not_lie_on_the_cluster_is_refused(devices, shape, message):
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
def test_a_time_has_to_be_a_positive_number(name):
  for value in (0, "60", True):
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
  assert cluster.of_environment(None)(lambda: "alone") == "alone"
