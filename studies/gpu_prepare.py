"""Prepares the training of several attentions by gpu_runs.py, and reads its results.

  python -m studies.gpu_prepare --out=FOLDER --gin_file=DATA/data.gin
  python gpu_runs.py --steps=FOLDER --out=RESULTS    # where the GPU is
  python -m studies.gpu_prepare --out=FOLDER --results=RESULTS

The FOLDER gets the tokens of the texts that gin names, and for each row its training
step without the state. The last command writes the table with paired differences, the
picture, and a checkpoint of each row in RESULTS that was saved. Runs of other seeds may
be in a folder of their own, by another `--results`.
"""

import argparse
import json
import lzma
import pathlib
import sys

import numpy as np
import pandas as pd
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import lines as lines_lib
from synthesizer_mtf.tasks import span_corruption
from synthesizer_mtf.tools.base import arguments
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.base import over_seeds
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import study_report
from synthesizer_mtf.tools.experiments import study_types
from t5.data import preprocessors

_TASK = "synth_text_span_corruption"
_ROWS = "V", "R", "FR", "D", "R+V", "FrozenQK"
_FILES = {"FrozenQK": "studies/frozen_qk.gin"}


def prepare(args: argparse.Namespace) -> None:
  """Writes the tokens, what the runs need to know, and the steps."""
  files = ["dataset.gin", args.model, "studies/gpu_runs.gin", *args.gin_file]
  gin_files.parse(files, args.gin_param)
  spans_of = span_corruption.bound_spans()
  length, targets = preprocessors.random_spans_helper(args.inputs, *spans_of, 1, 1)
  sizes = {"utils.run.sequence_length": {"inputs": args.inputs, "targets": targets},
           "utils.run.batch_size": args.batch, "table_length": args.inputs}
  bindings = [*(f"{name} = {size!r}" for name, size in sizes.items()), *args.gin_param]
  flags = [*pipeline.flags(files, {}), *(f"--gin_param={line}" for line in bindings)]
  task = seqio.get_mixture_or_task(_TASK)
  vocabulary = task.output_features["targets"].vocabulary
  for split in ("train", "validation"):
    ids = tokens(task, split)
    np.save(args.out / f"{split}.npy", ids)
    print(f"{split}: {len(ids):,} tokens", flush=True)
  spans = span_corruption.sentinels_needed(args.inputs, *spans_of)
  about = {"rows": args.rows, "batch": args.batch, "length": length,
           "noise": targets - spans - 1,
           "sentinels": vocabulary.sentinel_ids()[:spans], "eos": vocabulary.eos_id,
           "initial": {}}
  for row in args.rows:
    # The first row with a variable tells the others how it begins.
    about["initial"] = {**_export(row, args.out, flags), **about["initial"]}
    print(row, (args.out / f"{row}.step").stat().st_size, flush=True)
  (args.out / "about.json").write_text(json.dumps(about))


def tokens(task: seqio.Task, split: str) -> np.ndarray:
  """<uint16>[tokens]: the texts of a split, joined without an end, as T5 does."""
  vocabulary = task.output_features["targets"].vocabulary
  if vocabulary.vocab_size > 2 ** 16:
    raise checks.Error(f"the vocabulary has {vocabulary.vocab_size} ids, but the runs "
                       "keep tokens in 16 bits; take one of at most 65,536.")
  return np.concatenate([
      np.array(vocabulary.encode(text), np.uint16)
      for path in task.source.list_shards(split)
      for text, in task.source.parse(lines_lib.Lines(path))])


def _export(row, out, flags):
  """Writes the two files of a row that jax_speed.py reads; how variables begin."""
  folder = out / "models" / row
  made = folder / "step.jax"
  attention = _FILES.get(row, f"attention/{row.lower()}.gin")
  pipeline.Stage(
      f"export {row}",
      [*pipeline.launcher(), f"--model_dir={folder}", "--module_import=studies", *flags,
       f"--gin_file={attention}", "--gin_file=jax.gin", "--gin_file=export_step.gin",
       f"--gin_param=synthesizer_export_step.folder = '{folder}'",
       "--gin_param=utils.run.mesh_devices = ['cpu:0']"],
      out / "models" / f"{row}.log", made.exists).run()
  about = json.loads((folder / "step.json").read_text())
  with np.load(folder / "state.npz") as state:
    initial = {name: _spread(state[name]) for name in about["state"]}
    about["state"] = [[name, list(state[name].shape), state[name].dtype.name]
                      for name in about["state"]]
  with lzma.open(out / f"{row}.step", "wb") as f:
    f.write(made.read_bytes())
  (out / f"{row}.json").write_text(json.dumps(about))
  for name in ("step.jax", "step.json", "state.npz"):
    (folder / name).unlink()
  return initial


def _spread(value):
  """[mean, standard deviation] of a first value; of a normal one the mean is 0."""
  value = np.asarray(value, np.float64)
  is_constant = not value.size or value.min() == value.max()
  return [float(value.flat[0]) if value.size else 0., 0.] if is_constant else [
      0., float(np.sqrt(np.mean(value ** 2)))]


def report(args: argparse.Namespace) -> None:
  """Writes results.md, results.png and the checkpoints of rows that were saved.

  Raises:
    checks.Error: the folders of results have other steps, or a seed in common.
  """
  first, *_ = args.results
  lines = [line for folder in args.results for line in _lines([
      json.loads(row) for row in (folder / "looks.jsonl").open()])]
  _require_one_study(lines)
  score = study_types.Score("log perplexity", "log_perplexity", True, 4)
  study = study_types.Study(
      "gpu_runs", "Span corruption", (study_types.Task(
          "span_corruption", (), (study_types.Evaluation((score,)),),
          lines[0]["training_steps"]),),
      tuple(study_types.Row(name) for name in dict.fromkeys(
          line["row"] for line in lines)))
  text = study_report.Report(study, lines).markdown()
  (first / "results.md").write_text(text + "\n")
  _draw(study, lines, first / "results.png")
  print(text)
  for path in sorted(first.glob("*.npz")):
    with np.load(path) as state:
      folder, step = args.out / "models" / path.stem, int(state["global_step"])
      checkpoint_writer.write(
          str(folder), f"model.ckpt-{step}", (
              (name, np.int64(step) if name == "global_step" else state[name])
              for name in state.files))
    print(f"Wrote {folder}/model.ckpt-{step}")


def _require_one_study(lines):
  """Refuses lines that a table would not tell apart, or may not compare."""
  steps = sorted({line["training_steps"] for line in lines})
  if len(steps) > 1:
    raise checks.Error(f"--results: the runs ended after {steps} steps; give folders "
                       "of runs with the same --most.")
  keys = [(line["row"], line["seed"]) for line in lines]
  twice = sorted({key for key in keys if keys.count(key) > 1})
  if twice:
    raise checks.Error(f"--results: {twice} (row, seed) are in several folders; give "
                       "folders of other seeds.")


def _lines(rows):
  """The lines of a study that the rows of gpu_runs.py make."""
  machine, = [row for row in rows if row["part"] == "machine"]
  looks = [row for row in rows if row["part"] == "look"]
  seconds = {row["row"]: row["seconds"] for row in rows if row["part"] == "time"}
  return [{
      "row": end["row"], "task": "span_corruption", "seed": end["seed"],
      "status": "ok", "scores": {"log_perplexity": end["held_out"]},
      "training_steps": end["step"], "tokens": end["tokens"],
      "training_seconds": round(end["step"] * seconds[end["row"]]),
      "training_loss": [(look["step"], look["loss"]) for look in looks
                        if _key(look) == _key(end) and "loss" in look],
      "validation": [(look["step"], look["held_out"]) for look in looks
                     if _key(look) == _key(end)],
      "machine": {"cpu": machine["card"], "cores": machine["cores"]}}
          for end in rows if end["part"] == "end"]


def _draw(study, lines, path):
  """Draws held-out log perplexity, and the rows minus the first one, seed by seed."""
  first, *_ = rows = [row.name for row in study.rows]
  tokens = lines[0]["tokens"] / lines[0]["training_steps"] / 1e6  # Millions.
  curves = {row: pd.DataFrame({
      line["seed"]: {step * tokens: loss for step, loss in line["validation"]}
      for line in lines if line["row"] == row}) for row in rows}
  ends = study_report.scores(lines, study, study.tasks[0], "log_perplexity")
  pairs = ends.sub(ends[first], axis=0)
  estimates = over_seeds.estimates(pairs)
  with pictures.written(path, 3, 3, 3.2) as (figure, (mean, minus, end)):
    for number, row in enumerate(rows):
      # Without the first steps, whose loss would flatten the curves.
      late = curves[row][curves[row].index > .1 * curves[row].index.max()]
      mean.plot(late.mean(axis=1), color=f"C{number}", label=row)
      if row != first:
        _draw_pairs(minus, late - curves[first].loc[late.index], f"C{number}")
        pictures.draw_estimate(
            end, row, pairs[row], estimates.loc[row], f"C{number}")
    mean.set(title="mean of the seeds", xlabel="million tokens",
             ylabel="held-out log perplexity, nats")
    minus.set(title=f"minus {first}, looks on the way", xlabel="million tokens")
    end.set(title=f"minus {first}, at the end", xlabel="nats")
    end.invert_yaxis()
    minus.axhline(0, color="C0")
    end.axvline(0, color="C0")
    for axis in (mean, minus, end):
      axis.grid()
    figure.legend(loc="outside lower center", ncols=len(rows),
                  title=f"{len(ends)} seeds; bands and bars: 95% intervals of "
                  "the pairs, not corrected for their number")


def _draw_pairs(axis, differences, color):
  """Draws the mean of the seeds, and a band; `differences` is [steps, seeds]."""
  of = over_seeds.estimates(differences.T)
  axis.plot(of["mean"], color=color)
  axis.fill_between(of.index, of["low"], of["high"], color=color, alpha=.12)


def _key(row):
  return row["row"], row["seed"]


def main(argv: list[str] | None = None) -> None:
  """Parses flags and prepares, or reads results."""
  parser = arguments.parser("gpu_prepare", __doc__)
  add = parser.add_argument
  add("--out", required=True, type=pathlib.Path, metavar="FOLDER")
  add("--results", type=pathlib.Path, metavar="RESULTS", action="append",
      help="of gpu_runs.py; the first gets the table, and has the saved rows")
  add("--rows", type=lambda text: text.split(","), default=[*_ROWS])
  add("--inputs", type=arguments.positive, default=512, help="tokens of the inputs")
  add("--batch", type=arguments.positive, default=32, help="texts of a step")
  add("--model", default="models/laptop.gin", metavar="FILE", help="gin file of sizes")
  add("--gin_file", action="append", default=[], help="of the data, and others")
  add("--gin_param", action="append", default=[])
  with arguments.command(parser, argv) as args:
    args.out.mkdir(parents=True, exist_ok=True)
    (report if args.results else prepare)(args)


if __name__ == "__main__":
  sys.exit(main())
