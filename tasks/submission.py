r"""Predictions of a test split, as the servers of GLUE and SuperGLUE take them.

First evaluate all of a benchmark's test split, with the diagnostic sets:

  synthesizer_mesh_transformer --model_dir=MODEL_DIR ... --gin_file=eval.gin \
    --gin_param="MIXTURE_NAME = 'synth_glue_test'" \
    --gin_param="utils.run.dataset_split = 'test'" \
    --gin_param="eval_checkpoint_step = -1"

(or 'synth_super_glue_test'). It decodes without scores, because the labels are hidden.
Then

  python -m synthesizer_mtf.tasks.submission MODEL_DIR/test_eval --output=FOLDER \
    --t5_tfds_data_dir=TFDS

writes CoLA.tsv, ..., or BoolQ.jsonl, ..., into FOLDER, to be put into a zip file. The
environment variable SYNTHESIZER_MTF_VOCAB names the vocabulary. The default is T5's.
"""

import argparse
import ast
from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import re
import sys
from typing import Any

import seqio
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import glue  # noqa: F401 (registers tasks)
from synthesizer_mtf.tasks import super_glue  # noqa: F401 (registers tasks)
from synthesizer_mtf.trainer.checkpoints import model_folder
from synthesizer_mtf.trainer.watching import messages
import tensorflow.compat.v2 as tf
import tensorflow_datasets as tfds
import tqdm

_GLUE = {
    "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "qqp": "QQP",
    "mnli_matched": "MNLI-m", "mnli_mismatched": "MNLI-mm", "qnli": "QNLI",
    "rte": "RTE", "wnli": "WNLI", "ax": "AX"}
_SUPER_GLUE = {
    "boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC",
    "record": "ReCoRD", "rte": "RTE", "wic": "WiC", "wsc": "WSC", "axb": "AX-b",
    "axg": "AX-g"}
FILES = {**{f"synth_glue_{name}": f"{file}.tsv" for name, file in _GLUE.items()},
         **{f"synth_super_glue_{name}": f"{file}.jsonl"
            for name, file in _SUPER_GLUE.items()}}

# The words that name classes in a file. Other files have the numbers of classes.
_TRUTH = {"boolq": ("false", "true"), "wic": ("false", "true"),
          "wsc": ("False", "True")}
_NAMED = ("mnli_matched", "mnli_mismatched", "qnli", "rte", "cb", "ax", "axb", "axg")
_PREDICTIONS = re.compile(r"(synth_\w+)_(\d+)_predictions")


def lines(task: str, rows: Sequence[Mapping[str, Any]], predictions: Sequence[Any],
          ) -> tuple[list[str], int]:
  """Returns the lines of a task's file, and the number of predictions without a label.

  Args:
    task: a key of FILES.
    rows: the examples of the split, in order, with their `idx`.
    predictions: one for each example, as the task's `postprocess_fn` returns it. -1 is
      a prediction without a label, for which the first label is written.

  Raises:
    ValueError: there are more or fewer predictions than examples.
  """
  if len(rows) != len(predictions):
    raise checks.Error(
        f"{task} has {len(predictions)} predictions but {len(rows)} examples; "
        "evaluate all of the split, as with --gin_param=\"mesh_eval_dataset_fn."
        "num_eval_examples = -1\".")
  name = task.removeprefix("synth_super_glue_").removeprefix("synth_glue_")
  values = [p["value"] if isinstance(p, dict) else p for p in predictions]
  invalid = sum(value == -1 for value in values)
  if name == "stsb":
    labels = [f"{min(max(value, 0.0), 5.0):.1f}" for value in values]
  elif name == "record":
    labels = values
  else:
    classes = _classes(task, name)
    labels = [classes[max(value, 0)] for value in values]
  if name == "multirc":
    return _multirc(rows, labels), invalid
  if task.startswith("synth_glue_"):
    return ["index\tprediction", *(
        f"{row['idx']}\t{label}" for row, label in zip(rows, labels))], invalid
  key = "idx/query" if name == "record" else "idx"
  answers = {int(row[key]): label for row, label in zip(rows, labels)}
  return [json.dumps({"idx": idx, "label": label})
          for idx, label in answers.items()], invalid


def _classes(task, name):
  if name in _NAMED:
    module = tfds.text.super_glue.SuperGlue if "super" in task else (
        tfds.text.glue.Glue)
    return tuple(module.builder_configs[name].label_classes)
  return _TRUTH.get(name, (0, 1))


def _multirc(rows, labels):
  """A line for each paragraph, with its questions and their answers."""
  paragraphs = {}
  for row, label in zip(rows, labels):
    paragraph, question, answer = (
        int(row[f"idx/{part}"]) for part in ("paragraph", "question", "answer"))
    questions = paragraphs.setdefault(paragraph, {})
    questions.setdefault(question, []).append({"idx": answer, "label": label})
  return [json.dumps({"idx": paragraph, "passage": {"questions": [
      {"idx": question, "answers": answers}
      for question, answers in questions.items()]}})
          for paragraph, questions in paragraphs.items()]


def find(folder: str, step: int | None) -> tuple[int, dict[str, str]]:
  """Returns the step, and a dict from tasks to their files of predictions.

  Args:
    folder: MODEL_DIR/test_eval.
    step: the step of the checkpoint; None for the last.

  Raises:
    ValueError: there are no predictions for a task in FILES, or none of this step.
  """
  paths = {}
  for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ():
    match = _PREDICTIONS.fullmatch(name)
    if match and match[1] in FILES:
      paths.setdefault(int(match[2]), {})[match[1]] = os.path.join(folder, name)
  if not paths or (step is not None and step not in paths):
    steps = ", ".join(map(str, sorted(paths))) or "none"
    raise checks.Error(
        f"{folder!r} has no predictions of synth_glue_* or synth_super_glue_* tasks"
        f"{'' if step is None else f' at step {step}'} (steps that it has: {steps}); "
        "evaluate with eval.gin and `utils.run.dataset_split = 'test'`, and name "
        "MODEL_DIR/test_eval.")
  step = max(paths) if step is None else step
  return step, paths[step]


def _read(path: str) -> list[Any]:
  with tf.io.gfile.GFile(path) as f:
    return [ast.literal_eval(line) for line in f.read().splitlines()]


def _rows(task: str, split: str) -> list[dict[str, Any]]:
  # The lengths do not matter, because this function reads no feature that is cut.
  data = seqio.TaskRegistry.get(task).get_dataset(
      {"inputs": 8, "targets": 8}, split, shuffle=False)
  keys = [key for key in data.element_spec if key.startswith("idx")]
  return list(data.map(lambda row: {k: row[k] for k in keys}).as_numpy_iterator())


def _parser():
  parser = argparse.ArgumentParser(
      prog="submission", description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", help="MODEL_DIR/test_eval")
  parser.add_argument("--output", required=True, metavar="FOLDER",
                      help="where the files go")
  parser.add_argument("--step", type=int,
                      help="the step of the checkpoint (default: the last)")
  parser.add_argument("--split", default="test", help="default: %(default)s")
  parser.add_argument("--t5_tfds_data_dir", metavar="DIR",
                      help="the folder of the prepared data sets")
  return parser


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the files."""
  args = _parser().parse_args(argv)
  if args.t5_tfds_data_dir:
    seqio.set_tfds_data_dir_override(args.t5_tfds_data_dir)
  with messages.ending("submission"):
    step, paths = find(args.folder, args.step)
    tf.io.gfile.makedirs(args.output)
    for task, path in tqdm.tqdm(sorted(paths.items()), disable=None):
      content, invalid = lines(task, _rows(task, args.split), _read(path))
      model_folder.write_whole(
          os.path.join(args.output, FILES[task]), "\n".join(content) + "\n")
      if invalid:
        print(f"{task}: {invalid} predictions are not labels; the file has the "
              "first label instead.", file=sys.stderr)
  print(f"Step {step}: {', '.join(FILES[task] for task in sorted(paths))} in "
        f"{args.output}")


if __name__ == "__main__":
  main()
