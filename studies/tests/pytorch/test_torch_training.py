"""The trainings of the study of calibrated attention, in PyTorch.

`make test-pytorch` runs these tests; another Python runs `train_tiny.py`.
"""

import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from support import exported_models

_SCRIPT = pathlib.Path(__file__).with_name("train_tiny.py")
# As in `support.models.TINY`.
_SIZES = {"d_model": 10, "d_kv": 6, "num_heads": 2, "d_ff": 14, "num_layers": 2,
          "num_decoder_layers": 2}


@pytest.fixture(scope="module")
def trained(pytestconfig, tmp_path_factory, sentencepiece_model):
  """A folder after `train_tiny.py`, with R's log-perplexity in Mesh TensorFlow."""
  folder = tmp_path_factory.mktemp("trained")
  r = exported_models.Exported(
      folder / "exported", sentencepiece_model, exported_models.lines("R"))
  inputs, targets = exported_models.examples(4)
  ours = r.compute(inputs, targets, gradients=False)
  r.export()
  shutil.copytree(r.theirs, folder / "r")
  shutil.copy(sentencepiece_model, folder / "spiece.model")
  (folder / "sizes.json").write_text(json.dumps(_SIZES))
  (folder / "rows").mkdir()
  more = np.random.RandomState(4).randint(3, 500, (2, 20, 11))
  np.savez(folder / "rows" / "span_corruption.npz", train_inputs=more[0],
           train_targets=more[1], validation_inputs=inputs, validation_targets=targets)
  np.savez(folder / "rows" / "recall.npz", same_inputs=inputs, same_targets=targets,
           other_inputs=inputs[::-1], other_targets=targets)
  done = subprocess.run(
      [pytestconfig.getoption("pytorch"), _SCRIPT, folder], capture_output=True,
      text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1",
                                   "HF_HOME": str(folder / "cache")})
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.count("killed") == 1
  logits = ours["logits"].astype(np.float64)
  each = np.take_along_axis(logits, targets[..., None], -1)[..., 0] - np.log(
      np.exp(logits).sum(-1))
  return folder, -each[targets > 0].mean()


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_training_goes_on_as_if_it_had_not_ended(trained):
  folder, _ = trained
  whole, killed = (
      [{**line, "seconds": 0} for line in lines(folder / name / "log.jsonl")]
      for name in ("whole", "killed"))
  assert [line["step"] for line in whole] == [2, 4, 6]
  assert killed == whole
  assert len({line["loss"] for line in whole}) == 3
  models = [(folder / name / "model.safetensors").read_bytes()
            for name in ("whole", "killed")]
  assert models[0] == models[1]


def test_recovery_writes_a_line_for_each_start_and_seed_once(trained):
  folder, _ = trained
  found = lines(folder / "recovery.jsonl")
  assert sorted((line["start"], line["seed"]) for line in found) == [
      (start, seed) for start in ("V", "annealed", "calibrated", "scratch")
      for seed in (1, 2)]
  assert {line["steps"] for line in found} == {2}
  for line in found:
    assert np.isfinite(line["after"]) and line["after"] != line["before"]


def test_recovery_begins_at_the_log_perplexity_of_its_start(trained):
  folder, expected = trained
  before = {}
  for line in lines(folder / "recovery.jsonl"):
    before.setdefault(line["start"], []).append(line["before"])
  np.testing.assert_allclose(before["calibrated"], expected, rtol=2e-2)  # bfloat16
  best = min(line["log_perplexity"] for line in lines(folder / "whole" / "log.jsonl"))
  np.testing.assert_allclose(before["V"], best, rtol=1e-6)
  # New variables depend on the seed.
  assert before["scratch"][0] != before["scratch"][1]
  # Weights of 0.001 for R and 0.999 for V, whose queries and keys are those of V.
  assert before["annealed"][0] != before["calibrated"][0]
