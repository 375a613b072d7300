"""Runs of several stages each, some at the same time.

One thread starts the commands and looks after them. A free place in the queue
takes the first run whose next stage nobody else is at: so a stage that two runs
share, which is one with the same log, is done once.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import re
import signal
import sys
import time
from typing import NamedTuple
from typing import Protocol

from synthesizer_mtf.runs import commands
from synthesizer_mtf.runs import process
from synthesizer_mtf.runs import progress
from synthesizer_mtf.runs import shares
from synthesizer_mtf.training import checkpoints
import tqdm


class Run(Protocol):
  """What waits in the queue."""
  name: str
  task: str

  def stages(self) -> list[commands.Stage]:
    """The stages, in order."""


class _Work(NamedTuple):
  """A stage at work; `bar` is None where one line shows the whole queue."""
  job: progress.Job
  stage: commands.Stage
  share: shares.Share
  running: process.Running
  bar: tqdm.tqdm | None


def run(runs: Sequence[Run], places: list[shares.Share],
        on_finished: Callable[[Run, str | None], None]) -> None:
  """Does what is not done, and goes on where something fails.

  Ctrl-C and SIGTERM end all commands and raise KeyboardInterrupt.

  Args:
    runs: see `Run`.
    places: a share of the machine for each run at a time.
    on_finished: is called after each run with the run and the reason why it
      failed, or None.
  """
  with _like_ctrl_c(signal.SIGTERM):
    _Queue(runs, places, on_finished).run()


@contextlib.contextmanager
def _like_ctrl_c(number: int) -> Iterator[None]:
  before = signal.signal(number, signal.default_int_handler)
  try:
    yield
  finally:
    signal.signal(number, before)


class _Queue:
  """See `run`."""

  def __init__(self, runs, places, on_finished):
    self._jobs = [progress.Job(run, run.stages()) for run in runs]
    self._free = list(places)
    self._one = len(places) == 1
    self._on_finished = on_finished
    self._works = []
    self._reasons = {}  # Why a stage failed, by its log.
    self._progress = progress.Progress(self._jobs, alone=not self._one)

  def run(self):
    try:
      while self._fill():
        time.sleep(process.POLL_SECONDS)
        for work in list(self._works):
          self._look_after(work)
        self._progress.show()
    finally:
      process.stop([work.running for work in self._works])
      for bar in filter(None, [work.bar for work in self._works]):
        bar.close()
      self._progress.close()

  def _fill(self):
    """Gives work to free places; returns whether there is any."""
    while self._free and (job := self._startable()):
      self._start(job)
    return bool(self._works)

  def _startable(self):
    """The first run that has something to do now, or None."""
    return next((job for job in self._jobs if self._goes_on(job)), None)

  def _goes_on(self, job):
    """Whether the next stage of a run can start; ends runs that have none."""
    busy = {work.stage.log for work in self._works}
    while job.is_open and job.stages[job.position].log not in busy:
      stage = job.stages[job.position]
      self._announce(job)
      if self._is_done(stage):
        _say(f"{stage.title}: done before")
        self._advance(job)
      elif stage.log in self._reasons:
        self._end(job, self._reasons[stage.log])
      else:
        return True
    return False

  def _is_done(self, stage):
    try:
      return stage.is_done()
    except checkpoints.DamagedError as error:
      self._note(stage, error)
      return False

  def _announce(self, job):
    if job.announce():
      _say(f"\n{job.run.name} on {job.run.task}: run "
           f"{self._jobs.index(job) + 1} of {len(self._jobs)}")

  def _start(self, job):
    stage, share = job.stages[job.position], self._free.pop(0)
    _say(f"\n{commands.shown(stage.command)}")
    running = stage.start(share)
    bar = process.bar(stage.title, stage.steps) if self._one else None
    self._works.append(_Work(job, stage, share, running, bar))
    job.set_running(running)

  def _look_after(self, work):
    """Shows how far a stage is; when it has ended, its run goes on."""
    goes_on = work.running.goes_on()
    if work.bar is not None:
      work.running.show(work.bar)
    if goes_on:
      return
    if work.bar is not None:
      work.bar.close()
    self._works.remove(work)
    self._free.append(work.share)
    self._progress.count(work.stage, work.running)
    work.job.set_running(None)
    try:
      work.running.check()
      work.stage.check()
    except (process.CommandError, checkpoints.DamagedError) as error:
      self._note(work.stage, error)
      self._end(work.job, self._reasons[work.stage.log])
    else:
      self._advance(work.job)

  def _advance(self, job):
    if not job.advance():
      self._end(job, None)

  def _note(self, stage, error):
    _say(str(error), sys.stderr)
    self._reasons[stage.log] = _reason(str(error))

  def _end(self, job, reason):
    job.end(reason)
    self._on_finished(job.run, reason)
    self._progress.line()


def _reason(message):
  """The last line of a log that says something."""
  lines = [line for line in message.splitlines() if re.search(r"\w", line)]
  return lines[-1].strip()


def _say(text, stream=None):
  """Prints beside a line that is redrawn."""
  tqdm.tqdm.write(text, file=stream or sys.stdout)
  (stream or sys.stdout).flush()
