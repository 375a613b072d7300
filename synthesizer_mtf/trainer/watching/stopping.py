"""Ctrl-C, SIGTERM and SIGHUP end a training after its step, with a checkpoint."""

from collections.abc import Iterator
import contextlib
import os
import signal
import threading
from types import FrameType

from synthesizer_mtf.trainer.watching import callbacks

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OURS = [False]  # Whether the process runs our command, and nothing else.


def own_process() -> None:
  """Lets a second Ctrl-C end this process at once, even in the middle of a step.

  A kernel, a shell or a script in which `MtfModel` trains belongs to its user, with all
  that is in it.
  """
  _OURS[0] = True


def _work():
  """What the user repeats to go on."""
  return "command" if _OURS[0] else "call"


def _at_once():
  return f"Stopped at once; the same {_work()} continues from the last checkpoint."


class Stopped(KeyboardInterrupt):
  """A signal has ended the work.

  Attributes:
    number: the number of the signal.
  """

  def __init__(self, message: str, number: int):
    """Takes the message that the user reads, and the signal's number."""
    super().__init__(message)
    self.number = number


def stop(number: int, frame: FrameType | None) -> None:
  """A handler of signals that ends the work at once, by raising `Stopped`."""
  del frame
  raise Stopped("Stopped.", number)


class StopAfterStep(callbacks.Callback):
  """Ends a training after the current step if a signal arrives.

  The estimator then writes a checkpoint, as at the end of every training. A signal
  before the first step stops the training at once. A second Ctrl-C does the same: it
  ends the command's process, and raises `Stopped` in any other, which Python does once
  TensorFlow has finished the step. A second SIGTERM does not, as clusters repeat it and
  command runners send it after Ctrl-C. SIGHUP comes from a terminal that was closed.
  """

  def __init__(self) -> None:
    """Starts without a signal and before the first step."""
    self._number: int | None = None
    self._last_step: int | None = None
    self._at_work = self._is_interrupted = self._ends_at_once = False

  @contextlib.contextmanager
  def around(self, training: callbacks.Training) -> Iterator[None]:
    """Listens for signals; raises `Stopped` after the end of the training."""
    self._training = training
    if threading.current_thread() is not threading.main_thread():
      yield  # Only the main thread gets signals.
      return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
      if handler != signal.SIG_IGN:  # nohup ignores signals.
        signal.signal(number, self._note)
    try:
      with self._watching():
        yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
    if self._number is not None:
      raise Stopped(f"Stopped at step {self._last_step}; the same {_work()} continues "
                    "from there.", self._number)

  def _note(self, number, frame):
    del frame
    self._number = self._number or number
    self._training.end()
    if number == signal.SIGINT:
      self._ends_at_once = self._ends_at_once or self._is_interrupted
      self._is_interrupted = True
    # Python ignores exceptions in callbacks, such as gc's. So hooks raise again.
    if not self._at_work:
      self._stop_at_once(self._number)
    self._raise_if_interrupted_again()

  def _raise_if_interrupted_again(self):
    if self._ends_at_once:
      raise Stopped(_at_once(), signal.SIGINT)

  def _stop_at_once(self, number):
    raise Stopped(f"Stopped before the first step; the same {_work()} starts again.",
                  number)

  @contextlib.contextmanager
  def _watching(self):
    """Answers signals during a step; Python calls handlers only after the step."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=self._answer, args=[reader], daemon=True)
    thread.start()
    try:
      yield
    finally:
      signal.set_wakeup_fd(before)
      os.close(writer)
      thread.join()
      os.close(reader)

  def _answer(self, reader):
    """Reads the numbers of signals until the pipe is closed."""
    has_said = interrupted = False
    while number := os.read(reader, 1):
      if number[0] not in _SIGNALS:
        continue
      if interrupted and number[0] == signal.SIGINT:
        self._ends_at_once = True  # Python's handler may see two signals as one.
        if _OURS[0]:
          _say(_at_once())
          os._exit(128 + signal.SIGINT)
      interrupted = interrupted or number[0] == signal.SIGINT
      if self._at_work and not has_said:
        has_said = True
        again = "Ctrl-C again" if _OURS[0] else "another interrupt"
        _say(f"Stopping after this step, with a checkpoint; {again} stops at once.")

  def on_start(self, training: callbacks.Training) -> None:
    if self._number is not None and not self._at_work:
      self._stop_at_once(self._number)
    self._at_work = True

  def on_step(self, training: callbacks.Training) -> None:
    self._raise_if_interrupted_again()

  def on_end(self, training: callbacks.Training) -> None:
    self._last_step = training.step


def _say(text):
  with contextlib.suppress(OSError):  # The terminal may be closed.
    os.write(2, f"\n{text}\n".encode())
