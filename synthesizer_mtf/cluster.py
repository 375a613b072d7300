"""One job over several processes or machines, without TPUs.

The launcher is started once for each task of a cluster, with the same command
and with TensorFlow's own description of it in the environment variable
`TF_CONFIG`:

  {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
   "task": {"type": "worker", "index": 1}}

Each process starts a TensorFlow server. The chief runs the job in a session on
its own server, reads the data and writes the checkpoints; the workers only
compute what Mesh TensorFlow places on the devices of theirs, which
`utils.run.mesh_devices` names. At the end the chief tells each worker so
through a queue that lives there. Until then each side asks the other for a sign
of life, because neither TensorFlow's sessions, which wait for a lost worker for
ever, nor its servers, which do not notice a lost chief, end by themselves.
"""

import contextlib
import functools
import json
import os
import re
import socket
import threading
import time
from typing import NamedTuple

from absl import flags
from absl import logging
import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import utils
from synthesizer_mtf import patches
import tensorflow.compat.v1 as tf

VARIABLE = "TF_CONFIG"
_DONE, _FAILED = 0, 1  # What the chief tells the workers.
_PERIOD = 1.  # Seconds between two signs of life.
_CALL = 5.  # Seconds after which a question has no answer.
_EXAMPLE = ('{"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, '
            '"task": {"type": "chief", "index": 0}}')
_ALONE = f"; for one process unset {VARIABLE}"


class LostProcess(Exception):
  """Another process of the cluster failed, does not answer or never started."""


class Task(NamedTuple):
  """One process of the cluster."""

  job: str
  index: int
  address: str

  @property
  def device(self):
    return f"/job:{self.job}/task:{self.index}"

  def __str__(self):
    return f"{self.job} {self.index} at {self.address}"


@contextlib.contextmanager
def joined(on_loss):
  """Lets T5's main, called within, do its part in the cluster of `TF_CONFIG`.

  Without this variable, and with `--tpu`, it changes nothing.

  Args:
    on_loss: a function of a `LostProcess`, called in another thread while
      TensorFlow may wait for the lost process; it has to end this one.

  Yields:
    nothing.

  Raises:
    ValueError: the variable, a flag or the mesh does not describe a cluster
      that this process can join.
    LostProcess: another process failed, does not answer or never started.
  """
  if VARIABLE not in os.environ or flags.FLAGS.tpu:
    yield
    return
  if flags.FLAGS.use_model_api:
    raise ValueError(f"--use_model_api runs in one process, but {VARIABLE} "
                     f"describes a cluster: leave out the flag{_ALONE}.")
  tasks, own = read(os.environ[VARIABLE])

  def in_cluster(run):
    @functools.wraps(run)
    def wrapped(**kwargs):
      # T5's main has parsed the gin files by now.
      Cluster(tasks, own, on_loss).run(functools.partial(run, **kwargs))

    return wrapped

  with patches.wrapped("run", utils, in_cluster):
    yield


def read(text):
  """Reads and checks the value of `TF_CONFIG`.

  Args:
    text: a string, see the module's docstring.

  Returns:
    (all tasks, that of the chief first; that of this process).

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
  # Both TensorFlow and its users write the index as a string at times.
  found = [t for t in tasks
           if (t.job, str(t.index)) == (own["type"], str(own["index"]))]
  if not found:
    raise _bad(f"says that this process is task {own}, which is not in its "
               f"cluster of {', '.join(map(str, tasks))}")
  return tasks, found[0]


def _read_cluster(cluster):
  """Returns the tasks of the value of `cluster`, that of the chief first."""
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
  return ValueError(f"{VARIABLE} {what}: write it as in '{_EXAMPLE}'{_ALONE}.")


def check_mesh(tasks, mesh_shape, mesh_devices):
  """Checks that the mesh lies on the cluster.

  Args:
    tasks: a list of `Task`.
    mesh_shape: `utils.run.mesh_shape`.
    mesh_devices: `utils.run.mesh_devices`.

  Returns:
    a list of `tf.DeviceSpec`, one for each device of the mesh.

  Raises:
    ValueError: it does not; the message names the device.
  """
  parameter = "`utils.run.mesh_devices`"
  example = json.dumps([f"{t.device}/cpu:0" for t in tasks])
  if not mesh_devices:
    raise ValueError(f"{parameter} is not bound, but {VARIABLE} describes a "
                     f"cluster: bind it as in {example}.")
  specs = [_parse_device(d, parameter, example) for d in mesh_devices]
  processes = {(t.job, t.index) for t in tasks}
  for name, spec in zip(mesh_devices, specs):
    if (spec.job, spec.task) not in processes:
      raise ValueError(f"{parameter} names {name!r}, but the cluster of "
                       f"{VARIABLE} is {', '.join(map(str, tasks))}; name "
                       f"devices of these, as in {example}.")
  shape = mtf.convert_to_shape(mesh_shape)
  if shape.size != len(specs):
    raise ValueError(f"{parameter} names {len(specs)} devices, but "
                     f"`utils.run.mesh_shape` is {mesh_shape!r} and needs "
                     f"{shape.size}; change one of them.")
  return specs


def _parse_device(name, parameter, example):
  """Returns the `tf.DeviceSpec` of one entry of `utils.run.mesh_devices`."""
  try:
    spec = tf.DeviceSpec.from_string(name)
  except (AttributeError, ValueError):
    spec = tf.DeviceSpec()
  parts = (spec.job, spec.task, spec.device_type, spec.device_index)
  if None in parts:
    raise ValueError(f"{parameter} names {name!r}, which is not a device of a "
                     f"job and a task; write it as in {example}.")
  return spec


@gin.configurable(module="synthesizer_mtf")
class Cluster:
  """What this process does in the cluster."""

  def __init__(self, tasks, own, on_loss, timeout_seconds=60,
               start_timeout_seconds=600):
    """Declares the parameters.

    Args:
      tasks: a list of all `Task`s, that of the chief first.
      own: the `Task` of this process.
      on_loss: see `joined`.
      timeout_seconds: a process that does not answer for this long counts as
        lost, a number.
      start_timeout_seconds: how long to wait for the other processes to start,
        a number.

    Raises:
      ValueError: a time is not a positive number.
    """
    for name, value in [("timeout_seconds", timeout_seconds),
                        ("start_timeout_seconds", start_timeout_seconds)]:
      if isinstance(value, bool) or not isinstance(
          value, (int, float)) or value <= 0:
        raise ValueError(f"`Cluster.{name}` is {value!r}, but has to be a "
                         "positive number of seconds.")
    self._tasks = tasks
    self._own = own
    self._on_loss = on_loss
    self._timeout = timeout_seconds
    self._start_timeout = start_timeout_seconds
    self._server = None

  def run(self, job):
    """Leads the job on the chief, and follows it on a worker.

    Args:
      job: a function without arguments, called on the chief.

    Raises:
      ValueError: the mesh does not lie on the cluster, or the mode of
        `utils.run` or the address of this process cannot be used.
      LostProcess: another process failed, does not answer or never started.
    """
    bindings = gin.get_bindings("utils.run")
    devices = check_mesh(self._tasks, bindings.get("mesh_shape"),
                         bindings.get("mesh_devices"))
    if bindings.get("mode", "train").startswith("export"):
      raise ValueError(f"`utils.run.mode` is {bindings['mode']!r}, which runs "
                       f"in one process: unset {VARIABLE} and add "
                       "--gin_file=cpu.gin.")
    self._server = start_server(self._tasks, self._own, devices)
    if self._own.job == "chief":
      self._lead(job, devices)
    else:
      self._follow()

  def _lead(self, job, devices):
    own, *peers = [Peer(t, self._timeout) for t in self._tasks]
    told = _FAILED
    try:
      self._wait_for_start(peers)
      Watch([own, *peers], self._timeout).check()
      for peer in [own, *peers]:
        peer.check_devices(devices)
      watch = Watch(peers, self._timeout)
      try:
        with watch.in_background(functools.partial(self._give_up, peers)):
          job()
      except tf.errors.OpError:
        watch.check()  # Was it for want of a worker?
        raise
      told = _DONE
    finally:
      for peer in peers:
        peer.tell(told)

  def _give_up(self, peers, lost):
    """Ends all processes while TensorFlow waits for a lost one."""
    for peer in peers:
      peer.tell(_FAILED)
    self._on_loss(lost)

  def _follow(self):
    chief = Peer(self._tasks[0], self._timeout)
    self._wait_for_start([chief])
    watch = Watch([chief], self._timeout)
    mailbox = Mailbox(self._own)
    told = mailbox.get()
    while told is None:
      time.sleep(_PERIOD)
      watch.poll()
      told = mailbox.get()
    if told != _DONE:
      raise LostProcess(f"the {chief.task} ended with an error, which its own "
                        "output tells.")
    logging.info("The %s is done.", chief.task)

  def _wait_for_start(self, peers):
    deadline = time.monotonic() + self._start_timeout
    logging.info("This is %s, waiting for %s.", self._own,
                 ", ".join(str(peer.task) for peer in peers))
    while True:
      missing = [peer.task for peer in peers if not peer.listens()]
      if not missing:
        return
      if time.monotonic() > deadline:
        raise LostProcess(
            f"the {missing[0]} has not started within {self._start_timeout} "
            "seconds (`Cluster.start_timeout_seconds`): start the same command "
            f"there, with \"task\": {{\"type\": \"{missing[0].job}\", "
            f"\"index\": {missing[0].index}}} in {VARIABLE}.")
      time.sleep(_PERIOD)


def start_server(tasks, own, devices):
  """Starts TensorFlow's server of this process, which ends with it.

  Args:
    tasks: a list of all `Task`s.
    own: the `Task` of this process.
    devices: a list of `tf.DeviceSpec`, the mesh. The server has as many CPU
      devices as it uses of this process.

  Returns:
    a `tf.distribute.Server`.

  Raises:
    ValueError: there can be no server at this port.
  """
  addresses = {}
  for task in tasks:
    addresses.setdefault(task.job, []).append(task.address)
  cpus = 1 + max((d.device_index for d in devices if d.device_type == "CPU" and
                  (d.job, d.task) == (own.job, own.index)), default=0)
  try:
    return tf.distribute.Server(
        addresses, job_name=own.job, task_index=own.index,
        config=tf.ConfigProto(device_count={"CPU": cpus}))
  except tf.errors.OpError as error:
    raise ValueError(
        f"{VARIABLE} makes this process the {own}, but no server can start at "
        f"this port ({error.message}): end the process that uses it, or choose "
        "another port.") from error


class Peer:
  """A process of the cluster that is asked and told."""

  def __init__(self, task, timeout):
    """Connects to nothing yet.

    Args:
      task: a `Task`.
      timeout: the longest time without answer, in seconds.
    """
    self.task = task
    self.silent_since = None  # When a call without answer began, or None.
    self._timeout = timeout
    self._devices = []
    self._probe = None

  def listens(self):
    """Tells whether anything listens at the address."""
    host, port = self.task.address.split(":")
    try:
      with socket.create_connection((host, int(port)), timeout=_CALL):
        self.silent_since = None
    except OSError:
      self.silent_since = time.monotonic()
    return self.silent_since is None

  def ask(self):
    """Asks the server of this process for a sign of life: its devices."""
    asked = time.monotonic()
    try:
      if self._probe is None:
        self._probe = open_session(
            self.task, tf.Graph(), min(self._timeout / 2, _CALL))
      self._devices = [d.name.replace("/replica:0", "")
                       for d in self._probe.list_devices()]
      self.silent_since = None
    except tf.errors.OpError:
      self._probe = None  # A server that came back knows no old sessions.
      self.silent_since = self.silent_since or asked

  def check_devices(self, devices):
    """Raises a ValueError if a device of the mesh was missing when asked."""
    for spec in devices:
      name = spec.to_string()
      here = name.startswith(self.task.device + "/")
      if here and name not in self._devices:
        raise ValueError(
            f"`utils.run.mesh_devices` names {name!r}, but the {self.task} has "
            f"only {', '.join(self._devices)}; name one of these.")

  def tell(self, number):
    """Leaves a number in the mailbox of this process, if it answers."""
    if self.silent_since is not None:
      return
    try:
      Mailbox(self.task, self._timeout).put(number)
    except tf.errors.OpError:
      logging.warning("The %s cannot be told that the job ended.", self.task)


class Mailbox:
  """A queue in the memory of a worker's server, for any process."""

  def __init__(self, task, timeout=0):
    """Opens the mailbox; it is there as soon as anybody uses it.

    Args:
      task: the `Task` that it belongs to.
      timeout: how long a call may take, in seconds; 0 for any time.
    """
    with tf.Graph().as_default() as graph, tf.device(f"{task.device}/cpu:0"):
      queue = tf.FIFOQueue(
          8, tf.int32, shapes=[[]], shared_name="synthesizer_mtf_cluster")
      self._number = tf.placeholder(tf.int32, [])
      self._put = queue.enqueue(self._number)
      self._size = queue.size()
      self._get = queue.dequeue()
    self._session = open_session(task, graph, timeout)

  def put(self, number):
    self._session.run(self._put, {self._number: number})

  def get(self):
    """Returns the oldest number, or None."""
    if self._session.run(self._size):
      return self._session.run(self._get)
    return None


def open_session(task, graph, timeout):
  """Returns a session on the server of a task, which uses no other task.

  Args:
    task: a `Task`.
    graph: a `tf.Graph`.
    timeout: how long a call may take, in seconds; 0 for any time.
  """
  config = tf.ConfigProto(device_filters=[task.device],
                          operation_timeout_in_ms=int(1000 * timeout))
  return tf.Session(f"grpc://{task.address}", graph=graph, config=config)


class Watch:
  """Notices that a process of the cluster does not answer any more."""

  def __init__(self, peers, timeout):
    """Declares the parameters.

    Args:
      peers: a list of `Peer`.
      timeout: how long a peer may be silent, in seconds.
    """
    self._peers = peers
    self._timeout = timeout

  def poll(self):
    """Asks each peer once; raises LostProcess if one was silent too long."""
    for peer in self._peers:
      peer.ask()
      silent = peer.silent_since is not None
      if silent and time.monotonic() - peer.silent_since >= self._timeout:
        raise LostProcess(
            f"the {peer.task} has not answered for {self._timeout} seconds "
            "(`Cluster.timeout_seconds`): start all processes again, and "
            "training goes on from the newest checkpoint.")

  def check(self):
    """Returns when all peers have answered; else raises LostProcess."""
    self.poll()
    while any(peer.silent_since is not None for peer in self._peers):
      time.sleep(_PERIOD)
      self.poll()

  @contextlib.contextmanager
  def in_background(self, on_loss):
    """Polls in another thread, and calls `on_loss` there with a LostProcess."""
    stop = threading.Event()

    def work():
      try:
        while not stop.wait(_PERIOD):
          self.poll()
      except LostProcess as lost:
        on_loss(lost)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
      yield
    finally:
      stop.set()
      thread.join()
