"""The history of a training: its losses, its speed and its evaluations, by step."""

import functools
import os
import time
from typing import Any

from synthesizer_mtf.trainer.watching import callbacks
from synthesizer_mtf.trainer.watching import console
from synthesizer_mtf.trainer.watching import results
from synthesizer_mtf.trainer.watching import validation_record

LOSS, SPEED = "loss", "steps/s"
_TAGS = {"loss": LOSS, "global_step/sec": SPEED}  # In event files of the Estimator.
_PERIOD = .1  # Seconds between two notes; each asks the session for the step.
_NOTES = 1000  # After so many periods notes become rarer.


class History(callbacks.Callback):
  """What a training has done, also before the last call that has continued it.

  In a notebook it shows as its table.
  """

  def __init__(self, model_dir: str) -> None:
    """Declares the training of a model's folder."""
    self._model_dir = model_dir
    self._rows: dict[int, dict[str, float]] = {}
    self._first: int | None = None  # The step from which this training went on.

  def on_start(self, training: callbacks.Training) -> None:
    if self._first is None:
      self._first = training.step
      self._began = time.monotonic()
      self._noted = self._began, self._first

  def on_step(self, training: callbacks.Training) -> None:
    now = time.monotonic()
    if now - self._noted[0] > max(_PERIOD, (now - self._began) / _NOTES):
      is_late = training.read_loss is not None  # Devices still compute the step.
      step, (before, last) = training.step - is_late, self._noted
      row = self._rows[step] = {LOSS: float(training.known_loss)}
      if len(self._rows) > 2:  # The first steps include work that is done once.
        row[SPEED] = (step - last) / (now - before)
      self._noted = now, step

  def on_end(self, training: callbacks.Training) -> None:
    self._rows.setdefault(training.step, {LOSS: float(training.loss)})

  @functools.cached_property
  def frame(self) -> Any:
    """The table, a `pandas.DataFrame`: a row for each noted step.

    Its columns are "loss", "steps/s" and the metrics of evaluations as "TASK/METRIC".
    Of earlier calls the event files have the loss of each hundredth step.
    """
    import pandas  # Which t5 requires; programs need not wait for it.
    rows: dict[int, dict[str, float]] = {}
    with console.shown():  # Without a warning of TensorFlow.
      for tag, step, value in results.logged(self._model_dir):
        if tag in _TAGS and (self._first is None or step <= self._first):
          rows.setdefault(step, {})[_TAGS[tag]] = value
    rows.update(self._rows)
    for evaluation in validation_record.evaluations(self._model_dir):
      rows.setdefault(evaluation["step"], {}).update(evaluation["results"])
    frame = pandas.DataFrame.from_dict(rows, orient="index").sort_index()
    return frame.rename_axis("step")

  def plot(self) -> Any:
    """Draws the loss, and each metric of the evaluations, over the steps.

    Returns:
      an array [drawings] of matplotlib's axes.

    Raises:
      ImportError: matplotlib is not installed; the extra `tools` has it.
    """
    from matplotlib import pyplot
    names = [name for name in self.frame if name != SPEED]
    figure, axes = pyplot.subplots(
        max(len(names), 1), sharex=True, squeeze=False, layout="constrained",
        figsize=(6, 1 + 2 * max(len(names), 1)))
    for axis, name in zip(axes[:, 0], names):
      values = self.frame[name].dropna()
      axis.plot(values.index, values, marker="." if len(values) < 50 else "")
      axis.set_title(name, loc="left", fontsize="medium")
    axes[-1, 0].set_xlabel("step")
    figure.suptitle(os.path.normpath(self._model_dir))
    return axes[:, 0]

  def __repr__(self) -> str:
    return (self.frame.to_string(max_rows=20, float_format="{:.4g}".format, na_rep="")
            if len(self.frame) else "Nothing has been trained.")

  def _repr_html_(self) -> str:
    return self.frame.to_html(max_rows=20, float_format="{:.4g}".format, na_rep="")
