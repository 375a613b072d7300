"""`make demo` at its smallest scale."""

import json
import pathlib
import subprocess
import sys

from matplotlib import image
from support import documents
from support import processes
from support import shell
from synthesizer_mtf.demo import __main__ as demo
from synthesizer_mtf.demo import data
from synthesizer_mtf.demo import report


def test_demo_runs_and_a_second_run_says_that_it_is_done(tmp_path, capsys):
  flags = ["--scale=test", "--attention", "R+V", f"--output_dir={tmp_path}"]
  first = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.demo", *flags],
      capture_output=True, text=True, check=False,
      cwd=pathlib.Path(__file__).parent)
  assert first.returncode == 0, first.stdout + first.stderr
  row, = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
  assert row["attention"] == "R+V" and row["params"] > 1_000_000
  assert row["steps_per_sec"] > 0 and 5 < row["log_perplexity"] < 10
  assert 0 <= row["bleu"] <= 100 and 0 <= row["accuracy"] <= 100
  assert report.table([row]) in first.stdout
  assert "tensorboard --logdir" in first.stdout
  assert first.stdout.count("--model_dir=") == 5
  assert image.imread(tmp_path / "loss.png").std() > 0.05
  assert "100%" in first.stdout and first.stdout.count("%|") <= 2 * 3

  assert demo.main(flags) == 0
  second = capsys.readouterr().out
  assert "Everything was done before" in second
  assert report.table([row]) in second
  assert "--gin_file" not in second

  few = "--gin_param=mesh_eval_dataset_fn.num_eval_examples = 8"
  done = processes.run([*_evaluation(tmp_path), few], tmp_path)
  assert done.returncode == 0, done.stderr[-3000:]
  assert "rounded down to 32760 tokens: 819 sequences of 40" in done.stderr
  assert "eval/synth_text_pairs/bleu at step 8" in done.stderr


def test_the_readmes_python_trains_on_the_data_of_the_demo(tmp_path):
  data.make(tmp_path / "demo_output" / "data")
  script, = (text for language, text in documents.blocks("README.md")
             if language == "python")
  done = subprocess.run(
      [sys.executable, "-c", script.replace("steps=1000", "steps=1")],
      capture_output=True, text=True, check=False, cwd=tmp_path)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (tmp_path / "trained" / "r+v" / "model.ckpt-1.index").exists()


def _evaluation(folder):
  """The words of the command in docs/train.md that evaluates the demo's model."""
  words, = (words for language, text in documents.blocks("docs/train.md")
            if language == "sh" for words in shell.commands(text)
            if "--gin_file=eval.gin" in words and "demo_output" in str(words))
  return [word.replace("demo_output", str(folder)) for word in words[1:]]
