"""Other programs beside the rows of the benchmark."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from studies.peers import __main__ as peers
from studies.peers import baselines
from studies.peers import exported
from support import decoding
from support import hugging_face
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.benchmark import result_tables
import transformers

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3, "num_layers": 1,
        "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16, "vocabulary": 64}
CONFIG = model.Configuration(**TINY)


class Program(model.Program):
  """A program that does nothing."""

  def __init__(self, row, config, measure):
    self.sizes = {"parameters": 1, "multiply_adds": 1}

  def run(self):
    pass

  def close(self):
    pass


def nothing(done, what):
  """Shows no progress."""


BASELINE = """
import json, sys
name, measure, precision, sizes = sys.argv[1:]
if name == "CTranslate2":
  print(json.dumps({"obstacle": "has no package ctranslate2"}))
  sys.exit()
print(json.dumps({"parameters": json.loads(sizes)["d_model"],
                  "versions": {name: "1.0"}}), flush=True)
for i, _ in enumerate(sys.stdin):
  if name == "JAX" and i == 2:
    sys.exit(3)
  print(json.dumps({"result": [1.0]}), flush=True)
"""


@pytest.fixture(name="baseline")
def fixture_baseline(tmp_path, monkeypatch):
  """A script that replaces PyTorch, JAX and CTranslate2, which are not installed."""
  script = tmp_path / "baseline.py"
  script.write_text(BASELINE)
  monkeypatch.setattr(baselines, "_SCRIPT", script)
  monkeypatch.setattr(baselines.exported, "folder", lambda config: str(tmp_path))
  monkeypatch.setattr(model, "build", Program)
  monkeypatch.setattr(measuring, "_REST", 0)


def test_a_baseline_takes_turns_in_a_process_and_its_end_is_noted(baseline):
  results = measuring.measure_time(
      [attentions.find_row("SelfAttention"),
       *baselines.rows(sys.executable, ["train"])],
      CONFIG, "train", 1, 2, nothing)
  _, torch, jax = results
  assert (torch["status"], torch["parameters"]) == ("ok", CONFIG.d_model)
  assert len(torch["seconds"]) == 2 and torch["row_versions"] == {"PyTorch": "1.0"}
  assert "multiply_adds" not in torch and "share" not in torch
  assert jax["status"] == "failed" and "status 3" in jax["reason"]
  json.dumps(results)


def test_a_missing_baseline_is_reported_and_another_may_be_the_reference(
    baseline, capsys):
  rows = [attentions.find_row("V"), *baselines.rows(sys.executable, ["decode"])]
  v, torch, *missing = results = measuring.measure_time(
      rows, dataclasses.replace(CONFIG, beam=2), "decode", 1, 2,
      nothing, reference="PyTorch")
  assert torch["tokens_per_second"] == pytest.approx(3 * 6 / torch["median_seconds"])
  assert torch["ratio"] == 1 and 0 < v["ratio"] and "share" not in v
  assert [r["status"] for r in missing] == ["not possible"] * 2
  assert missing[0]["reason"].endswith("has no package ctranslate2")
  table = result_tables.table(results)
  assert "| beam 2, batch 3" in table and "as fast as PyTorch in" in table
  assert f"{torch['tokens_per_second']:,.0f} [" in table
  peers.main([*(f"--{name}={size}" for name, size in TINY.items()), "--rows=V",
              "--skip_train", "--skip_eval", "--decode_steps=1", "--reference=PyTorch",
              f"--baselines={sys.executable}"])
  printed = capsys.readouterr().out
  assert "| PyTorch " in printed and "as fast as PyTorch in" in printed


def test_a_measure_that_a_baseline_cannot_take_has_a_reason():
  rows = [row for row in baselines.rows(sys.executable, ["train"]) if row.name == "JAX"]
  packed = dataclasses.replace(CONFIG, packed=4)
  found = [measuring.measure_time(rows, CONFIG, "decode", 0, 1, nothing),
           measuring.measure_memory(rows, CONFIG, 1, nothing),
           measuring.measure_time(rows, packed, "train", 0, 1, nothing)]
  for (result,), reason in zip(found, 2 * ["only by train"] + ["packed rows"]):
    assert result["status"] == "not possible" and reason in result["reason"]


def test_each_baseline_is_there_in_each_precision():
  rows = attentions.in_precisions(
      baselines.rows(sys.executable, ["decode"]), ["float32", "bfloat16"])
  assert [(row.name, row.precision) for row in rows] == [
      ("PyTorch", "float32"), ("PyTorch in bfloat16", "bfloat16"),
      ("CTranslate2", "float32"), ("CTranslate2 in bfloat16", "bfloat16"),
      ("CTranslate2 in int8", "int8")]


@pytest.mark.parametrize("flag", ["baselines", "peers"])
def test_a_python_that_does_not_exist_is_named(flag):
  with pytest.raises(SystemExit, match="studies.peers: there is no file 'no/such"):
    peers.main([f"--{flag}=no/such/python"])


@pytest.mark.slow
def test_baselines_decode_with_v_from_a_hugging_face_folder():
  # With fewer, the tied embedding answers <pad>, the start, with <pad>.
  config = dataclasses.replace(CONFIG, num_layers=2, d_model=16, relative_bias=True)
  folder = exported.folder(config)
  flax = hugging_face.Flax(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 63]) == [
      "<pad>", "</s>", "<unk>", "p3", "p63"]
  program = model.build(attentions.find_row("V"), config, "decode")
  ids, full = program.run(), 1  # The first example ends in padding.
  program.close()
  inputs = np.random.RandomState(0).randint(2, 64, (3, 12))
  decoding.check_greedy(
      ids[full:], _best_after(flax, inputs[full:], ids[full:]))


def _best_after(flax, inputs, ids):
  """The best token except the end at each position, given the tokens before it."""
  logits = np.array(flax.logits(inputs, ids)[0])
  logits[..., 1] = -np.inf
  return logits.argmax(-1)
