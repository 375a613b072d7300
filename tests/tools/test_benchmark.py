"""The benchmark runs, and its fields are right; no test looks at a time."""


import numpy as np
import pytest
from synthesizer_mtf import notation
from synthesizer_mtf.tools import benchmark
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import measuring
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.tools.benchmarking import report

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3,
        "num_layers": 1, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16,
        "vocabulary": 64}
CONFIG = model.Configuration(**TINY)


@pytest.mark.parametrize("flags, words", [
    (["--rows=R,X+V"], ["'X+V'", "--rows", "FR+D+V", "Synthesizer:random"]),
    (["--json=no/such/folder.json"], ["'no/such'", "make it first"]),
    (["--skip_train", "--skip_eval", "--skip_decode"], ["--skip"]),
])
def test_a_mistake_is_one_sentence_and_not_success(flags, words):
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


def test_every_synthesizing_function_is_a_row_by_itself():
  assert set(notation.SYNTHESIZING_FUNCTIONS) < set(attentions.ROWS)


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


def test_notations_beyond_the_default_rows_are_rows():
  assert attentions.find_row("Fix+FD").family == "ours"


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
