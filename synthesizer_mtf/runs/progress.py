"""One line for a whole queue: its runs, its steps, and the time left."""

import dataclasses
import shutil
import sys
import time
from typing import Any

from synthesizer_mtf.runs import commands
from synthesizer_mtf.runs import process
from synthesizer_mtf.training import checkpoints
import tqdm

_FORM = ("{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} steps "
         "[{elapsed}, {remaining} left]")
_SECONDS_BETWEEN_LINES = 180


@dataclasses.dataclass(eq=False)
class Job:
  """A run in the queue.

  Attributes:
    run: see `queue.Run`.
    stages: its stages, of which those before `position` are done.
    running: the one at work, or None.
    ended: whether nothing of it is left to do.
    reason: why it failed, or None.
    is_announced: whether it has been printed that it begins.
  """
  run: Any
  stages: list[commands.Stage]
  position: int = 0
  running: process.Running | None = None
  ended: bool = False
  reason: str | None = None
  is_announced: bool = False

  def announce(self) -> bool:
    """Notes that its begin is printed; returns whether that is to be done."""
    is_new, self.is_announced = not self.is_announced, True
    return is_new

  def set_running(self, running: process.Running | None) -> None:
    """Notes what is at work."""
    self.running = running

  def advance(self) -> bool:
    """Goes to the next stage; returns whether there is one."""
    self.position += 1
    return self.position < len(self.stages)

  def end(self, reason: str | None) -> None:
    """Notes that nothing is left to do, and why, where it has failed."""
    self.ended, self.reason = True, reason

  @property
  def is_open(self) -> bool:
    """Whether it has something to do and is not at it."""
    return not self.ended and self.running is None


class Progress:
  """The line."""

  def __init__(self, jobs: list[Job], alone: bool) -> None:
    """Finds out what is done already.

    Args:
      jobs: all runs.
      alone: whether nothing else is drawn on the terminal: then the line is
        drawn anew all the time.
    """
    self._jobs = jobs
    self._alone = alone
    self._drawn = alone and sys.stdout.isatty()
    # Steps by the log of a stage: (before this queue, now).
    self._steps = {stage.log: _steps_done(stage) for job in jobs
                   for stage in job.stages if stage.steps}
    self._start = time.monotonic()
    self._next_line = self._start + _SECONDS_BETWEEN_LINES
    # Some terminals, as in containers, say that they have no columns and rows.
    self._columns = shutil.get_terminal_size().columns if self._drawn else None
    # The line is text to tqdm, which draws it below what else is printed.
    self._drawing = tqdm.tqdm(
        desc=self._text(), bar_format="{desc}", file=sys.stdout, nrows=24,
        ncols=self._columns, disable=not self._drawn)

  def count(self, stage: commands.Stage, running: process.Running) -> None:
    """Remembers the steps of a stage."""
    if stage.steps:
      self._steps[stage.log] = running.before, running.done

  def show(self) -> None:
    """Draws the line anew, or prints one now and then."""
    if self._drawn:
      self._drawing.set_description_str(self._text())
    elif self._alone and time.monotonic() > self._next_line:
      self.line()

  def line(self) -> None:
    """Prints the line, if it is not drawn all the time."""
    if not self._drawn:
      print(self._text(), flush=True)
      self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

  def close(self) -> None:
    """Draws the line for the last time."""
    self.show()
    self._drawing.close()

  def _text(self):
    for job in self._jobs:
      if job.running:
        self.count(job.stages[job.position], job.running)
    before, done = map(sum, zip((0, 0), *self._steps.values()))
    return tqdm.tqdm.format_meter(
        done, self._total(), time.monotonic() - self._start, initial=before,
        prefix=self._runs(), bar_format=_FORM, ascii=not self._drawn,
        ncols=self._columns)

  def _total(self):
    """All steps, of which a run that has failed does no more."""
    wanted = {stage.log: len(stage.steps) for job in self._jobs
              for stage in job.stages if stage.steps and not job.reason}
    return sum(wanted.get(log, done) for log, (_, done) in self._steps.items())

  def _runs(self):
    failed = sum(job.reason is not None for job in self._jobs)
    done = sum(job.ended for job in self._jobs) - failed
    running = sum(job.running is not None for job in self._jobs)
    return (f"{done} of {len(self._jobs)} runs done" +
            f", {running} running" * bool(running) +
            f", {failed} failed" * bool(failed) + ":")


def _steps_done(stage):
  """(steps before this queue, steps now) of a stage that nobody is at."""
  try:
    done = len(stage.steps) if stage.is_done() else 0
  except checkpoints.DamagedError:  # The queue says so when it comes to it.
    done = 0
  return done, done
