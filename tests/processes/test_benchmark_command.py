"""The benchmark's command, and the fields that it writes; no test looks at a time."""

import csv
import json
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from synthesizer_mtf.tools.benchmarking import attentions
from synthesizer_mtf.tools.benchmarking import measuring
from synthesizer_mtf.tools.benchmarking import model
from synthesizer_mtf.tools.benchmarking import plot
from synthesizer_mtf.tools.benchmarking import report

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3,
        "num_layers": 1, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16,
        "vocabulary": 64}


@pytest.fixture(scope="module", name="outcome")
def fixture_outcome(tmp_path_factory):
  """Standard output, JSON rows, CSV rows and the picture of one small run."""
  folder = tmp_path_factory.mktemp("benchmark")
  paths = {kind: folder / f"out.{kind}" for kind in ("json", "csv", "png")}
  process = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.benchmark",
       *(f"--{k}={v}" for k, v in {**TINY, "inputs": 520}.items()),
       "--rows=R,Synthesizer:random_plus_alpha,floor",
       "--steps=2", "--warmup=1", "--decode_steps=1", "--breakdown", "--beam=1,2",
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
      (measure, row) for measure in ("train", "eval", "decode", "decode")
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


def test_sizes_equal_those_of_the_model(outcome):
  train = of_measure(outcome[1], "train")
  stock, random, floor = (
      train[name] for name in ("SelfAttention", "R", "floor"))
  # Stock has q and k in two layers. R's tables are as long as each stack's sequences.
  assert stock["parameters"] - floor["parameters"] == 2 * 2 * 8 * 8
  assert random["parameters"] - floor["parameters"] == 2 * (520**2 + 6**2)
  assert stock["multiply_adds"] > random["multiply_adds"] > floor["multiply_adds"]
  assert stock["einsum_tflops"] == pytest.approx(
      2e-12 * stock["multiply_adds"] / stock["median_seconds"])


def test_the_parts_of_a_training_step_add_up_to_its_time(outcome):
  process, rows, _, _ = outcome
  traced = {r["row"]: r for r in rows if "parts_seconds" in r}
  assert list(traced) == ["SelfAttention", "R", "floor"]
  for row in traced.values():
    assert row["measure"] == "train" and min(row["parts_seconds"].values()) > 0
    assert sum(row["parts_seconds"].values()) == pytest.approx(row["median_seconds"])
    assert 0 < row["products_seconds"] < row["median_seconds"]
    assert row["bare_products_seconds"] > 0
  table = process.stdout.partition("| cross-attention |")[2]
  assert [line.split()[1] for line in table.splitlines()[2:5]] == list(traced)


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
  assert [line.split()[1] for line in lines[2:6]] == [
      "SelfAttention", "R", "Synthesizer:random_plus_alpha", "floor"]
  assert rows[0]["machine"]["cpu"] in process.stdout
  assert "tensorflow 2." in process.stdout
  assert "train 520/6" in process.stderr  # The progress bar.
  assert "greedy, batch 3" in process.stdout and "beam 2, batch 3" in process.stdout


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


def test_memory_is_measured_in_a_process_of_its_own():
  rows = [attentions.find_row(n)
          for n in ("R", "Synthesizer:random_plus_alpha")]
  config = model.Configuration(**{**TINY, "targets": 513})
  random, impossible = measuring.measure_memory(
      rows, config, 1, lambda done, what: None)
  assert random["peak_mebibytes"] > 100 and random["measure"] == "memory"
  assert impossible["status"] == "not possible"
  assert f"{random['peak_mebibytes']:.0f} |" in report.table([random, impossible])
