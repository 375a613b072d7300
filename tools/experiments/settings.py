"""The choices of a user that hold for all runs, and the commands that have them."""

import argparse
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.experiments import claims
from synthesizer_mtf.tools.experiments import pipeline

Params = Mapping[str, Any]  # gin bindings.


@dataclasses.dataclass(frozen=True)
class Settings:
  """The user's choices.

  Attributes:
    steps: the steps of training, or of pre-training; None for the study's own steps.
    finetune_steps: the steps after pre-training; None for the study's own steps.
    task: the task to train and evaluate; None for the tasks of the table or study.
    flags: more flags of the launcher, for all commands.
    gin_params: more gin bindings, for all commands.
    gin_files: more gin files, after all others.
    best_by: the metric whose best step is evaluated; None for the last step.
  """
  steps: int | None = None
  finetune_steps: int | None = None
  task: str | None = None
  flags: list[str] = dataclasses.field(default_factory=list)
  gin_params: list[str] = dataclasses.field(default_factory=list)
  gin_files: list[str] = dataclasses.field(default_factory=list)
  best_by: str | None = None

  @property
  def chosen(self) -> dict[str, str]:
    """What the settings in files of results name beside the others."""
    return {"best_by": self.best_by} if self.best_by else {}

  def launch(self, model_dir: str | pathlib.Path,
             gin_files: Iterable[str | pathlib.Path], params: Params,
             bindings: Iterable[str] = ()) -> list[str]:
    """Returns a command of the launcher, with the user's choices added.

    Args:
      model_dir: the folder of the model.
      gin_files: paths.
      params: gin bindings, as `pipeline.flags` takes them.
      bindings: gin bindings as text, which win over all others.
    """
    return [*pipeline.launcher(), f"--model_dir={model_dir}", *self.flags,
            *pipeline.flags([*gin_files, *self.gin_files], params),
            *(f"--gin_param={param}" for param in (*self.gin_params, *bindings))]

  def claim(self, folder: pathlib.Path) -> None:
    """Claims a folder for runs of these settings, as `claims.claim` does."""
    modules = [flag.partition("=")[2] for flag in self.flags
               if flag.startswith("--module_import=")]
    claims.claim(folder, {
        "steps": self.steps, "finetune_steps": self.finetune_steps,
        "gin_params": self.gin_params, **self.chosen},
                 claims.contents(self.gin_files, self.gin_params, modules))

  def note(self, outcomes: Iterable[Mapping[str, Any]]) -> str:
    """Returns what the heading of a report says of the evaluated steps, with a space.

    Args:
      outcomes: the results of each run that is done.
    """
    if not self.best_by:
      return ""
    best = f"Each model is its best step by {self.best_by} of the validation split. "
    ends = [outcome.get("stopped_at") for outcome in outcomes]
    stopped = [step for step in ends if step is not None]
    return best + (f"Patience ended {len(stopped)} of {len(ends)} trainings, at step "
                   f"{span(stopped)}. " if stopped else "")


DEFAULT = Settings()


def span(numbers: Sequence[int]) -> str:
  """Returns the least and the greatest of some numbers; one if they are equal."""
  ends = dict.fromkeys([min(numbers), max(numbers)])
  return " to ".join(f"{end:,}" for end in ends)


def add_flags(parser: Any, seeds: str) -> None:
  """Adds the flags of commands that train over seeds; `seeds` are those by default."""
  parser.add_argument("--seeds", type=_seeds, metavar="N,N,...", help=(
      f"the seeds of variables, dropout and data (default: {seeds})"))
  parser.add_argument("--best_by", metavar="METRIC",
                      help="evaluate the best of at least 4 checkpoints by this metric "
                      "of the validation split, such as neg_log_perplexity, instead of "
                      "the last")
  parser.add_argument("--jobs", type=arguments.positive, default=1, metavar="N",
                      help="runs at a time, with their share of the cores and GPUs "
                      "(default: %(default)s)")


def _seeds(text):
  return [arguments.not_negative(seed) for seed in text.split(",")]


def read(args: argparse.Namespace, steps: int | None = None,
         flags: Sequence[str] = ()) -> Settings:
  """Returns the user's choices.

  Args:
    args: the flags of `reproduce`.
    steps: the default of the numbers of steps.
    flags: more flags of the launcher, for all commands.
  """
  flags, data_dir = [*flags], args.t5_tfds_data_dir
  if args.scale == "paper":
    flags, data_dir = [*flags, f"--tpu={args.tpu}"], data_dir or f"{args.bucket}/tfds"
  if data_dir:
    flags.append(f"--t5_tfds_data_dir={data_dir}")
  flags += [f"--module_import={module}" for module in args.module_import]
  return Settings(args.steps or steps, args.finetune_steps or steps, args.task,
                  flags, args.gin_param, args.gin_file, args.best_by)
