"""The benchmark runs, and its fields are right; no test looks at a time."""

import csv
import json
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from synthesizer_mtf import notation
from synthesizer_mtf.tools import benchmark
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import measuring
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.tools.benchmarking import plot
from synthesizer_mtf.tools.benchmarking import report

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3,
        "num_layers": 1, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16,
        "vocabulary": 64}
CONFIG = model.Configuration(**TINY)


def tiny_flags(**changes):
  return [f"--{k}={v}" for k, v in {**TINY, **changes}.items()]


@pytest.fixture(scope="module", name="outcome")
def fixture_outcome(tmp_path_factory):
  """Standard output, JSON rows, CSV rows and the picture of one small run."""
  folder = tmp_path_factory.mktemp("benchmark")
  paths = {kind: folder / f"out.{kind}" for kind in ("json", "csv", "png")}
  process = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.benchmark",
       *tiny_flags(inputs=520), "--rows=R,Synthesizer:random_plus_alpha,floor",
       "--steps=2", "--warmup=1", "--decode_steps=1",
       *(f"--{kind}={path}" for kind, path in paths.items())],
      capture_output=True, text=True, check=False, timeout=300)
  assert process.returncode == 0, process.stderr
  rows = [json.loads(line) for line in paths["json"].read_text().splitlines()]
  with open(paths["csv"], newline="", encoding="utf-8") as f:
    table = list(csv.DictReader(f))
  return process, rows, table, matplotlib.image.imread(paths["png"])


def of_measure(rows, measure):
  return {r["row"]: r for r in rows if r["measure"] == measure}


def test_each_row_and_measure_is_in_the_json_lines(outcome):
  _, rows, _, _ = outcome
  assert [(r["measure"], r["row"]) for r in rows] == [
      (measure, row) for measure in ("train", "eval", "decode")
      for row in ("SelfAttention", "R", "Synthesizer:random_plus_alpha", "floor")]


def test_json_lines_say_what_was_measured_and_where(outcome):
  _, rows, _, _ = outcome
  for row in rows:
    assert row["configuration"]["d_model"] == 8
    assert (row["inputs"], row["targets"], row["device"]) == (520, 6, "cpu:0")
    assert row["versions"]["tensorflow"] and row["machine"]["cores"] > 0
    decodes = row["measure"] == "decode"
    assert (row["warmup"], row["repeats"]) == ((1, 1) if decodes else (1, 2))


def test_json_lines_have_times_with_spread_and_ratios(outcome):
  _, rows, _, _ = outcome
  for row in (r for r in rows if r["status"] == "ok"):
    low, high = row["quartiles_seconds"]
    assert 0 < low <= row["median_seconds"] <= high
    assert len(row["seconds"]) == row["repeats"]
    low, high = row["ratio_quartiles"]
    assert low <= row["ratio"] <= high
    assert ("tokens_per_second" in row) == (row["measure"] == "decode")
  assert of_measure(rows, "train")["SelfAttention"]["ratio"] == 1


def test_sizes_are_those_of_the_model(outcome):
  train = of_measure(outcome[1], "train")
  stock, random, floor = (
      train[name] for name in ("SelfAttention", "R", "floor"))
  # q and k of two layers; tables as long as the sequences of each stack.
  assert stock["parameters"] - floor["parameters"] == 2 * 2 * 8 * 8
  assert random["parameters"] - floor["parameters"] == 2 * (520**2 + 6**2)
  assert stock["multiply_adds"] > random["multiply_adds"] > floor["multiply_adds"]
  assert stock["einsum_tflops"] == pytest.approx(
      2e-12 * stock["multiply_adds"] / stock["median_seconds"])


def test_the_paper_stands_beside_its_rows(outcome):
  train = of_measure(outcome[1], "train")
  assert train["R"]["paper_ratio"] == pytest.approx(4.26 / 3.90)
  assert train["R"]["paper_row"] == "R"
  assert "paper_ratio" not in train["floor"]


def test_an_impossible_row_says_why_and_the_others_go_on(outcome):
  process, rows, _, _ = outcome
  impossible = [r for r in rows if r["family"] == "authors"]
  assert {r["status"] for r in impossible} == {"not possible"}
  assert "512" in impossible[0]["reason"]
  assert "median_seconds" not in impossible[0]
  assert all(r["status"] == "ok" for r in rows if r["family"] != "authors")
  assert impossible[0]["reason"] in process.stdout


def test_the_table_has_a_line_for_each_row_and_the_header_the_machine(outcome):
  process, rows, _, _ = outcome
  lines = [line for line in process.stdout.splitlines() if line.startswith("| ")]
  assert [line.split()[1] for line in lines[2:]] == [
      "SelfAttention", "R", "Synthesizer:random_plus_alpha", "floor"]
  assert rows[0]["machine"]["cpu"] in process.stdout
  assert "tensorflow 2." in process.stdout
  assert "train 520/6" in process.stderr  # The progress bar.


def test_the_csv_holds_the_same_rows(outcome):
  _, rows, table, _ = outcome
  assert [r["row"] for r in table] == [r["row"] for r in rows]
  assert float(table[1]["median_seconds"]) == rows[1]["median_seconds"]
  assert float(table[1]["ratio_quartiles.0"]) == rows[1]["ratio_quartiles"][0]
  assert table[0]["configuration.d_kv"] == "4"


def test_the_picture_is_not_blank(outcome):
  picture = outcome[3]
  assert min(picture.shape[:2]) > 200
  assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 10


def test_several_lengths_are_drawn_as_growth(outcome, tmp_path):
  rows = outcome[1]
  longer = [{**r, "inputs": 2 * r["inputs"]} for r in rows]
  assert plot.plot(rows + longer, tmp_path / "growth.png")
  picture = matplotlib.image.imread(tmp_path / "growth.png")
  assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 10


def test_nothing_to_draw_writes_no_file(outcome, tmp_path):
  impossible = [r for r in outcome[1] if r["status"] != "ok"]
  assert not plot.plot(impossible, tmp_path / "none.png")
  assert not list(tmp_path.iterdir())


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


def test_memory_is_measured_in_a_process_of_its_own():
  rows = [attentions.find_row(n)
          for n in ("R", "Synthesizer:random_plus_alpha")]
  config = model.Configuration(**{**TINY, "targets": 513})
  random, impossible = measuring.measure_memory(
      rows, config, 1, lambda done, what: None)
  assert random["peak_mebibytes"] > 100 and random["measure"] == "memory"
  assert impossible["status"] == "not possible"
