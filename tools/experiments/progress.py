"""One progress line for a whole queue: its runs, its steps, and the time left."""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import shutil
import sys
import time

from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.trainer.checkpoints import complete
import tqdm

_FORM = ("{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} steps "
         "[{elapsed}, {remaining} left]")
_SECONDS_BETWEEN_LINES = 180  # Twenty lines an hour in a log.


class Progress:
  """The progress line of a queue."""

  def __init__(self, stages: Mapping[Hashable, Sequence[pipeline.Stage]],
               ended: Mapping[Hashable, str | None],
               alone: bool) -> None:
    """Finds out which steps are done already.

    Args:
      stages: the stages of each run.
      ended: a dict from ended runs to the reason of failure or None; it grows.
      alone: whether nothing else is drawn on the terminal, so that the line can be
        redrawn continuously.
    """
    self._stages, self._ended = stages, ended
    self._alone = alone
    self._drawn = alone and sys.stdout.isatty()
    # Steps by the log of a stage: (before this queue, now).
    self._steps = {stage.log: _steps_done(stage) for of in stages.values()
                   for stage in of if stage.steps}
    self._start = time.monotonic()
    self._next_line = self._start + _SECONDS_BETWEEN_LINES
    # Some terminals, such as in containers, report a size of 0.
    self._columns = shutil.get_terminal_size().columns if self._drawn else None
    # tqdm draws the line, as its text, below other output.
    self._drawing = tqdm.tqdm(
        desc=self._text([]), bar_format="{desc}", file=sys.stdout, nrows=24,
        ncols=self._columns, disable=not self._drawn)

  def count(self, running: process.Running) -> None:
    """Stores the steps of a command that runs or has ended."""
    if running.steps:
      self._steps[running.log] = running.before, running.done

  def show(self, running: Sequence[process.Running]) -> None:
    """Redraws the line, or prints it now and then; `running` are the commands."""
    if self._drawn:
      self._drawing.set_description_str(self._text(running))
    elif self._alone and time.monotonic() > self._next_line:
      self.line(running)

  def line(self, running: Sequence[process.Running]) -> None:
    """Prints the line if it is not redrawn continuously."""
    if not self._drawn:
      print(self._text(running), flush=True)
      self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

  def close(self) -> None:
    """Draws the line for the last time."""
    self.show([])
    self._drawing.close()

  def _text(self, running):
    for command in running:
      self.count(command)
    before, done = map(sum, zip((0, 0), *self._steps.values()))
    return tqdm.tqdm.format_meter(
        done, self._total(), time.monotonic() - self._start, initial=before,
        prefix=self._runs(len(running)), bar_format=_FORM, ascii=not self._drawn,
        ncols=self._columns)

  def _total(self):
    """The number of all steps, without those that a failed run will not do."""
    wanted = {stage.log: len(stage.steps) for run, of in self._stages.items()
              for stage in of if stage.steps and not self._ended.get(run)}
    return sum(wanted.get(log, done) for log, (_, done) in self._steps.items())

  def _runs(self, running):
    failed = sum(reason is not None for reason in self._ended.values())
    return (f"{len(self._ended) - failed} of {len(self._stages)} runs done" +
            f", {running} running" * bool(running) +
            f", {failed} failed" * bool(failed) + ":")


def _steps_done(stage):
  """(steps before this queue, steps now) of a stage that is not running."""
  try:
    done = len(stage.steps) if stage.is_done() else 0
  except complete.DamagedError:  # The queue reports it when it starts the stage.
    done = 0
  return done, done
