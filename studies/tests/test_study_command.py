"""A study from its command to its lines."""

import json

from support import forks

TINY = ["d_model = 8", "d_ff = 12", "num_layers = 1", "num_heads = 2", "d_kv = 4"]


def test_a_study_of_several_sizes_has_a_score_for_each_size(tmp_path):
  output = tmp_path / "output"
  started = forks.start(
      ["--study=ability_lengths", "--rows=D", "--task=recall", "--seeds=4",
       "--steps=2", f"--output_dir={tmp_path}",
       *(f"--gin_param={size}" for size in TINY),
       "--gin_param=utils.run.perplexity_eval_steps = 1"], output)
  assert started.wait(600) == 0, output.read_text()
  line, = map(json.loads, (
      tmp_path / "ability_lengths" / "ability_lengths.jsonl").read_text().splitlines())
  assert list(line["scores"]) == [
      f"size_{pairs}/token_accuracy" for pairs in (4, 6, 8)]
  assert all(0 <= score < 0.7 for score in line["scores"].values())
