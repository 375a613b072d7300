"""The command that trains a vocabulary, as a user types it."""

import gzip
import json
import pydoc_data.topics
import subprocess
import sys

import pytest
from support.task_files import bind
from synthesizer_mtf.tasks import vocabulary

pytestmark = pytest.mark.usefixtures("clean_tasks")


def test_command_writes_a_model_that_the_tasks_take(tmp_path):
  """All kinds of files, in a process of its own, as a user types it."""
  text = tmp_path / "text.txt"
  text.write_text(pydoc_data.topics.topics["naming"])
  with gzip.open(tmp_path / "a.tsv.gz", "wt") as f:
    f.write("ß ß ß\tæ æ æ\n\n")
  (tmp_path / "a.jsonl").write_text(
      json.dumps({"inputs": "ø ø ø", "targets": "é é é"}))
  output = tmp_path / "new" / "spm.model"
  done = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.train_vocabulary",
       "--input", str(text), str(tmp_path / "a.*"), f"--output={output}",
       "--vocab_size=300", "--character_coverage=1"],
      capture_output=True, text=True, check=False, cwd=tmp_path)
  assert done.returncode == 0, done.stderr[-3000:]
  assert "in 3 files" in done.stderr and "Reading" in done.stderr
  binding = done.stdout.strip().splitlines()[-1]
  assert binding == f"{vocabulary.PARAMETER} = '{output}'"
  bind("vocabulary.sentencepiece_model", str(output))
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == 300 + 100
  for word in ("namespace", "ß", "æ", "ø", "é"):
    assert chosen.decode(chosen.encode(word)) == word
