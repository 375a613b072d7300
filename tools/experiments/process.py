"""Runs one command with its output in a log file and its steps as a bar."""

import ctypes
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys

from synthesizer_mtf.tools.experiments import shares
import tqdm

# The progress lines of training and of perplexity evaluation.
_STEP = re.compile(rb"tf_loss\[[^\]]*\]\[(\d+)\]|Evaluation \[(\d+)/\d+\]")
POLL_SECONDS = 0.5
_STOP_SECONDS = 10  # For a checkpoint of a small model, after SIGTERM.
_TAIL_LINES = 25  # A message and its traceback fit on a terminal.


class CommandError(Exception):
  """A command failed; the message holds the end of its log."""


class Running:
  """A running command, with a progress bar.

  Attributes:
    log: the file of its output.
    steps: a range of steps, or None.
    before: the number of its steps that were done before it started.
    done: the number of its steps that are done now, including `before`.
  """

  def __init__(self, command: list[str], log: pathlib.Path, title: str,
               steps: range | None, share: shares.Share, draw: bool) -> None:
    """Starts the command.

    Args:
      log: a `pathlib.Path`; the output is appended to it.
      title: a string, in front of the progress bar.
      steps: a range of steps; None for a clock without steps.
      share: the command's share of the machine.
      draw: whether the bar is shown.
    """
    self.before = self.done = 0
    self.log, self.steps, self._title = log, steps, title
    self._bar = _bar(title, steps, draw)
    self._rest = b""
    self._first: int | None = None
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
      self._offset = out.tell()
      self._process = subprocess.Popen(
          command, stdout=out, stderr=subprocess.STDOUT,
          stdin=subprocess.DEVNULL, env={
              # Keeps both streams in order, so the last line is the error.
              **os.environ, "PYTHONUNBUFFERED": "1", **share.environment},
          preexec_fn=functools.partial(_prepare, share.cores))

  def goes_on(self) -> bool:
    """Whether the command still runs; reads new lines of its log, and moves the bar."""
    ended = self._process.poll() is not None
    steps = [int(a or b) for a, b in _STEP.findall(self._new_lines())]
    if self.steps and steps:
      if self._first is None:  # An earlier run did the steps before this one.
        self._first = min(steps)
        self.before = max(0, self._first - 1 - self.steps.start)
      self.done = max(steps) - self.steps.start
    if self.steps and ended and not self._process.returncode:
      self.done = len(self.steps)
    self._bar.initial, self._bar.n = self.before, self.done
    if sys.stdout.isatty():
      self._bar.refresh()  # Also updates the clock.
    return not ended

  def _new_lines(self):
    with open(self.log, "rb") as lines:
      lines.seek(self._offset)
      text = self._rest + lines.read()
      self._offset = lines.tell()
    whole, newline, self._rest = text.rpartition(b"\n")
    return whole + newline

  def stop(self) -> None:
    """Asks the command to end, such as after Ctrl-C."""
    self._process.terminate()

  def end(self) -> None:
    """Ends the command if it still runs, and the bar."""
    self.stop()
    try:
      self._process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self._bar.close()

  def check(self) -> None:
    """Raises a `CommandError` if the exit status is not 0."""
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


def _bar(title, steps, draw):
  """A tqdm bar, which draws its start and its end."""
  form = ("{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
          "[{elapsed}<{remaining}]")
  # Some terminals, such as in containers, report a size of 0.
  return tqdm.tqdm(
      desc=f"{title:<16}", total=len(steps) if steps else None,
      file=sys.stdout, ncols=76, nrows=24, disable=not draw,
      bar_format=form if steps else "{desc} [{elapsed}]")


def tail(log: pathlib.Path) -> str:
  """Returns the last lines of a log file."""
  text = log.read_text(encoding="utf-8", errors="replace")
  return "\n".join(text.splitlines()[-_TAIL_LINES:])
