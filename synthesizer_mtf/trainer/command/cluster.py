"""One job over several processes or machines, without TPUs.

The user starts the launcher once for each task of a cluster, with the same command. The
environment variable `TF_CONFIG`, which `tf_config.py` reads, describes the cluster in
TensorFlow's format.

Each process starts a TensorFlow server. The chief runs the job in a session on its own
server, reads the data and writes the checkpoints. The workers only compute what Mesh
TensorFlow places on their devices, which `utils.run.mesh_devices` names. At the end the
chief notifies each worker through a queue on the worker's server. Until then chief and
workers send each other heartbeats. TensorFlow needs them: its sessions wait for a lost
worker forever, and its servers do not notice a lost chief.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import os
import socket
import threading
import time

from absl import flags
from absl import logging
import gin
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.command import tf_config
import tensorflow.compat.v1 as tf

_DONE, _FAILED = 0, 1  # The chief's messages to the workers.
_PERIOD = 1.  # Seconds between two heartbeats.
_CALL = 5.  # Seconds until a call times out.


class LostProcess(checks.Error):
  """Another process of the cluster failed, does not answer or never started."""


def of_environment(
    on_loss: Callable[[LostProcess], None]) -> Callable[..., None]:
  """Returns a function that runs a job in the cluster of `TF_CONFIG`, or here.

  Without this variable, and with `--tpu`, the job runs in this process alone.

  Args:
    on_loss: a function of a `LostProcess`, called in another thread while
      TensorFlow may wait for the lost process. The function must end this process.

  Returns:
    a function of a job; a job is a function without arguments. The function raises
    what `Cluster.run` raises.

  Raises:
    ValueError: the variable does not describe a cluster that this process can join,
      or a flag needs a single process.
  """
  if tf_config.VARIABLE not in os.environ or flags.FLAGS.tpu:
    return lambda job: job()
  if flags.FLAGS.use_model_api:
    raise checks.Error("--use_model_api runs in one process, but "
                       f"{tf_config.VARIABLE} describes a cluster: leave out the "
                       f"flag{tf_config.ALONE}.")
  tasks, own = tf_config.read(os.environ[tf_config.VARIABLE])
  # gin's parameters are known only when the job begins.
  return lambda job: Cluster(tasks, own, on_loss).run(job)


@gin.configurable(module="synthesizer_mtf")
class Cluster:
  """The role of this process in the cluster."""

  def __init__(self, tasks: list[tf_config.Task], own: tf_config.Task,
               on_loss: Callable[[LostProcess], None],
               timeout_seconds: float = 60, start_timeout_seconds: float = 600):
    """Declares the parameters.

    Args:
      tasks: a list of all `Task`s, with the chief's first.
      own: the `Task` of this process.
      on_loss: as in `of_environment`.
      timeout_seconds: a number; a process that does not answer for this long counts
        as lost.
      start_timeout_seconds: a number, the longest wait for other processes to start.

    Raises:
      ValueError: a time is not a positive number.
    """
    for name, value in [("timeout_seconds", timeout_seconds),
                        ("start_timeout_seconds", start_timeout_seconds)]:
      checks.require(checks.is_number(value) and value > 0, f"Cluster.{name}", value,
                     "be a positive number of seconds")
    self._tasks = tasks
    self._own = own
    self._on_loss = on_loss
    self._timeout = timeout_seconds
    self._start_timeout = start_timeout_seconds
    self._server = None

  def run(self, job: Callable[[], None]) -> None:
    """Runs the job on the chief, and serves it on a worker.

    Args:
      job: a function without arguments, called on the chief.

    Raises:
      ValueError: the mesh does not lie on the cluster, or the mode of
        `utils.run` or the address of this process cannot be used.
      LostProcess: another process failed, does not answer or never started.
    """
    bindings = gin.get_bindings("utils.run")
    devices = tf_config.check_mesh(self._tasks, bindings.get("mesh_shape"),
                         bindings.get("mesh_devices"))
    if bindings.get("mode", "train").startswith("export"):
      raise checks.Error(f"`utils.run.mode` is {bindings['mode']!r}, which runs "
                         f"in one process: unset {tf_config.VARIABLE} and add "
                         "--gin_file=cpu.gin.")
    self._server = start_server(self._tasks, self._own, devices)
    if self._own.job == "chief":
      self._lead(job, devices)
    else:
      self._follow()

  def _lead(self, job, devices):
    own, *peers = [Peer(t, self._timeout) for t in self._tasks]
    message = _FAILED
    try:
      self._wait_for_start(peers)
      wait_for_answers([own, *peers])
      for peer in [own, *peers]:
        peer.check_devices(devices)
      try:
        with heartbeats(peers, functools.partial(self._give_up, peers)):
          job()
      except tf.errors.OpError:
        wait_for_answers(peers)  # Raises if a lost worker is the reason.
        raise
      message = _DONE
    finally:
      for peer in peers:
        peer.send(message)

  def _give_up(self, peers, lost):
    """Ends all processes, even if TensorFlow waits for a lost process."""
    for peer in peers:
      peer.send(_FAILED)
    self._on_loss(lost)

  def _follow(self):
    chief = Peer(self._tasks[0], self._timeout)
    self._wait_for_start([chief])
    mailbox = Mailbox(self._own)
    while (message := mailbox.get()) is None:
      time.sleep(_PERIOD)
      chief.ask()
    if message != _DONE:
      raise LostProcess(f"the {chief.task} ended with an error; see its own "
                        "output.")
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
            f"\"index\": {missing[0].index}}} in {tf_config.VARIABLE}.")
      time.sleep(_PERIOD)


def start_server(
    tasks: list[tf_config.Task], own: tf_config.Task,
    devices: list[tf.DeviceSpec]) -> tf.distribute.Server:
  """Starts TensorFlow's server of this process; it ends with the process.

  Args:
    tasks: a list of all `Task`s.
    own: the `Task` of this process.
    devices: a list of `tf.DeviceSpec`, the mesh. The server gets as many CPU devices
      as the mesh uses in this process.

  Raises:
    ValueError: the server cannot use its port.
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
    raise checks.Error(
        f"{tf_config.VARIABLE} makes this process the {own}, but no server can "
        f"start at this port ({error.message}): end the process that uses it, or "
        "choose another port.") from error


class Peer:
  """Another process of the cluster."""

  def __init__(self, task: tf_config.Task, timeout: float):
    """Declares the parameters; does not connect yet.

    Args:
      task: a `Task`.
      timeout: the longest time without answer, in seconds.
    """
    self.task = task
    # The start of an unanswered call, or None.
    self.silent_since: float | None = None
    self._timeout = timeout
    self._devices = []
    self._probe: tf.Session | None = None

  def listens(self) -> bool:
    """Whether anything listens at the address."""
    host, port = self.task.address.split(":")
    try:
      with socket.create_connection((host, int(port)), timeout=_CALL):
        self.silent_since = None
    except OSError:
      self.silent_since = time.monotonic()
    return self.silent_since is None

  def ask(self) -> None:
    """Asks the peer's server for its devices, as a heartbeat.

    Raises:
      LostProcess: the peer has been silent for too long.
    """
    asked = time.monotonic()
    try:
      if self._probe is None:
        self._probe = open_session(
            self.task, tf.Graph(), min(self._timeout / 2, _CALL))
      self._devices = [d.name.replace("/replica:0", "")
                       for d in self._probe.list_devices()]
      self.silent_since = None
    except tf.errors.OpError:
      self._probe = None  # A restarted server does not know old sessions.
      self.silent_since = self.silent_since or asked
      if time.monotonic() - self.silent_since >= self._timeout:
        raise LostProcess(
            f"the {self.task} has not answered for {self._timeout} seconds "
            "(`Cluster.timeout_seconds`): start all processes again, and "
            "training continues from the newest checkpoint.") from None

  def check_devices(self, devices: list[tf.DeviceSpec]) -> None:
    """Raises a ValueError if the last answer lacked a device of the mesh."""
    for spec in devices:
      name = spec.to_string()
      here = name.startswith(self.task.device + "/")
      if here and name not in self._devices:
        raise checks.Error(
            f"`utils.run.mesh_devices` names {name!r}, but the {self.task} has "
            f"only {', '.join(self._devices)}; name one of these.")

  def send(self, number: int) -> None:
    """Puts a number into the peer's mailbox, if the peer answers."""
    if self.silent_since is not None:
      return
    try:
      Mailbox(self.task, self._timeout).put(number)
    except tf.errors.OpError:
      logging.warning("The %s does not learn that the job ended.", self.task)


class Mailbox:
  """A queue on a worker's server, which any process can use."""

  def __init__(self, task: tf_config.Task, timeout: float = 0):
    """Opens the mailbox; the first use creates the queue.

    Args:
      task: the `Task` that the mailbox belongs to.
      timeout: the longest time of a call, in seconds; 0 for no limit.
    """
    with tf.Graph().as_default() as graph, tf.device(f"{task.device}/cpu:0"):
      queue = tf.FIFOQueue(
          8, tf.int32, shapes=[[]], shared_name="synthesizer_mtf_cluster")
      self._number = tf.placeholder(tf.int32, [])
      self._put = queue.enqueue(self._number)
      self._size = queue.size()
      self._get = queue.dequeue()
    self._session = open_session(task, graph, timeout)

  def put(self, number: int) -> None:
    self._session.run(self._put, {self._number: number})

  def get(self) -> int | None:
    """Returns the oldest number, or None."""
    if self._session.run(self._size):
      return self._session.run(self._get)
    return None


def open_session(task: tf_config.Task, graph: tf.Graph,
                 timeout: float) -> tf.Session:
  """Returns a session that uses only the server of one task.

  Args:
    task: a `Task`.
    graph: a `tf.Graph`.
    timeout: the longest time of a call, in seconds; 0 for no limit.
  """
  config = tf.ConfigProto(device_filters=[task.device],
                          operation_timeout_in_ms=int(1000 * timeout))
  return tf.Session(f"grpc://{task.address}", graph=graph, config=config)


def wait_for_answers(peers: list[Peer]) -> None:
  """Returns when all peers answer; raises LostProcess if one is silent too long."""
  while True:
    for peer in peers:
      peer.ask()
    if all(peer.silent_since is None for peer in peers):
      return
    time.sleep(_PERIOD)


@contextlib.contextmanager
def heartbeats(peers: list[Peer],
               on_loss: Callable[[LostProcess], None]) -> Iterator[None]:
  """Asks peers in another thread, and calls `on_loss` there with a LostProcess."""
  stop = threading.Event()

  def work():
    try:
      while not stop.wait(_PERIOD):
        for peer in peers:
          peer.ask()
    except LostProcess as lost:
      on_loss(lost)

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  try:
    yield
  finally:
    stop.set()
    thread.join()
