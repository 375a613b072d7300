"""Which checkpoint of a model is the best so far, and whether patience is at an end.

MODEL_DIR/validation.json records the evaluations; MODEL_DIR/best holds the best
checkpoint, and everything that another mode needs of a model's folder. Values of
another measure, such as those of a file that was replaced, are not compared: best/ is
renamed, and a new comparison begins.
"""

import os

from absl import logging
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.watching import best_folder
from synthesizer_mtf.trainer.watching import measures
from synthesizer_mtf.trainer.watching import validation_record

PATIENCE = "train_and_eval.patience"


class Comparison:
  """Compares the evaluations of a model's checkpoints."""

  def __init__(self, model_dir: str, metric: str, greater_is_better: bool,
               patience: int | None, last_step: int | None) -> None:
    """Takes the parameters of `validation.chosen`, and the last step of the training.

    Raises:
      ValueError: the record of former evaluations cannot be read.
    """
    self._folder, self._metric, self._patience = model_dir, metric, patience
    self._last_step = last_step
    self.record = validation_record.Record(model_dir, metric, greater_is_better)

  def measure_by(self, measure: measures.Measure) -> None:
    """Begins a new comparison if the values of the former one measure other things."""
    differing = self.record.continues(measure)
    if not differing:
      return
    folder = best_folder.set_aside(self._folder)
    logging.warning(
        "A new comparison of checkpoints begins, as values cannot be compared: %s.%s",
        "; ".join(differing), f" The former {complete.BEST}/ and its record are now "
        f"{folder}; remove it if you do not need it." if folder else "")
    self.record.begin(measure)
    self.record.write()

  def continue_from(self, step: int) -> None:
    """Drops what does not lead to a step, and sees to it that best/ has the best.

    Raises:
      ValueError: the best is missing, and the model's folder does not have it, either.
    """
    self.record.forget_after(step)
    best = self.record.best
    if best is None:
      return
    step, folder = best["step"], os.path.join(self._folder, complete.BEST)
    if "left_at" in best:
      self._say_what_was_left(step, folder, best)
    elif not best_folder.holds(self._folder, step):
      if not complete.is_whole(os.path.join(self._folder, f"model.ckpt-{step}")):
        raise checks.Error(
            f"{folder!r} lacks model.ckpt-{step}, the best by {self._metric} so far; "
            f"bring it back, or remove {self.record.path!r} to choose the best of "
            "later checkpoints.")
      best_folder.copy(self._folder, step)
    if self.record.best is not None:
      best_folder.settle(self._folder, step, self.record.steps, only=True)

  def _say_what_was_left(self, step, folder, best):
    if best_folder.has_whole(self._folder, step):
      logging.warning(
          "%s still holds step %d, whose %s is %.4g, though training went back to step "
          "%d: a better checkpoint will replace it. To choose without it, move %s and "
          "%s away.", folder, step, self._metric, best["value"], best["left_at"],
          folder, self.record.path)
      return
    logging.warning(
        "%s lacks model.ckpt-%d, the best by %s before training went back to step %d; "
        "the best of later checkpoints is chosen.", folder, step, self._metric,
        best["left_at"])
    self.record.forget_best()

  def add(self, step: int, split: str, value: float, results: dict[str, float]) -> None:
    """Adds an evaluation, keeps its checkpoint if it is the best, and records both.

    A kill at any moment leaves a best checkpoint and a record that go on from there.
    """
    former, is_best = self.record.best, self.record.add(step, value, results)
    if is_best:
      best_folder.copy(self._folder, step)
    self.write(step)
    if is_best:
      left = {former["step"]} if former and "left_at" in former else set()
      best_folder.settle(self._folder, step, self.record.steps - left)
    best = self.record.best
    assert best is not None  # It has just been added.
    patience = (f" ({self.record.since_best} of {self._patience} evaluations)"
                if self._patience else "")
    logging.info(
        "step %d: %s of %s is %.4g; %s", step, self._metric, split, value,
        "the best so far" if is_best else
        f"the best is {best['value']:.4g}, of step {best['step']}{patience}")

  def write(self, step: int, only_changes: bool = False) -> None:
    """Writes the record of a training at a step."""
    stopped_at = step if self.is_over and step != self._last_step else None
    (self.record.correct if only_changes else self.record.write)(stopped_at)

  @property
  def is_over(self) -> bool:
    """Whether the patience is at an end."""
    return self._patience is not None and self.record.since_best >= self._patience

  def say_that_nothing_is_trained(self) -> None:
    """Warns that a training does not begin, as its patience is at an end."""
    logging.warning(
        "Nothing is trained: %d evaluations after step %d were not better than its "
        "%s, and `%s` is %d; to go on, raise it or leave it out.",
        self.record.since_best, self.record.leading_step, self._metric,
        checks.called(PATIENCE), self._patience)

  def say_that_it_ends(self, step: int) -> None:
    """Says that patience ends the training."""
    logging.info("Training ends at step %d: %d evaluations were not better than that "
                 "of step %d.", step, self.record.since_best, self.record.leading_step)
