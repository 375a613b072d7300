"""Several processes on one mesh: process 0 leads, and the others follow its calls.

Process 0 alone reads gin, data and checkpoints, and writes. Before it calls a method of
`arrays.Arrays`, it sends the call to each follower, with the parts of its arguments
that the follower's devices need. So all processes run the same programs in the same
order, as JAX demands.

The connections also tell that a process has ended. JAX's collectives would wait for it.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import ctypes
import dataclasses
import json
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any
import weakref

from absl import logging
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.runtime import arrays
from synthesizer_mtf.runtime import devices

_PERIOD = .2  # Seconds between two attempts to connect.
_LONGEST = 300  # Bytes of an address.
_WAITING = 4  # Calls that a follower reads ahead.
_SILENCE = 20, 10, 6  # Seconds until a probe, seconds between probes, their number.


_LEADING: list["Leader"] = []  # At most one, as JAX joins processes once.


class LostProcess(checks.Error):
  """Another process has ended, or never started."""


@dataclasses.dataclass(frozen=True)
class Place:
  """Where this process is among the others.

  Attributes:
    address: "HOST:PORT" of process 0.
    number: how many processes there are.
    index: the index of this process.
    timeout: the longest wait for the others, in seconds.
  """
  address: str
  number: int
  index: int
  timeout: float = 300.


class Leader:
  """Process 0, connected to all others."""

  def __init__(self, connections: Sequence[socket.socket],
               on_loss: Callable[[LostProcess], None]) -> None:
    """Takes the connections to the processes 1, 2, …, and watches them.

    Args:
      connections: of sockets.
      on_loss: called in another thread if a process ends; it must end this process.
    """
    self._files = [connection.makefile("rwb") for connection in connections]
    self._on_loss = on_loss
    self._lock = threading.Lock()
    self._made = 0
    self._dead: list[int] = []  # Keys of arrays that nobody uses any more.
    self._is_ended = False
    for index, file in enumerate(self._files, start=1):
      threading.Thread(target=self._watch, args=(index, file), daemon=True).start()

  def arrays(self, shape: Any, layout: Any, names: Sequence[str | None] | None
             ) -> "LedArrays":
    """Makes arrays in all processes; the arguments are those of `devices.Devices`."""
    if names and any(names):
      raise checks.Error(
          f"`utils.run.mesh_devices` is {names!r}, but several processes use all their "
          "devices; leave it out.")
    self._made += 1
    made = LedArrays(self, self._made, shape, layout)
    weakref.finalize(made, self._dead.append, self._made)
    return made

  def call(self, key: int, method: str, arguments: Callable[[int], tuple[Any, ...]],
           here: Callable[[], Any]) -> Any:
    """Calls a method in each process.

    Args:
      key: of the arrays.
      method: its name.
      arguments: a function of the process's index.
      here: what this process does.

    Returns:
      the result of `here`.
    """
    with self._lock:
      dead = [self._dead.pop() for _ in range(len(self._dead))]
      for index, file in enumerate(self._files, start=1):
        _send(file, (key, method, arguments(index), dead))
      try:
        return here()
      except Exception:
        time.sleep(1)  # If another process is the reason, `_watch` ends this one.
        raise

  def end(self, is_done: bool) -> None:
    """Ends the other processes, with exit status 0 if the job is done."""
    self._is_ended = True
    for file in self._files:
      with contextlib.suppress(OSError):
        _send(file, is_done)

  def _watch(self, index, file):
    """Waits for the end of a process, or what it says before."""
    reason = "see its own output"
    with contextlib.suppress(OSError, ValueError):
      while line := file.readline():
        said = json.loads(line)
        if said is None:  # It was told to stop.
          os.kill(os.getpid(), signal.SIGTERM)
        else:
          reason = str(said)
    if not self._is_ended:
      self._on_loss(LostProcess(
          f"process {index} of {len(self._files) + 1} has ended ({reason}): start all "
          "processes again, and training continues from the newest checkpoint."))


class LedArrays:
  """The `arrays.Arrays` of process 0, whose calls the other processes follow.

  Attributes:
    devices: a `devices.Devices`.
  """

  def __init__(self, leader: Leader, key: int, shape: Any, layout: Any) -> None:
    """Finds the devices, in all processes."""
    self._leader, self._key = leader, key
    self._arrays = arrays.Arrays(shape, layout)
    self.devices = self._arrays.devices
    leader.call(key, "__init__", lambda index: (devices.flat(self.devices.shape),),
                lambda: None)

  def put(self, name: str, value: np.ndarray, parts: devices.Parts) -> None:
    """Does as `arrays.Arrays`, like the next ones."""
    self._call("put", name, value, parts, sent=lambda index: (
        name, self._part(value, parts, index), parts))

  def read(self, name: str) -> np.ndarray:
    return self._call("read", name)

  def zero_if_finite(self, name: str) -> np.float32:
    return self._call("zero_if_finite", name)

  def compile(self, program: arrays.Program) -> None:
    self._parts = program.inputs
    self._call("compile", program)

  def run(self, values: Sequence[np.ndarray]) -> Sequence[Any]:
    return self._call("run", values, sent=lambda index: ([
        self._part(value, parts, index)
        for value, parts in zip(values, self._parts, strict=True)],))

  def _call(self, method, *args, sent=None):
    """Calls a method here; `sent` returns the arguments of the process of an index."""
    return self._leader.call(self._key, method, sent or (lambda index: args),
                             lambda: getattr(self._arrays, method)(*args))

  def _part(self, value, parts, index):
    places = self.devices.sharding(parts).devices_indices_map(value.shape)
    return arrays.Part(value.shape, {
        str(place): value[place]
        for device, place in places.items() if device.process_index == index})


def leading() -> Leader | None:
  """What this process is, if it leads others."""
  return _LEADING[-1] if _LEADING else None


def is_joined() -> bool:
  """Whether JAX runs in several processes, one of which is this."""
  distributed = sys.modules.get("jax.distributed")
  # The JAX of Python 3.10 and 3.11, which other packages import, has no such function.
  return getattr(distributed, "is_initialized", bool)()


@contextlib.contextmanager
def leading_others(place: Place, on_loss: Callable[[LostProcess], None]
                   ) -> Iterator[None]:
  """Leads the other processes within a `with` block, as process 0; then all end.

  Args:
    place: of this process.
    on_loss: as for `Leader`.

  Raises:
    ValueError: a process does not fit to this one.
    LostProcess: one has not started in time.
  """
  with _serve(place) as server:
    connections = _wait(server, place)
  coordinator = f"{place.address.rpartition(':')[0]}:{_free_port()}"
  for connection in connections:
    with connection.makefile("wb") as file:
      _send(file, coordinator)
  _initialize(coordinator, place)
  leader = Leader(connections, on_loss)
  _LEADING.append(leader)
  is_done = False
  try:
    yield
    is_done = True
  finally:
    _LEADING.remove(leader)
    leader.end(is_done)


def follow(place: Place, on_loss: Callable[[LostProcess], None]) -> None:
  """Does what process 0 does, until it ends.

  Args:
    place: of this process.
    on_loss: called in another thread if process 0 ends; it must end this process.

  Raises:
    ValueError: this process does not fit to process 0.
    LostProcess: process 0 has not started in time.
  """
  connection = _connect(place)
  file = connection.makefile("rwb")
  for number in (signal.SIGINT, signal.SIGTERM):  # Process 0 ends after its step.
    signal.signal(number, lambda *args: _say(file, None))
  _say(file, {**_described(place), "index": place.index})
  coordinator = _load(file)
  if coordinator is None or not isinstance(coordinator, str):
    raise checks.Error(coordinator[0] if coordinator else (
        f"process 0 at {place.address} has ended before it began; see its own output."))
  _initialize(coordinator, place)
  logging.info("This is process %d of %d, which follows process 0.", place.index,
               place.number)
  calls: queue.Queue[Any] = queue.Queue(_WAITING)
  threading.Thread(target=_read, args=(file, calls, on_loss), daemon=True).start()
  held: dict[int, arrays.Arrays] = {}
  try:
    while (call := calls.get()) is not True:
      _do(held, *call)
  except Exception as error:
    # If the end of process 0 is the reason, `_read` comes to it and ends this one.
    with contextlib.suppress(queue.Empty):
      while True:
        calls.get(timeout=1)
    _say(file, str(error) or type(error).__name__)
    raise


def _do(held, key, method, args, dead):
  for unused in dead:
    held.pop(unused, None)
  if method == "__init__":
    held[key] = arrays.Arrays(*args)
  else:
    getattr(held[key], method)(*args)


def _read(file, calls, on_loss):
  """Reads calls; the main thread may wait in a collective when process 0 ends."""
  while (call := _load(file)) not in (None, False):
    calls.put(call)
    if call is True:
      return
  on_loss(LostProcess(
      "process 0 has ended before its job was done; see its own output, and start all "
      "processes again."))


def _serve(place):
  host, _, port = place.address.rpartition(":")
  is_here = host in ("localhost", "127.0.0.1")
  try:
    server = socket.create_server((host if is_here else "", int(port)))
  except (OSError, ValueError, OverflowError) as error:
    raise checks.Error(
        f"`synthesizer_processes.coordinator_address` is {place.address!r}, but "
        f"process 0 cannot serve there ({error}): name this machine, as in "
        "'host:1234', and a free port.") from error
  return server


def _wait(server, place):
  """The connections to the processes 1, 2, …, once all have come."""
  deadline, come = time.monotonic() + place.timeout, {}
  logging.info("This is process 0 of %d, waiting at %s for the others.", place.number,
               place.address)
  while missing := set(range(1, place.number)) - set(come):
    server.settimeout(max(.01, deadline - time.monotonic()))
    try:
      connection, _ = server.accept()
      connection.settimeout(max(.01, deadline - time.monotonic()))
      with connection.makefile("rb", buffering=0) as file:
        said = json.loads(file.readline())
    except TimeoutError:
      raise LostProcess(
          f"process {min(missing)} of {place.number} has not started within "
          f"{place.timeout:g} seconds (`synthesizer_processes.timeout_seconds`): start "
          f"the same command with `synthesizer_processes.process_id = {min(missing)}`."
          ) from None
    except (OSError, ValueError):  # Somebody else.
      continue
    _keep(connection)
    index = said.pop("index", None)
    if said != _described(place) or index not in missing:
      sentence = (
          f"a process says that it is {index} of {said.get('number')} with jax "
          f"{said.get('jax')}, but process 0 waits for one of {sorted(missing)} of "
          f"{place.number} with jax {_described(place)['jax']}: start each once, with "
          "the same `synthesizer_processes.num_processes`.")
      for refused in (connection, *come.values()):
        with refused.makefile("wb") as file:
          _send(file, [sentence])
      raise checks.Error(sentence)
    come[index] = connection
  return [come[index] for index in sorted(come)]


def _described(place):
  """What must be the same in all processes."""
  import jax

  return {"number": place.number, "jax": jax.__version__}


def _connect(place):
  host, _, port = place.address.rpartition(":")
  deadline = time.monotonic() + place.timeout
  while True:
    try:
      return _keep(socket.create_connection((host, int(port)), timeout=_SILENCE[0]))
    except (OSError, ValueError, OverflowError) as error:
      if time.monotonic() > deadline:
        raise LostProcess(
            f"process 0 does not answer at {place.address!r} "
            "(`synthesizer_processes.coordinator_address`) within "
            f"{place.timeout:g} seconds (`synthesizer_processes.timeout_seconds`), "
            f"{error}: start the same command there, with "
            "`synthesizer_processes.process_id = 0`.") from None
      time.sleep(_PERIOD)


def _keep(connection):
  """Makes a connection end some time after the other machine is lost."""
  connection.settimeout(None)
  for option, value in zip(
      ("SO_KEEPALIVE", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), (1, *_SILENCE)):
    level = socket.SOL_SOCKET if option[0] == "S" else socket.IPPROTO_TCP
    if hasattr(socket, option):
      connection.setsockopt(level, getattr(socket, option), value)
  return connection


def detected(timeout: float) -> Place:
  """The place that JAX finds, as on TPUs and under Slurm, Open MPI or Kubernetes.

  Raises:
    ValueError: JAX finds no other processes.
  """
  import jax
  from jax.experimental import multihost_utils

  jax.config.update("jax_enable_preemption_service", False)  # It takes SIGTERM.
  try:
    jax.distributed.initialize(initialization_timeout=int(timeout))
  except (ValueError, RuntimeError) as error:
    raise checks.Error(
        '`synthesizer_processes.coordinator_address` is "auto", but JAX finds no '
        f"processes here ({str(error).splitlines()[0].rstrip('.')}): write it as "
        "'host:1234', the machine of process 0 and a free port there, and bind "
        "`num_processes` and `process_id`, too.") from error
  own = f"{socket.getfqdn()}:{_free_port()}".encode()
  address = multihost_utils.broadcast_one_to_all(
      np.frombuffer(own.ljust(_LONGEST, b"\0"), np.uint8))
  return Place(bytes(address).rstrip(b"\0").decode(), jax.process_count(),
               jax.process_index(), timeout)


def _initialize(coordinator, place):
  """Starts JAX in all processes, unless `detected` has."""
  import jax

  if is_joined():
    return
  jax.config.update("jax_enable_preemption_service", False)  # It takes SIGTERM.
  port = coordinator.rpartition(":")[2]
  bind = coordinator if coordinator.startswith(("localhost:", "127.0.0.1:")) else (
      f"[::]:{port}")
  jax.distributed.initialize(
      coordinator, place.number, place.index, cluster_detection_method="deactivate",
      initialization_timeout=int(place.timeout), coordinator_bind_address=bind)
  jax.devices()  # Which finds the devices of all processes, and waits for these.
  # JAX aborts the others at once when process 0 is lost. C's abort calls sleep(6) now,
  # as 6 is the signal's number, and `_read` ends the process with its sentence.
  libc = ctypes.CDLL(None)
  libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _free_port():
  with socket.socket() as s:
    s.bind(("", 0))
    return s.getsockname()[1]


def _send(file, message):
  pickle.dump(message, file, protocol=pickle.HIGHEST_PROTOCOL)
  file.flush()


def _load(file):
  """The next message of process 0; None once it has ended."""
  with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
    return pickle.load(file)
  return None


def _say(file, message):
  """Tells process 0 something, in JSON: it reads nothing that could run code."""
  with contextlib.suppress(OSError):
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()
