"""Runs one command with its output in a log file and its steps as a bar."""

import ctypes
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from synthesizer_mtf.runs import shares
import tqdm

# What a training step and a perplexity evaluation print.
_STEP = re.compile(rb"tf_loss\[[^\]]*\]\[(\d+)\]|Evaluation \[(\d+)/\d+\]")
POLL_SECONDS = 0.5
_STOP_SECONDS = 10
_TAIL_LINES = 25
_EVERYTHING = shares.Share()


class CommandError(Exception):
  """A command failed; the message holds the end of its log."""


def run(command: list[str], log: pathlib.Path, title: str,
        steps: range | None = None) -> None:
  """Runs a command and waits for it, whatever way it ends.

  Args:
    command: a list of strings.
    log: a `pathlib.Path`; the output is added to what it holds.
    title: a string, in front of the progress bar.
    steps: a range of steps; None for a clock without steps.

  Raises:
    CommandError: it ends with a status other than 0.
  """
  running = Running(command, log, title, steps)
  try:
    with bar(title, steps) as shown:
      while running.goes_on():
        running.show(shown)
        time.sleep(POLL_SECONDS)
      running.show(shown)
  finally:
    stop([running])
  running.check()


class Running:
  """A command at work.

  Attributes:
    before: how many of its steps were done before it was started.
    done: how many are done now, with those before.
  """

  def __init__(self, command: list[str], log: pathlib.Path, title: str,
               steps: range | None = None,
               share: shares.Share = _EVERYTHING) -> None:
    """Starts the command; see `run`. `share` is what it may use."""
    self.before = self.done = 0
    self._log, self._title, self._steps = log, title, steps
    self._rest, self._resumed = b"", False
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
      self._offset = out.tell()
      self._process = subprocess.Popen(
          command, stdout=out, stderr=subprocess.STDOUT,
          stdin=subprocess.DEVNULL, env={
              # Its two streams in order: the last line is why it failed.
              **os.environ, "PYTHONUNBUFFERED": "1", **share.environment},
          preexec_fn=functools.partial(_prepare, share.cores)
          if sys.platform == "linux" else None)

  def goes_on(self) -> bool:
    """Whether the command has not ended; reads what is new in its log."""
    ended = self._process.poll() is not None
    found = [int(a or b) for a, b in _STEP.findall(self._new_lines())]
    if self._steps:
      self._count(found)
      if ended and not self._process.returncode:
        self.done = len(self._steps)
    return not ended

  def _new_lines(self):
    with open(self._log, "rb") as lines:
      lines.seek(self._offset)
      text = self._rest + lines.read()
      self._offset = lines.tell()
    whole, newline, self._rest = text.rpartition(b"\n")
    return whole + newline

  def _count(self, found):
    if found and not self._resumed:  # An earlier run did these steps.
      self.before = max(0, min(found) - 1 - self._steps.start)
      self._resumed = True
    if found:
      self.done = max(found) - self._steps.start

  def show(self, bar: tqdm.tqdm) -> None:
    """Moves a bar to the last step in the log."""
    if bar.initial != self.before:
      bar.initial = bar.n = self.before
    if bar.n != self.done:
      bar.update(self.done - bar.n)
    if sys.stdout.isatty():
      bar.refresh()  # For the clock.

  def check(self) -> None:
    """Raises a CommandError if the command has failed."""
    if self._process.returncode:
      raise CommandError(
          f"{self._title} ended with status {self._process.returncode}. The "
          f"last lines of {self._log}:\n\n{tail(self._log)}")


def _prepare(cores):
  """What a new process does before it becomes the command."""
  # Asks Linux to end it when the one that started it is killed. Else a killed
  # command would go on beside the one that is started again.
  set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
  ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
  if cores:
    os.sched_setaffinity(0, cores)


def bar(title: str, steps: range | None) -> tqdm.tqdm:
  """A tqdm bar; where no terminal can redraw it, its start and its end only."""
  terminal = sys.stdout.isatty()
  form = ("{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
          "[{elapsed}<{remaining}]")
  # Some terminals, as in containers, say that they have no columns and rows.
  return tqdm.tqdm(
      desc=f"{title:<16}", total=len(steps) if steps else None,
      file=sys.stdout, ncols=76, nrows=24,
      bar_format=form if steps else "{desc} [{elapsed}]",
      mininterval=0.5 if terminal else 1e6, maxinterval=1 if terminal else 1e6)


def stop(commands: list[Running]) -> None:
  """Ends those that still run, as after Ctrl-C, all at the same time."""
  alive = [c._process for c in commands if c._process.poll() is None]
  for process in alive:
    process.terminate()
  deadline = time.monotonic() + _STOP_SECONDS
  for process in alive:
    try:
      process.wait(timeout=max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


def tail(log: pathlib.Path, count: int = _TAIL_LINES) -> str:
  """Returns the last lines of a log file."""
  text = log.read_text(encoding="utf-8", errors="replace")
  return "\n".join(text.splitlines()[-count:])
