"""Runs one command with its output in a log file and its steps as a bar."""

import ctypes
import pathlib
import re
import signal
import subprocess
import sys
import time

import tqdm

# What a training step and a perplexity evaluation print.
_STEP = re.compile(rb"tf_loss\[[^\]]*\]\[(\d+)\]|Evaluation \[(\d+)/\d+\]")
_POLL_SECONDS = 0.5
_TAIL_LINES = 25


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
  log.parent.mkdir(parents=True, exist_ok=True)
  with open(log, "ab") as out, open(log, "rb") as lines:
    lines.seek(0, 2)
    process = subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None)
    try:
      with _bar(title, steps) as bar:
        _follow(process, lines, bar, steps)
    finally:
      _stop(process)
  if process.returncode:
    raise CommandError(
        f"{title} ended with status {process.returncode}. The last lines of "
        f"{log}:\n\n{tail(log)}")


def _end_with_parent():
  """Asks Linux to end this process when the one that started it is killed.

  Else a killed command would go on beside the one that is started again.
  """
  set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
  ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _bar(title, steps):
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


def _follow(process, lines, bar, steps):
  """Moves the bar to the last step in the log until the process ends."""
  rest, resumed = b"", False
  while True:
    ended = process.poll() is not None
    whole, newline, rest = (rest + lines.read()).rpartition(b"\n")
    found = [int(a or b) for a, b in _STEP.findall(whole + newline) if steps]
    if found and not resumed:  # An earlier run did these steps.
      bar.initial = bar.n = max(0, min(found) - 1 - steps.start)
      resumed = True
    if ended and steps and not process.returncode:
      found = [steps.stop]
    if found:
      bar.update(max(found) - steps.start - bar.n)
    if sys.stdout.isatty():
      bar.refresh()  # For the clock.
    if ended:
      return
    time.sleep(_POLL_SECONDS)


def _stop(process):
  """Ends a process that still runs, as after Ctrl-C."""
  if process.poll() is None:
    process.terminate()
    try:
      process.wait(timeout=10)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


def tail(log: pathlib.Path, count: int = _TAIL_LINES) -> str:
  """Returns the last lines of a log file."""
  text = log.read_text(encoding="utf-8", errors="replace")
  return "\n".join(text.splitlines()[-count:])
