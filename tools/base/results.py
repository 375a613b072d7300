"""Figures of a run, read from its checkpoints, event files and logs."""

from collections.abc import Iterator
import glob
import os
import pathlib
import re
import statistics

from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import optimizer_slots
from synthesizer_mtf.trainer.watching import results

Folder = str | pathlib.Path

# The split and the number of examples, at the end of eval_TASK_SPLIT_NUMBER.
_END = re.compile(r"_[^_]*(?:_\d+)?$")
_LOSS = re.compile(r"tf_loss\[([^\]]+)\]\[(\d+)\]")


def latest_step(model_dir: Folder) -> int:
  """Returns the step of the newest checkpoint, or -1 if there is none.

  Raises:
    complete.DamagedError: the newest checkpoint is unusable.
  """
  path = complete.latest(str(model_dir))
  return complete.saved_step(path) if path else -1


def num_parameters(model_dir: Folder) -> int | None:
  """Returns the number of trained parameters of the newest checkpoint.

  It is None if there is no checkpoint, or none that tells: see `count_trained`.
  """
  path = complete.latest(str(model_dir))
  return optimizer_slots.count_trained(path) if path else None


def scalars(folder: Folder) -> Iterator[tuple[str, int, float]]:
  """Yields (tag, step, value) from the event files of one folder."""
  return results.logged(str(folder))


def steps_per_second(model_dir: Folder) -> float:
  """Returns the median speed of training.

  The median leaves out the first steps, in which TensorFlow still optimizes the graph.
  """
  rates = [v for tag, _, v in scalars(model_dir) if tag == "global_step/sec"]
  return statistics.median(rates[min(10, len(rates) - 1):])


def log_perplexity(model_dir: Folder, step: int, suffix: str = "") -> float | None:
  """Returns the log perplexity on held-out text, or None; see `scores`."""
  negative = teacher_forced(model_dir, step, suffix).get("neg_log_perplexity")
  return None if negative is None else -negative


def teacher_forced(model_dir: Folder, step: int, suffix: str = "") -> dict[str, float]:
  """Returns the results of T5's mode `perplexity_eval` for one step, by T5's names.

  Args:
    step: the step of the evaluated checkpoint.
    suffix: the `utils.run.eval_dir_suffix` of the evaluation.

  Returns:
    a dict from names to floats. Each task of a mixture has a folder, and the floats are
    the means over the tasks.
  """
  written = [(os.path.basename(folder), values) for folder in sorted(
      glob.glob(os.path.join(model_dir, _folder("eval_*", suffix))))
           if (values := {tag: value for tag, at, value in scalars(folder)
                          if at == step})]
  # Of several evaluations the first one counts, whose folders end alike.
  ends = [_END.findall(name) for name, _ in written]
  of_tasks = [values for (_, values), end in zip(written, ends) if end == ends[0]]
  return {tag: statistics.mean(values[tag] for values in of_tasks if tag in values)
          for values in of_tasks for tag in values}


def _folder(name, suffix):
  return f"{name}_{suffix}" if suffix else name


def scores(model_dir: Folder, step: int, suffix: str = "") -> dict[str, float]:
  """Returns the results of all evaluations of one step, a dict from names to floats.

  "eval/TASK/METRIC" comes from T5's mode `eval`. "eval/perplexity_per_word" and
  similar names come from `tasks.word_perplexity`. "log_perplexity" comes from
  `perplexity_eval`. `suffix` is the `utils.run.eval_dir_suffix` of the evaluation.
  "million_parameters" are those of the newest checkpoint, trained ones.
  """
  folders = (glob.glob(os.path.join(model_dir, _folder("*_eval", suffix))) +
             glob.glob(os.path.join(model_dir, "perplexity")))
  written = {tag: value for folder in sorted(folders)
           for tag, at, value in scalars(folder)
           if at == step and tag.startswith("eval/")}
  loss = log_perplexity(model_dir, step, suffix)
  if loss is not None:
    written["log_perplexity"] = loss
  if written and (parameters := num_parameters(model_dir)):
    written["million_parameters"] = parameters / 1e6
  return written


def losses(log: pathlib.Path) -> list[tuple[int, float]]:
  """Returns [(step, loss)] from the log of a training run, sorted.

  The event files have the loss of every hundredth step only. For a step done twice,
  before and after an interruption, the last loss counts.
  """
  text = log.read_text(encoding="utf-8", errors="replace")
  return sorted({int(s): float(v) for v, s in _LOSS.findall(text)}.items())
