"""`make demo`, at its smallest."""

import json
import pathlib
import subprocess
import sys

from matplotlib import image
from synthesizer_mtf.demo import __main__ as demo
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
