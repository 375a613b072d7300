"""Trains your models on your task over seeds, and says which differ.

  python -m synthesizer_mtf.tools.compare_models --output_dir=comparisons/names \\
    --task=synth_text_pairs --steps=400 --seeds=1,2,3 \\
    --gin_file=dataset.gin --gin_file=models/laptop.gin --gin_file=cpu.gin \\
    --gin_file=data.gin --gin_param="utils.run.batch_size = 32" \\
    --model V --model R+V --model "R below" "[R,V]"

trains three models, three times each, evaluates them, and writes a report to
`comparisons/names/names.md`: means with 95% intervals, and the differences of each
model from the first, seed by seed. A picture, JSON lines, and the folders of the models
lie beside it. Started again, the same command continues from the last checkpoints; more
models and more seeds can be added.

--model takes a name and what makes the model differ: an attention (R+V; [R,R,V] with an
entry for each block; R/V, the encoder's and the decoder's), a gin file, a gin binding,
or several of these. A name alone is also the attention.
"""

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import pathlib
import sys

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.experiments import claims
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import shares
from synthesizer_mtf.tools.experiments import study_report as report_lib
from synthesizer_mtf.tools.experiments import study_types
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.data import data_checks
import t5.data

_SPLIT = "validation"
_LOOKS = 8  # The checkpoints that a training keeps.
_PERPLEXITY = study_types.Evaluation(
    (study_types.Score("log perplexity", "log_perplexity", True, 3),),
    ("perplexity_eval.gin",),
    {"utils.run.perplexity_eval_steps": 100, "mesh_eval_dataset_fn.seed": 1})


def main(argv: list[str] | None = None) -> int:
  """Runs the comparison, or what is left of it; returns the status."""
  with arguments.command(parser(), argv, stopped=arguments.CONTINUES) as args:
    return _compare(args)


def _compare(args):
  arguments.check_folders(args.json)
  model_folder.check_name(args.output_dir, "--output_dir")
  machine_shares = shares.shares(args.jobs)
  path = pathlib.Path(args.output_dir)
  compared = study(path.name, args)
  wanted = runs(args, compared)
  report = report_lib.Report(
      compared, [], wanted, _settings(args), machine.state(), intervals=True)
  report_lib.check_first(wanted, report.settings)
  _claim(path, args, compared.rows)

  def draw(picture):
    lines = report.lines_of_runs()
    if lines:
      pictures.draw_study(compared.with_scores(lines), lines, picture, args.seeds)

  return report.execute(wanted, machine_shares, path / path.name, args.json, draw)


def _settings(args):
  modules = [f"--module_import={module}" for module in args.module_import]
  return settings_lib.Settings(flags=modules, gin_params=args.gin_param,
                               best_by=args.best_by)


def runs(args: argparse.Namespace, compared: study_types.Study) -> list[runs_lib.Run]:
  """Returns all runs of a comparison, seed after seed."""
  return runs_lib.runs(compared, compared.rows, args.seeds or [1, 2, 3],
                       pathlib.Path(args.output_dir).parent, _settings(args))


def study(name: str, args: argparse.Namespace) -> study_types.Study:
  """Returns the comparison that the flags describe.

  Raises:
    ValueError: the models or the gin bindings do not go together.
  """
  with gin_files.restored():
    gin_files.parse(args.gin_file, args.gin_param)
    data_checks.check_task(args.task, "--task")
    _check_training()
    evaluations = tuple(_evaluations(args))
  task = study_types.Task(
      args.task, tuple(args.gin_file), evaluations, args.steps, args.evaluations,
      {"MIXTURE_NAME": args.task})
  return study_types.Study(
      name, name, (task,), tuple(rows(args.model)), needs_data=False)


def _check_training():
  """Raises a ValueError for bindings that the commands would replace or count wrong."""
  train = gin_files.bound("utils.run.train_model_fn", None)
  name = getattr(train, "__name__", "train_with_seed")
  if name not in ("train_model", "train_with_seed", "warm_start"):
    raise checks.Error(
        f"`utils.run.train_model_fn` is @{name}, but a comparison trains with "
        "@train_with_seed, so that its seeds hold; bind "
        f"`train_with_seed.train_model_fn = @{name}` instead.")
  start = gin_files.bound("utils.run.init_checkpoint", None)
  if start:
    raise checks.Error(
        f"`utils.run.init_checkpoint` is {start!r}, from whose step the steps would "
        "count on; bind `warm_start.checkpoint` instead, and "
        "`utils.run.init_checkpoint = None` if a gin file binds it.")


def _evaluations(args):
  """Yields the evaluations: T5's mode `eval` if the task has metrics, else the loss."""
  task = t5.data.get_mixture_or_task(args.task)
  scored = tuple(sub.name for sub in t5.data.get_subtasks(task) if sub.metric_fns)
  split = {"utils.run.dataset_split": args.split}
  if scored:
    yield study_types.Evaluation(
        params=split, tasks=scored, metrics=tuple(args.scores),
        lower_is_better=tuple(args.lower_is_better))
  elif args.scores:
    raise checks.Error(f"--scores is {','.join(args.scores)}, but {args.task} has no "
                       "metrics; leave it out, and the log perplexity is measured.")
  if args.perplexity or not scored:
    yield _PERPLEXITY._replace(params={**_PERPLEXITY.params, **split})


def rows(models: Iterable[Sequence[str]]) -> list[study_types.Row]:
  """Returns a row for each model.

  Args:
    models: the values of --model, each a name and further words.

  Raises:
    ValueError: two names are the same, or would have the same folder.
  """
  by_folder: dict[str, study_types.Row] = {}
  for name, *words in models:
    row = _row(name, words or [name])
    if row.folder in by_folder:
      raise checks.Error(f"--model names {by_folder[row.folder].name!r} and {name!r}, "
                         "which would share a folder; choose another name for one.")
    by_folder[row.folder] = row
  return list(by_folder.values())


def _row(name, words):
  files, bindings = [], []
  for word in words:
    if word.endswith(".gin"):
      files.append(word)
    elif "=" in word:
      bindings.append(word)
    else:
      bindings += attention_words.bindings(word)
  return study_types.Row(name, tuple(files), bindings=tuple(bindings))


def _claim(path, args, rows_):
  """Claims the folder for these settings, and that of each model for its own."""
  claims.claim(path, {
      "task": args.task, "steps": args.steps, "gin_files": args.gin_file,
      "gin_params": args.gin_param, "evaluations": args.evaluations,
      **({} if args.split == _SPLIT else {"split": args.split}),
      **_settings(args).chosen},
                 claims.contents(args.gin_file, args.gin_param, args.module_import))
  for row in rows_:
    claims.claim(path / row.folder, {
        "gin_files": [*row.gin_files], "bindings": [*row.bindings]},
                   claims.contents(row.gin_files, row.bindings))


def parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  made = arguments.parser("compare_models", __doc__)
  made.add_argument(
      "--model", nargs="+", action="append", required=True, metavar="WORD",
      help="a name, and what makes this model differ; repeat it. The first model is "
      "the one that the others are compared with")
  made.add_argument("--task", required=True, help="the task or mixture")
  made.add_argument("--steps", required=True, type=arguments.positive, metavar="N",
                    help="steps of training")
  made.add_argument("--output_dir", required=True, metavar="DIR",
                    help="the folder of the report and of all models")
  arguments.add_gin(made, "a gin file of all models; repeat it",
                    "a gin binding of all models; repeat it")
  settings_lib.add_flags(made, "1,2,3")
  made.add_argument("--evaluations", type=int, default=1, metavar="N",
                    choices=range(1, _LOOKS + 1),
                    help="checkpoints of each training that are evaluated, at most "
                    f"{_LOOKS} (default: 1, the last)")
  made.add_argument("--split", default=_SPLIT,
                    help="the split that is evaluated (default: %(default)s)")
  made.add_argument("--scores", type=_names, default=(), metavar="A,B,...",
                    help="the scores to report, such as accuracy; the picture shows "
                    "the first (default: all of the task)")
  made.add_argument("--lower_is_better", type=_names, default=(), metavar="A,B,...",
                    help="scores of which lower ones are better, beside those whose "
                    "names say so, such as wer")
  made.add_argument("--perplexity", action="store_true",
                    help="also measure the log perplexity, on at most 100 batches; "
                    "tasks without metrics always have it")
  made.add_argument("--json", metavar="FILE", help="write the JSON lines there, too")
  return made


def _names(text):
  return tuple(text.split(","))


if __name__ == "__main__":
  sys.exit(main())
