r"""Says which step of a model is the best, of the evaluations that exist.

  python -m synthesizer_mtf.tools.best_checkpoint MODEL_DIR --metric=bleu

It reads the event files of the folders in MODEL_DIR, such as validation_eval. T5's
modes eval, score_eval and perplexity_eval write them, and train_and_eval.gin. A metric
is the end of the name that TensorBoard shows, such as bleu, TASK/bleu or
neg_log_perplexity. Without --metric the command lists them. The least value is the best
if a word of the metric's name says so, such as loss or wer; the last line says which.
"""

from collections.abc import Sequence
import glob
import math
import os

from synthesizer_mtf import checks
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.watching import measures

Course = dict[int, float]  # From steps to values.


def evaluations(model_dir: str) -> dict[str, Course]:
  """The values of each metric by step.

  Returns:
    a dict from "FOLDER: TAG" to {step: value}; of two evaluations of a step the later
    one counts.
  """
  courses: dict[str, Course] = {}
  for folder in sorted(glob.glob(os.path.join(glob.escape(model_dir), "*", ""))):
    name = os.path.basename(os.path.dirname(folder))
    for tag, step, value in results.scalars(folder):
      courses.setdefault(f"{name}: {tag}", {})[step] = value
  return courses


def best(course: Course, smaller_is_better: bool = False) -> int:
  """The first step with the best value; NaN is worse than any number."""
  sign = 1 if smaller_is_better else -1
  return min(course, key=lambda step: (
      math.isnan(course[step]), sign * course[step], step))


def _chosen(model_dir, metric):
  """The name and values of the only metric with this ending."""
  courses = evaluations(model_dir)
  if not courses:
    raise checks.Error(
        f"{model_dir!r} has no evaluations; evaluate with eval.gin or "
        "perplexity_eval.gin and `eval_checkpoint_step = 'all'`.")
  if metric is None:
    raise checks.Error(
        f"--metric is missing; write one of {', '.join(_ends(courses))}.")
  fitting = [name for name in courses
             if name == metric or name.endswith((f"/{metric}", f": {metric}"))]
  if not fitting:
    raise checks.Error(f"--metric is {metric!r}, which {model_dir!r} does not have; "
                       f"write one of {', '.join(_ends(courses))}.")
  if len(fitting) > 1:
    raise checks.Error(f"--metric is {metric!r}, which several evaluations have; "
                       f"write one of {', '.join(map(repr, sorted(fitting)))}.")
  return fitting[0], courses[fitting[0]]


def _ends(courses):
  return sorted({repr(name.rpartition(": ")[2].removeprefix("eval/"))
                 for name in courses})


def _where(model_dir, step):
  """The checkpoint of a step, if there is one."""
  for folder in (model_dir, os.path.join(model_dir, complete.BEST)):
    path = os.path.join(folder, f"model.ckpt-{step}")
    if path in complete.find(folder):
      return path
  return "its checkpoint is gone"


def _parser():
  parser = arguments.parser("best_checkpoint", __doc__)
  parser.add_argument("model_dir", metavar="MODEL_DIR")
  parser.add_argument("--metric", metavar="NAME", help="what to choose by")
  for name, meaning in (("smaller", "least"), ("greater", "greatest")):
    parser.add_argument(f"--{name}_is_better", action="store_true",
                        help=f"take the {meaning} value, whatever the name says")
  return parser


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and prints the values and the best step."""
  with arguments.command(_parser(), argv) as args:
    name, course = _chosen(args.model_dir, args.metric)
    for step in sorted(course):
      print(f"{step:>9}  {course[step]:.6g}")
    is_low = args.smaller_is_better or (
        not args.greater_is_better and measures.is_low(name.rpartition(": ")[2]))
    step = best(course, is_low)
    print(f"The best by {name} is step {step}, {course[step]:.6g}, the "
          f"{'least' if is_low else 'greatest'}: {_where(args.model_dir, step)}")


if __name__ == "__main__":
  main()
