"""The benchmark runs, and its fields are right; no test looks at a time."""

import dataclasses
import json
import sys
import types

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import decoding
from support import hugging_face
from synthesizer_mtf import notation
from synthesizer_mtf.tools import benchmark
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import baselines
from synthesizer_mtf.tools.benchmarking import breakdown
from synthesizer_mtf.tools.benchmarking import exported
from synthesizer_mtf.tools.benchmarking import measuring
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.tools.benchmarking import report
import transformers

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3,
        "num_layers": 1, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16,
        "vocabulary": 64}
CONFIG = model.Configuration(**TINY)


@pytest.fixture(scope="module", name="programs")
def fixture_programs():
  """Programs of training steps of some rows, which do not run."""
  names = ["SelfAttention", "V", "R", "floor"]
  programs = {name: model.build(attentions.find_row(name), CONFIG, "train")
              for name in names}
  yield programs
  for program in programs.values():
    program.close()


@pytest.mark.parametrize("flags, words", [
    (["--rows=R,X+V"], ["'X+V'", "--rows", "FR+D+V", "Synthesizer:random"]),
    (["--json=no/such/folder.json"], ["'no/such'", "make it first"]),
    (["--skip_train", "--skip_eval", "--skip_decode"], ["--skip"]),
    (["--baselines=no/such/python"],
     ["'no/such/python'", "--baselines", "transformers"]),
    (["--peers=no/such/python"], ["'no/such/python'"]),
    (["--breakdown", "--skip_train"], ["--breakdown", "--skip_train"]),
])
def test_a_mistake_ends_in_one_sentence_and_an_error_status(flags, words):
  with pytest.raises(SystemExit) as exit_info:
    benchmark.main(flags)
  message = exit_info.value.code  # Python prints it and returns 1.
  assert message.startswith("benchmark: ") and "\n" not in message
  assert all(word in message for word in words)


@pytest.mark.parametrize("name", attentions.ROWS)
def test_every_row_builds_the_attention_that_it_names(name):
  row = attentions.find_row(name)
  program = model.build(row, CONFIG, "decode")
  ids = program.run()
  program.close()
  assert ids.shape == (3, 6)
  assert not np.any(ids == 1)  # Decoding never ends early.
  self_attention = name if name in notation.LAYERS else {
      "ours": "SyntheticAttention", "authors": "Synthesizer",
      "floor": "ValuesOnly"}.get(row.family, name.split(":", maxsplit=1)[0])
  expected = [self_attention] * 2
  if name in attentions.ENCODER_ONLY:
    expected = [name, "SelfAttention"]
  assert program.attention == expected


def test_every_synthesizing_function_and_every_mixture_is_a_row():
  assert set(notation.SYNTHESIZING_FUNCTIONS) < set(attentions.ROWS)
  assert attentions.find_row("Fix+FD").family == "ours"


@pytest.mark.slow
@pytest.mark.parametrize("ours, stock", [
    ("LightConv", "LocalConvAttnBlock:lightweight"),
    ("DyConv", "LocalConvAttnBlock:dynamic")])
def test_convolutions_have_the_parameters_of_stock_ones(ours, stock):
  parameters = []
  for name in (ours, stock):
    program = model.build(
        attentions.find_row(name), CONFIG, "eval")
    parameters.append(program.parameters)
    program.close()
  assert parameters[0] == parameters[1]


@pytest.mark.parametrize(
    "name", ["SelfAttention", "R", "SparseStrided", "Synthesizer:random"])
def test_the_relative_bias_replaces_position_embeddings(name):
  row = attentions.find_row(name)

  def parameters(relative_bias):
    config = model.Configuration(**TINY, relative_bias=relative_bias)
    program = model.build(row, config, "eval")
    program.close()
    return program.parameters

  # A table of 32 distances and 2 heads in each stack; 12 positions.
  assert parameters(True) - parameters(False) == 2 * 32 * 2 - 12 * 8


def test_strides_of_the_sparse_rows_balance_the_two_parts_of_their_cost():
  fixed, strided = [
      " ".join(attentions.find_row(name).bindings(4096, 128))
      for name in ("SparseFixed", "SparseStrided")]
  assert "encoder/SparseStrided.stride = 64" in strided
  assert "decoder/SparseFixed.stride = 32" in fixed
  assert "encoder/SparseFixed.columns = 8" in fixed


def test_each_row_is_there_in_each_precision(monkeypatch):
  rows = attentions.in_precisions(
      [attentions.find_row("V"), *baselines.rows(sys.executable, ["decode"])],
      ["float32", "bfloat16"])
  assert [(row.name, row.precision) for row in rows] == [
      ("V", "float32"), ("V in bfloat16", "bfloat16"),
      ("PyTorch", "float32"), ("PyTorch in bfloat16", "bfloat16"),
      ("CTranslate2", "float32"), ("CTranslate2 in bfloat16", "bfloat16"),
      ("CTranslate2 in int8", "int8")]
  assert attentions.find_row("V in bfloat16").bindings(9, 5) == rows[0].bindings(9, 5)
  monkeypatch.setattr(attentions.mixed_precision, "has_products", lambda: False)
  assert rows[0].obstacle(9, 5) is None
  assert rows[1].obstacle(9, 5) == "this processor has no products in bfloat16"


def test_a_row_that_fails_is_left_out_and_the_others_go_on(monkeypatch):
  built = model.build

  def build(row, config, measure):
    if row.name == "R":
      raise RuntimeError("broken\nin detail")
    program = built(row, config, measure)
    if row.name == "V":
      program.close()
    return program

  monkeypatch.setattr(model, "build", build)
  rows = [attentions.find_row(n) for n in ("SelfAttention", "V", "R", "floor")]
  results = {r["row"]: r for r in measuring.measure_time(
      rows, CONFIG, "eval", 0, 1, lambda done, what: None)}
  assert results["R"]["reason"] == "RuntimeError: broken"
  assert results["V"]["status"] == "failed"
  assert results["floor"]["status"] == "ok" and "ratio" in results["floor"]
  assert "failed" in report.table(list(results.values()))


def test_ratios_are_taken_within_rounds():
  summary = measuring.compare([1.0, 2.0, 40.0], [2.0, 4.0, 80.0])
  assert summary["ratio"] == 2 and summary["ratio_quartiles"] == [2, 2]
  assert summary["median_seconds"] == 2


def test_rows_take_turns_and_each_round_begins_with_another():
  order = []

  class Recorder:

    def __init__(self, name):
      self.run = lambda: order.append(name)

  names = ["a", "b", "c"]
  seconds = measuring.take_turns(
      {n: Recorder(n) for n in names}, {}, 1, 2, lambda done, what: None)
  assert "".join(order) == "abcbcacab"
  assert all(len(s) == 2 for s in seconds.values())


def test_memory_is_a_share_of_stock_above_the_floor():
  results = {n: {"peak_mebibytes": m} for n, m in (
      ("SelfAttention", 500), ("R", 320), ("floor", 300))}
  measuring.add_shares(results)
  assert [r["memory_share"] for r in results.values()] == [1, 0.1, 0]


@pytest.mark.parametrize("name, node, part", [
    ("V", "encoder/lookup/gradients/lookup_grad/parallel/UnsortedSegmentSum",
     "embedding"),
    ("V", "decoder/cross_entropy/parallel/Softmax", "logits and loss"),
    ("V", "adafactor_3/parallel/Sqrt", "optimizer"),
    ("V", "assign_7/parallel/AssignSub", "optimizer"),
    ("V", "decoder/block_000/layer_000/SyntheticAttention/einsum_3/gradients/einsum/"
     "parallel/einsum/Einsum", "self-attention"),
    ("V", "decoder/block_000/layer_001/EncDecAttention/slicewise/parallel/Softmax",
     "cross-attention"),
    ("V", "encoder/block_000/layer_001/DenseReluDense/wi/einsum/parallel/einsum/Einsum",
     "feed-forward"),
    ("V", "encoder/block_000/layer_001/dropout/random/parallel/RandomUniform", "rest"),
    ("V", "encoder/rms_norm/square/parallel/Square", "rest"),
    ("SelfAttention", "encoder/one_hot/parallel/one_hot", "embedding"),
    ("SelfAttention", "decoder/one_hot_1/parallel/one_hot", "logits and loss"),
    ("SelfAttention", "shared/embedding/adafactor/square/parallel/Square",
     "optimizer"),
])
def test_names_tell_the_part_of_a_step(programs, name, node, part):
  program = programs[name]
  made = {op.name for op in program.operations} | {"adafactor_3", "assign_7"}
  assert any(node.startswith(f"{op}/") for op in made)
  assert breakdown.part(node, program.parts) == part


@pytest.mark.parametrize("name", ["SelfAttention", "V", "R", "floor"])
def test_the_rest_has_no_product_with_a_matrix(programs, name):
  program = programs[name]
  rest = [op for op in program.operations if isinstance(op, mtf.ops.EinsumOperation)
          and breakdown.part(f"{op.name}/parallel/Einsum", program.parts) == "rest"]
  assert rest  # The scales of norms.
  for op in rest:
    assert not [i for i in op.inputs if isinstance(i.operation, mtf.Variable)
                and i.shape.ndims > 1]


def test_simultaneous_operations_share_their_time_and_pauses_are_rest():
  def node(name, start, end):
    return types.SimpleNamespace(node_name=f"encoder/block_000/layer_000/{name}/x",
                                 all_start_micros=1000, op_start_rel_micros=start,
                                 op_end_rel_micros=end)

  stats = types.SimpleNamespace(dev_stats=[types.SimpleNamespace(node_stats=[
      node("SelfAttention", 0, 10), node("DenseReluDense", 6, 12),
      node("DenseReluDense", 6, 8), node("EncDecAttention", 20, 25)])])
  assert breakdown.seconds(stats, {}) == pytest.approx({
      "self-attention": 6e-6 + 2e-6 / 3 + 1e-6,
      "feed-forward": 4e-6 / 3 + 1e-6 + 2e-6,
      "cross-attention": 5e-6, "rest": 8e-6,
      "embedding": 0, "logits and loss": 0, "optimizer": 0})


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


def test_a_baseline_takes_turns_in_a_process_and_its_end_is_noted(baseline):
  results = measuring.measure_time(
      [attentions.find_row("SelfAttention"),
       *baselines.rows(sys.executable, ["train"])],
      CONFIG, "train", 1, 2, lambda done, what: None)
  _, torch, jax = results
  assert (torch["status"], torch["parameters"]) == ("ok", CONFIG.d_model)
  assert len(torch["seconds"]) == 2 and torch["row_versions"] == {"PyTorch": "1.0"}
  assert "multiply_adds" not in torch and "share" not in torch
  assert jax["status"] == "failed" and "status 3" in jax["reason"]
  json.dumps(results)


def test_a_missing_baseline_is_reported_and_another_may_be_the_reference(baseline):
  rows = [attentions.find_row("V"), *baselines.rows(sys.executable, ["decode"])]
  config = dataclasses.replace(CONFIG, beam=2)
  results = measuring.measure_time(
      rows, config, "decode", 1, 2, lambda done, what: None, reference="PyTorch")
  v, torch, *missing = results
  assert torch["tokens_per_second"] == pytest.approx(3 * 6 / torch["median_seconds"])
  assert torch["ratio"] == 1 and 0 < v["ratio"] and "share" not in v
  assert [r["status"] for r in missing] == ["not possible"] * 2
  assert missing[0]["reason"].endswith("has no package ctranslate2")
  table = report.table(results)
  assert "| beam 2, batch 3" in table and "as fast as PyTorch in" in table
  assert f"{torch['tokens_per_second']:,.0f} [" in table


def test_the_command_takes_a_baseline_as_the_reference(baseline, capsys):
  sizes = [f"--{name}={value}" for name, value in TINY.items()]
  benchmark.main([
      "--rows=V", "--skip_train", "--skip_eval", "--decode_steps=1", "--warmup=1",
      "--decode_batch=2", "--reference=PyTorch",
      f"--baselines={sys.executable}", *sizes])
  table = capsys.readouterr().out
  assert "| PyTorch " in table and "as fast as PyTorch in" in table


def test_baselines_decode_with_v_from_a_hugging_face_folder():
  folder = exported.folder(CONFIG)
  flax = hugging_face.Flax(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 63]) == [
      "<pad>", "</s>", "<unk>", "p3", "p63"]
  program = model.build(
      attentions.find_row("V"), dataclasses.replace(CONFIG, relative_bias=True),
      "decode")
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


@pytest.mark.parametrize("measure, packed, reason", [
    ("decode", 0, "only by train"), ("memory", 0, "only by train"),
    ("train", 4, "packed rows")])
def test_a_measure_that_a_baseline_cannot_take_has_a_reason(measure, packed, reason):
  config = model.Configuration(**TINY, packed=packed)
  rows = [row for row in baselines.rows(sys.executable, ["train"]) if row.name == "JAX"]
  if measure == "memory":
    results = measuring.measure_memory(rows, config, 1, lambda done, what: None)
  else:
    results = measuring.measure_time(
        rows, config, measure, 0, 1, lambda done, what: None)
  assert [(r["status"], reason in r["reason"]) for r in results] == [
      ("not possible", True)]
