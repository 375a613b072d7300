"""Reads the cluster of `TF_CONFIG`, and checks that the mesh lies on it.

The environment variable has TensorFlow's format:

  {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
   "task": {"type": "worker", "index": 1}}

`cluster.py` starts the servers and runs the job.
"""

import json
import re
from typing import NamedTuple

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.command import run_checks
import tensorflow.compat.v1 as tf

VARIABLE = "TF_CONFIG"
ALONE = f"; for one process unset {VARIABLE}"
_EXAMPLE = ('{"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, '
            '"task": {"type": "chief", "index": 0}}')


class Task(NamedTuple):
  """One process of the cluster."""

  job: str
  index: int  # type: ignore[assignment]  # It hides `tuple.index`, which nobody calls.
  address: str

  @property
  def device(self) -> str:
    return f"/job:{self.job}/task:{self.index}"

  def __str__(self):
    return f"{self.job} {self.index} at {self.address}"


def read(text: str) -> tuple[list[Task], Task]:
  """Reads and checks the value of `TF_CONFIG`.

  Args:
    text: a string, see the module's docstring.

  Returns:
    (all tasks, with the chief's first; the task of this process).

  Raises:
    ValueError: it describes no cluster with a chief and this process in it.
  """
  try:
    config = json.loads(text)
  except json.JSONDecodeError as error:
    raise _bad(f"is not JSON ({error}): {text!r}") from error
  if not isinstance(config, dict) or not config.get("cluster"):
    raise _bad("names no cluster")
  tasks = _read_cluster(config["cluster"])
  own = config.get("task")
  if not isinstance(own, dict) or not {"type", "index"} <= set(own):
    raise _bad("does not say which task this process is")
  # TensorFlow and its users sometimes write the index as a string.
  found = [t for t in tasks
           if (t.job, str(t.index)) == (own["type"], str(own["index"]))]
  if not found:
    raise _bad(f"says that this process is task {own}, which is not in its "
               f"cluster of {', '.join(map(str, tasks))}")
  return tasks, found[0]


def _read_cluster(cluster):
  """Returns the tasks in the value of `cluster`, with the chief's first."""
  lists = isinstance(cluster, dict) and all(
      isinstance(v, list) for v in cluster.values())
  if not lists:
    raise _bad(f"has the cluster {cluster!r}, not a list of addresses per job")
  jobs = sorted(cluster)  # "chief" comes first.
  unknown = set(jobs) - {"chief", "worker"}
  if unknown:
    raise _bad(f"names the jobs {sorted(unknown)}, but a mesh has a chief and "
               "workers only")
  if len(cluster.get("chief", [])) != 1:
    raise _bad(f"names {len(cluster.get('chief', []))} chiefs, not one")
  tasks = [Task(job, index, address)
           for job in jobs for index, address in enumerate(cluster[job])]
  if len(tasks) == 1:
    raise _bad("names no worker")
  for task in tasks:
    if not re.fullmatch(r"[^:/\s]+:\d{1,5}", str(task.address)):
      raise _bad(f"gives {task.job} {task.index} the address "
                 f"{task.address!r}, not a host and a port")
  if len({t.address for t in tasks}) < len(tasks):
    raise _bad("gives two tasks the same address")
  return tasks


def _bad(what):
  return checks.Error(f"{VARIABLE} {what}: write it as in '{_EXAMPLE}'{ALONE}.")


def check_mesh(tasks: list[Task], mesh_shape: str | mtf.Shape,
               mesh_devices: list[str] | None) -> list[tf.DeviceSpec]:
  """Checks that the mesh lies on the cluster.

  Returns:
    a list of `tf.DeviceSpec`, one for each device of the mesh.

  Raises:
    ValueError: the mesh does not lie on the cluster; the message names the device.
  """
  parameter = "`utils.run.mesh_devices`"
  example = json.dumps([f"{t.device}/cpu:0" for t in tasks])
  if not mesh_devices:
    raise checks.Error(f"{parameter} is not bound, but {VARIABLE} describes a "
                       f"cluster: bind it as in {example}.")
  specs = [_parse_device(d, parameter, example) for d in mesh_devices]
  processes = {(t.job, t.index) for t in tasks}
  for name, spec in zip(mesh_devices, specs):
    if (spec.job, spec.task) not in processes:
      raise checks.Error(f"{parameter} names {name!r}, but the cluster of "
                         f"{VARIABLE} is {', '.join(map(str, tasks))}; name "
                         f"devices of these, as in {example}.")
  run_checks.check_device_count(len(specs), mesh_shape)
  return specs


def _parse_device(name, parameter, example):
  """Returns the `tf.DeviceSpec` of one entry of `utils.run.mesh_devices`."""
  try:
    spec = tf.DeviceSpec.from_string(name)
  except (AttributeError, ValueError):
    spec = tf.DeviceSpec()
  parts = (spec.job, spec.task, spec.device_type, spec.device_index)
  if None in parts:
    raise checks.Error(f"{parameter} names {name!r}, which is not a device of a "
                       f"job and a task; write it as in {example}.")
  return spec
