"""Runs one command with its output in a log file and its steps as a bar."""

import ctypes
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

from synthesizer_mtf.runs import shares
import tqdm

# The progress lines of training and of perplexity evaluation.
_STEP = re.compile(rb"tf_loss\[[^\]]*\]\[(\d+)\]|Evaluation \[(\d+)/\d+\]")
POLL_SECONDS = 0.5
_STOP_SECONDS = 10
_TAIL_LINES = 25
_EVERYTHING = shares.Share()


class CommandError(Exception):
  """A command failed; the message holds the end of its log."""


def run(command: list[str], log: pathlib.Path, title: str,
        steps: range | None = None) -> None:
  """Runs a command and waits for its end.

  Args:
    command: a list of strings.
    log: a `pathlib.Path`; the output is appended to it.
    title: a string, in front of the progress bar.
    steps: a range of steps; None for a clock without steps.

  Raises:
    CommandError: the exit status is not 0.
  """
  Running(command, log, title, steps).wait()


class Running:
  """A running command.

  Attributes:
    log: the file of its output.
    steps: a range of steps, or None.
    before: the number of its steps that were done before it started.
    done: the number of its steps that are done now, including `before`.
  """

  def __init__(self, command: list[str], log: pathlib.Path, title: str,
               steps: range | None = None,
               share: shares.Share = _EVERYTHING) -> None:
    """Starts the command; see `run`. `share` is its share of the machine."""
    self.before = self.done = 0
    self.log, self.steps, self._title = log, steps, title
    self._rest, self._resumed = b"", False
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
      self._offset = out.tell()
      self._process = subprocess.Popen(
          command, stdout=out, stderr=subprocess.STDOUT,
          stdin=subprocess.DEVNULL, env={
              # Keeps both streams in order, so the last line is the error.
              **os.environ, "PYTHONUNBUFFERED": "1", **share.environment},
          preexec_fn=functools.partial(_prepare, share.cores)
          if sys.platform == "linux" else None)

  def wait(self, stopped: threading.Event | None = None, draw: bool = True) -> None:
    """Waits for the end of the command, and ends it if interrupted.

    Args:
      stopped: an event that ends the command once it is set.
      draw: whether a bar shows the steps.

    Raises:
      CommandError: the exit status is not 0.
    """
    stopped = stopped or threading.Event()
    shown = bar(self._title, self.steps) if draw else None
    try:
      while self.goes_on() and not stopped.wait(POLL_SECONDS):
        self._show(shown)
      self._show(shown)
    finally:
      self._end()
      if shown is not None:
        shown.close()
    self._check()

  def goes_on(self) -> bool:
    """Whether the command still runs; also reads new lines of its log."""
    ended = self._process.poll() is not None
    found = [int(a or b) for a, b in _STEP.findall(self._new_lines())]
    if self.steps:
      self._count(found)
      if ended and not self._process.returncode:
        self.done = len(self.steps)
    return not ended

  def _new_lines(self):
    with open(self.log, "rb") as lines:
      lines.seek(self._offset)
      text = self._rest + lines.read()
      self._offset = lines.tell()
    whole, newline, self._rest = text.rpartition(b"\n")
    return whole + newline

  def _count(self, found):
    if found and not self._resumed:  # An earlier run did these steps.
      self.before = max(0, min(found) - 1 - self.steps.start)
      self._resumed = True
    if found:
      self.done = max(found) - self.steps.start

  def _show(self, bar):
    """Moves a bar, if there is one, to the last step in the log."""
    if bar is None:
      return
    if bar.initial != self.before:
      bar.initial = bar.n = self.before
    if bar.n != self.done:
      bar.update(self.done - bar.n)
    if sys.stdout.isatty():
      bar.refresh()  # Updates the clock.

  def _end(self):
    """Ends the command if it still runs, such as after Ctrl-C."""
    self._process.terminate()
    try:
      self._process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def _check(self):
    if self._process.returncode:
      raise CommandError(
          f"{self._title} ended with status {self._process.returncode}. The "
          f"last lines of {self.log}:\n\n{tail(self.log)}")


def _prepare(cores):
  """Prepares a new process before it becomes the command."""
  # Asks Linux to end the process if its parent is killed. Otherwise the command would
  # keep running next to its restart.
  set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
  ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
  if cores:
    os.sched_setaffinity(0, cores)


def bar(title: str, steps: range | None) -> tqdm.tqdm:
  """A tqdm bar; without a terminal to redraw it, only its start and end."""
  terminal = sys.stdout.isatty()
  form = ("{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
          "[{elapsed}<{remaining}]")
  # Some terminals, such as in containers, report a size of 0.
  return tqdm.tqdm(
      desc=f"{title:<16}", total=len(steps) if steps else None,
      file=sys.stdout, ncols=76, nrows=24,
      bar_format=form if steps else "{desc} [{elapsed}]",
      mininterval=0.5 if terminal else 1e6, maxinterval=1 if terminal else 1e6)


def tail(log: pathlib.Path, count: int = _TAIL_LINES) -> str:
  """Returns the last lines of a log file."""
  text = log.read_text(encoding="utf-8", errors="replace")
  return "\n".join(text.splitlines()[-count:])
