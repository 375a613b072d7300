"""The command that reproduces a table, killed and started again."""

import json
import os
import subprocess
import sys
import time

from synthesizer_mtf.runs import machine
from synthesizer_mtf.runs import results

TINY = ["d_model = 8", "d_ff = 12", "num_layers = 1", "num_heads = 2",
        "d_kv = 4"]


def start(folder, text, vocabulary, jobs=1):
  sizes = [*TINY, "RandomLogits.stddev = 1e38", "DenseLogits.max_length = 16",
           "utils.run.sequence_length = {'inputs': 16, 'targets': 8}",
           f"synthesizer_mtf.tasks.text.train = '{text}'",
           f"synthesizer_mtf.tasks.text.validation = '{text}'"]
  return subprocess.Popen(
      [sys.executable, "-m", "synthesizer_mtf.tools.reproduce", "--table=4",
       "--scale=laptop", "--rows=R,V", "--task=synth_text_span_corruption",
       "--seeds=5", "--steps=600", "--speed_rounds=0", f"--jobs={jobs}",
       f"--output_dir={folder}", *(f"--gin_param={size}" for size in sizes)],
      env={**os.environ, "SYNTHESIZER_MTF_VOCAB": vocabulary},
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_killed_run_goes_on_and_a_row_that_fails_says_so(
    tmp_path, sentencepiece_model):
  text = tmp_path / "a.txt"
  text.write_text("The quick brown fox jumps over the lazy dog again.\n" * 40)
  folder = tmp_path / "out"
  first = start(folder, text, sentencepiece_model, min(2, len(machine.cores())))
  model_dir = folder / "table4" / "v" / "seed_5" / "synth_text_span_corruption"
  deadline = time.time() + 300
  while results.latest_step(model_dir) < 1 and time.time() < deadline:
    assert first.poll() is None, first.stdout.read()
    time.sleep(0.1)
  first.kill()
  first.communicate()  # Waits until its commands have also ended.
  step = results.latest_step(model_dir)
  assert 0 < step < 600

  second = start(folder, text, sentencepiece_model)
  output, _ = second.communicate(timeout=400)
  assert second.returncode == 1, output
  log = model_dir.with_suffix(".log").read_text()
  assert f"Restoring parameters from {model_dir}/model.ckpt-{step}" in log
  rows = {}
  lines = (folder / "table4" / "table4.jsonl").read_text().splitlines()
  for line in map(json.loads, lines):
    rows[line["kind"], line["row"]] = line
  assert rows["run", "V"]["status"] == "ok"
  assert 0 < rows["run", "V"]["scores"]["log_perplexity"] < 10
  assert rows["run", "R"]["status"] == "failed"
  assert "NaN" in rows["run", "R"]["reason"]
  assert "NaN" in output and "not run" not in output
  markdown = (folder / "table4" / "table4.md").read_text()
  assert "R seed 5 on synth_text_span_corruption failed" in markdown
