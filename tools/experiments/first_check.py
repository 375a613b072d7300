"""Checks all runs before the first one: builds the model of each command once."""

from collections.abc import Iterable

import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.trainer.model import building
from synthesizer_mtf.trainer.watching import validation
import tensorflow.compat.v1 as tf


def check(stages: Iterable[pipeline.Stage], best_by: str | None = None) -> None:
  """Builds the model of each stage, so that a wrong row fails before any row runs.

  Args:
    stages: the stages of all runs.
    best_by: the metric whose best step is evaluated; None for the last step.

  Raises:
    ValueError: a model cannot be built, at all or for sequences of these lengths; or
      gin chooses the step to evaluate otherwise than `best_by`.
  """
  commands = {_without_seed(stage.command): stage.command
              for stage in stages if stage.steps}
  with gin_files.restored():
    for command in commands.values():
      gin_files.parse(recipes.values(command, "gin_file"),
                      recipes.values(command, "gin_param"))
      _check_choice(best_by)
      build()


def _check_choice(best_by):
  """Checks that the evaluated step is the one that gin chooses, or the last."""
  if validation.bound() is None:
    return
  patience, metric = (gin_files.bound(f"train_and_eval.{name}", None)
                      for name in ("patience", "metric"))
  if best_by is None and patience is not None:
    raise checks.Error(
        f"`train_and_eval.patience` is {patience}, so a training may end before its "
        "last step, which is evaluated here; add --best_by=METRIC to evaluate the best "
        "step, or leave `train_and_eval.patience` out.")
  if best_by is not None and metric not in (None, best_by):
    raise checks.Error(
        f"`train_and_eval.metric` is {metric!r}, but --best_by={best_by} names the "
        "metric that chooses the step to evaluate; leave one of them out.")


def _without_seed(command):
  """Returns the flags of a command that its model depends on."""
  return tuple(word for word in command
               if word.startswith("--gin_") and "seed" not in word)


def build(vocabulary_sizes: tuple[int, int] = (128, 128)) -> mtf.Graph:
  """Makes the operations of the loss of gin's model, without computing anything.

  Args:
    vocabulary_sizes: those of the inputs and the targets; whether a model can be built
      does not depend on them.
  """
  lengths = gin_files.bound("utils.run.sequence_length", {})
  with tf.Graph().as_default():
    model = building.Model(vocabulary_sizes)
    model.call(model.feed({name: f"batch:1,length:{length}"
                           for name, length in lengths.items()}), building.TRAIN)
  return model.graph
