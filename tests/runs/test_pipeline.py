"""Tests of the folders that long commands work in."""

import subprocess
import sys

import pytest
from synthesizer_mtf.tools.runs import pipeline

_CLAIM = """
import pathlib, sys
from synthesizer_mtf.tools.runs import pipeline
pipeline.claim(pathlib.Path(sys.argv[1]), {"steps": 1})
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_folder_belongs_to_one_process_until_it_is_killed(tmp_path):
  folder = tmp_path / "new"
  with subprocess.Popen([sys.executable, "-c", _CLAIM, folder], text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    assert other.stdout.readline() == "claimed\n"
    with pytest.raises(ValueError, match=(
        f"`--output_dir` is '{folder}', where process {other.pid} on .* is at work")):
      pipeline.claim(folder, {"steps": 1})
    other.kill()
  pipeline.claim(folder, {"steps": 1})
  pipeline.claim(folder, {"steps": 1})


def test_a_folder_keeps_its_settings(tmp_path):
  pipeline.claim(tmp_path, {"steps": 1})
  with pytest.raises(ValueError, match="'steps': 1}, not {'steps': 2}; remove it"):
    pipeline.claim(tmp_path, {"steps": 2})
