"""The launcher is killed and started again, as by `tools/crash_test.py`."""

import json
import subprocess
import sys

import pytest
from support import checkpoint_files
from support import processes

KILLS = 2


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """The folder, the output and the rows of a short crash test."""
  folder = tmp_path_factory.mktemp("crash") / "new"
  rows = folder.with_suffix(".jsonl")
  done = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.crash_test", "--seed=0",
       f"--kills={KILLS}", f"--folder={folder}", f"--json={rows}"],
      capture_output=True, text=True, timeout=900, check=False)
  assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
  return folder, done.stdout, [json.loads(line) for line in open(rows)]


def test_killed_training_resumes_from_the_newest_complete_checkpoint(killed):
  folder, printed, rows = killed
  assert [row["kill"] for row in rows] == [1, 2]
  assert all(row["resumed"] == row["newest"] for row in rows)
  assert f"{KILLS} kills survived" in printed
  # The last restart ran to its end.
  assert "Loss for final step" in (folder / f"{KILLS}.log").read_text()


def test_another_variant_in_the_directory_is_refused(killed):
  folder, _, _ = killed
  model_dir = folder / "model"
  before = checkpoint_files.contents(model_dir)
  done = processes.run(
      [f"--model_dir={model_dir}",
       f"--gin_file={model_dir}/operative_config.gin",
       "--gin_param=synthesizer_stack.attention = 'V'",
       "--gin_param=utils.run.train_steps = 10000"], folder)
  assert done.returncode == 1
  sentence = done.stderr.strip().splitlines()[-1]
  assert "is of another model: it also has" in sentence
  assert "SyntheticAttention/R" in sentence
  assert "Traceback" not in done.stderr
  assert checkpoint_files.contents(model_dir) == before
