"""Runs of several stages each, some at the same time.

A free share of the machine takes the first run whose next stage is not running already.
If two runs have a stage in common, with the same log, the stage runs once.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import re
import signal
import sys
import time
from typing import NamedTuple
from typing import Protocol

from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.tools.experiments import progress
from synthesizer_mtf.tools.experiments import shares
from synthesizer_mtf.trainer.checkpoints import complete
import tqdm


class Run(Protocol):
  """A run that waits in the queue."""
  task: str

  @property
  def name(self) -> str:
    """The name of the run in messages."""

  def stages(self) -> list[pipeline.Stage]:
    """The stages, in order."""


class _Work(NamedTuple):
  """A running stage of a run, with its share of the machine."""
  run: Run
  stage: pipeline.Stage
  share: shares.Share
  running: process.Running


def run(runs: Sequence[Run], machine_shares: Sequence[shares.Share],
        on_finished: Callable[[Run, str | None], None]) -> None:
  """Runs all stages that are not done; other runs continue if one fails.

  Ctrl-C, SIGTERM, and SIGHUP of a closed terminal, end all commands and raise
  KeyboardInterrupt.

  Args:
    runs: see `Run`.
    machine_shares: a share of the machine for each simultaneous run.
    on_finished: a function that is called after each run, with the run and the reason
      of its failure, or None.
  """
  before = {number: signal.getsignal(number)
            for number in (signal.SIGTERM, signal.SIGHUP)}
  for number, handler in before.items():
    if handler != signal.SIG_IGN:  # nohup ignores SIGHUP.
      signal.signal(number, signal.default_int_handler)
  try:
    _Queue(runs, machine_shares, on_finished).run()
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


class _Queue:
  """The state of a queue; see `run`."""

  def __init__(self, runs, machine_shares, on_finished):
    self._stages = {run: run.stages() for run in runs}
    self._left = {run: list(stages) for run, stages in self._stages.items()}
    self._ended = {}  # The reason of each run's failure, or None.
    self._reasons = {}  # The reason of each stage's failure, by its log.
    self._works = []  # A `_Work` for each running stage.
    self._free = list(machine_shares)
    self._one = len(machine_shares) == 1
    self._on_finished = on_finished
    self._progress = progress.Progress(
        self._stages, self._ended, alone=not self._one)

  def run(self):
    with contextlib.closing(self._progress):
      try:
        while self._fill():
          time.sleep(process.POLL_SECONDS)
          for work in [work for work in self._works if not work.running.goes_on()]:
            self._finish(work)
          self._progress.show(self._running())
      finally:
        for running in self._running():
          running.stop()  # Stops all before waiting for any.
        for running in self._running():
          running.end()

  def _running(self):
    return [work.running for work in self._works]

  def _fill(self):
    """Uses the free shares; returns whether any stage runs."""
    while self._free and (run := next(filter(self._goes_on, self._left), None)):
      stage, share = self._left[run][0], self._free.pop(0)
      _say(f"\n{pipeline.shown(stage.command)}")
      self._works.append(_Work(run, stage, share, stage.start(share, self._one)))
    return bool(self._works)

  def _goes_on(self, run):
    """Whether a run has a stage to start; skips done stages, and may end the run."""
    busy = {work.stage.log for work in self._works}
    while run not in self._ended and self._left[run][0].log not in busy:
      stage = self._left[run][0]
      if stage is self._stages[run][0]:
        _say(f"\n{run.name} on {run.task}: run {list(self._stages).index(run) + 1} "
             f"of {len(self._stages)}")
      if self._is_done(stage):
        _say(f"{stage.title}: done before")
        self._advance(run)
      elif stage.log in self._reasons:
        self._end(run, self._reasons[stage.log])
      else:
        return True
    return False

  def _is_done(self, stage):
    try:
      return stage.is_done()
    except complete.DamagedError as error:
      self._note(stage, error)
      return False

  def _finish(self, work):
    """Continues the run of an ended stage, or ends the run as failed."""
    work.running.end()
    self._works.remove(work)
    self._free.append(work.share)
    self._progress.count(work.running)
    try:
      work.stage.check(work.running)
    except (process.CommandError, complete.DamagedError) as error:
      self._note(work.stage, error)
      self._end(work.run, self._reasons[work.stage.log])
    else:
      self._advance(work.run)

  def _advance(self, run):
    del self._left[run][0]
    if not self._left[run]:
      self._end(run, None)

  def _note(self, stage, error):
    _say(str(error), sys.stderr)
    self._reasons[stage.log] = _reason(str(error))

  def _end(self, run, reason):
    self._ended[run] = reason
    self._on_finished(run, reason)
    self._progress.line(self._running())


def _reason(message):
  """The last informative line of a log."""
  lines = [line for line in message.splitlines() if re.search(r"\w", line)]
  return lines[-1].strip()


def _say(text, stream=None):
  """Prints a text without breaking the redrawn line."""
  tqdm.tqdm.write(text, file=stream or sys.stdout)
  (stream or sys.stdout).flush()
