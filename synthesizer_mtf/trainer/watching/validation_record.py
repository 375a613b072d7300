"""The record of a model's evaluations, in MODEL_DIR/validation.json."""

import json
import math
import os
from typing import Any

from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.watching import measures

NAME = "validation.json"


class Record:
  """The evaluations of a model's folder.

  Whoever goes back to an older checkpoint leaves later ones behind. Their evaluations
  are dropped, but not that of the best checkpoint, which best/ still holds.

  Attributes:
    path: the path of the file.
    evaluations: those of the checkpoints that led to the last one, in their order.
    best: the first of the best evaluations, of the checkpoint in best/, or None. It has
      "left_at", a step, if training went back to this step.
  """

  def __init__(self, model_dir: str, metric: str, greater_is_better: bool = True):
    """Reads the file, if it is there.

    Raises:
      ValueError: the file cannot be read.
    """
    self._measure: measures.Measure = {
        "metric": metric, "greater_is_better": greater_is_better}
    self.path = os.path.join(model_dir, NAME)
    self.evaluations: list[dict[str, Any]] = []
    self.best: dict[str, Any] | None = None
    content = _read(self.path) or {}
    if content:
      self.evaluations, self.best = content["evaluations"], content.get("best")
      self._measure = content.get("measured") or self._guessed(content["metric"])
    self._written = self._state(content.get("stopped_at"))

  def _guessed(self, metric):
    """The measure of a record of version 0.2.0, which has only the metric's name."""
    self._measure["metric"] = metric
    if any(self._rank(other) > self._rank(self.best) for other in self.evaluations):
      self._measure["greater_is_better"] = not self._measure["greater_is_better"]
    return self._measure

  def _state(self, stopped_at):
    """What `correct` writes anew if it differs; a new one after each change."""
    return list(self.evaluations), self.best, stopped_at

  def continues(self, measure: measures.Measure) -> list[str]:
    """Takes over what evaluations measure now, unless the record's are of another.

    Returns:
      in what they differ, in words; [] if values can be compared.
    """
    differing = measures.differences(self._measure, measure)
    if not differing or not (self.evaluations or self.best):
      self._measure = measure
      return []
    return differing

  def begin(self, measure: measures.Measure) -> None:
    """Drops all evaluations, as those of another measure."""
    self.evaluations, self.best, self._measure = [], None, measure

  def forget_after(self, step: int) -> None:
    """Drops evaluations of later steps, as of a model that went back."""
    self.evaluations = [kept for kept in self.evaluations if kept["step"] <= step]
    if self.best is not None and self.best["step"] > step:
      self.best = {**self.best, "left_at": step}

  def forget_best(self) -> None:
    """Drops a best evaluation whose checkpoint is lost."""
    self.best = None

  @property
  def steps(self) -> set[int]:
    """The steps of the evaluations."""
    return {evaluation["step"] for evaluation in self.evaluations}

  @property
  def last(self) -> int:
    """The step of the last evaluation; 0 without one."""
    return max(self.steps, default=0)

  @property
  def leading_step(self) -> int:
    """The step of the first of the best of `evaluations`, of which there are some."""
    return max(self.evaluations, key=self._rank)["step"]

  @property
  def since_best(self) -> int:
    """The number of evaluations after the first of the best of them."""
    ranks = list(map(self._rank, self.evaluations))
    return len(ranks) - 1 - ranks.index(max(ranks)) if ranks else 0

  def _rank(self, evaluation):
    """What is greater for a better evaluation; NaN is worse than any number."""
    value, sign = evaluation["value"], 1 if self._measure["greater_is_better"] else -1
    return (False, 0.0) if math.isnan(value) else (True, sign * value)

  def add(self, step: int, value: float, results: dict[str, float]) -> bool:
    """Adds an evaluation, which `write` writes; returns whether it is the best."""
    self.evaluations.append({"step": step, "value": value, "results": results})
    is_best = self.best is None or (
        self._rank(self.evaluations[-1]) > self._rank(self.best))
    if is_best:
      self.best = {"step": step, "value": value}
    return is_best

  def write(self, stopped_at: int | None = None) -> None:
    """Writes the file, as a whole.

    Args:
      stopped_at: the step at which patience has ended the training; None if it has not.
    """
    self._written = self._state(stopped_at)
    best = self.best and {**self.best, "checkpoint": (
        f"{complete.BEST}/model.ckpt-{self.best['step']}")}
    model_folder.write_whole(self.path, json.dumps({
        "metric": self._measure["metric"], "best": best, "stopped_at": stopped_at,
        "measured": self._measure, "evaluations": self.evaluations}, indent=1) + "\n")

  def correct(self, stopped_at: int | None) -> None:
    """Writes the file if it names other evaluations, or another end by patience."""
    if self._written != self._state(stopped_at):
      self.write(stopped_at)


def stopped_at(model_dir: str) -> int | None:
  """The step at which patience has ended the training of a model's folder, or None.

  Raises:
    ValueError: the record of the evaluations cannot be read.
  """
  return (_read(os.path.join(model_dir, NAME)) or {}).get("stopped_at")


def evaluations(model_dir: str) -> list[dict[str, Any]]:
  """The evaluations of a model's folder, each with "step", "value" and "results".

  Raises:
    ValueError: the record of the evaluations cannot be read.
  """
  return (_read(os.path.join(model_dir, NAME)) or {}).get("evaluations", [])


def _read(path):
  """The record of the evaluations at a path, as a dict; None if there is no file."""
  def checked(content):
    _ = content["metric"], content["evaluations"]
    return content

  return model_folder.read_record(
      path, checked, f"it and {complete.BEST}/ to choose anew")
