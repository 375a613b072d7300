"""The command that reproduces a table, killed and started again."""

import json
import time

import psutil
from support import forks
from support import launching
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.base import results

TINY = ["d_model = 8", "d_ff = 12", "num_layers = 1", "num_heads = 2",
        "d_kv = 4", launching.SGD]


def start(folder, text, vocabulary, jobs=1):
  sizes = [*TINY, "RandomLogits.stddev = 1e38", "DenseLogits.max_length = 16",
           "utils.run.sequence_length = {'inputs': 16, 'targets': 8}",
           f"synthesizer_mtf.tasks.text.train = '{text}'",
           f"synthesizer_mtf.tasks.text.validation = '{text}'"]
  return forks.start(
      ["--table=4", "--scale=laptop", "--rows=R,V",
       "--task=synth_text_span_corruption", "--seeds=5", "--steps=600",
       "--speed_rounds=0", f"--jobs={jobs}", f"--output_dir={folder}",
       *(f"--gin_param={size}" for size in sizes)],
      folder.with_name("output"), SYNTHESIZER_MTF_VOCAB=vocabulary)


def wait_for(condition):
  deadline = time.time() + 300
  while not condition():
    assert time.time() < deadline
    time.sleep(0.1)


def has_ended(process):
  try:
    return process.status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True


def test_a_killed_run_goes_on_and_a_row_that_fails_says_so(
    tmp_path, sentencepiece_model):
  text = tmp_path / "a.txt"
  text.write_text("The quick brown fox jumps over the lazy dog again.\n" * 40)
  folder, output = tmp_path / "out", tmp_path / "output"
  first = start(folder, text, sentencepiece_model, min(2, len(machine.cores())))
  model_dir = folder / "table4" / "v" / "seed_5" / "synth_text_span_corruption"
  wait_for(lambda: results.latest_step(model_dir) > 0 or first.poll() is not None)
  assert first.returncode is None, output.read_text()
  commands = psutil.Process(first.pid).children()
  first.kill()
  wait_for(lambda: all(map(has_ended, commands)))  # They end with their parent.
  step = results.latest_step(model_dir)
  assert commands and 0 < step < 600

  second = start(folder, text, sentencepiece_model)
  assert second.wait(400) == 1, output.read_text()
  log = model_dir.with_suffix(".log").read_text()
  assert f"Restoring parameters from {model_dir}/model.ckpt-{step}" in log
  lines = (folder / "table4" / "table4.jsonl").read_text().splitlines()
  rows = {(line["kind"], line["row"]): line for line in map(json.loads, lines)}
  assert rows["run", "V"]["status"] == "ok"
  assert 0 < rows["run", "V"]["scores"]["log_perplexity"] < 10
  assert rows["run", "R"]["status"] == "failed"
  assert "NaN" in rows["run", "R"]["reason"]
  said = output.read_text()
  assert "NaN" in said and "not run" not in said
  markdown = (folder / "table4" / "table4.md").read_text()
  assert "R seed 5 on synth_text_span_corruption failed" in markdown
