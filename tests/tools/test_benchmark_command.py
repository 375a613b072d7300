"""The command, its rates and pictures; programs take the time of a clock of ours."""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import types

from matplotlib import pyplot as plt
import pytest
from support import processes
from support import tables
from synthesizer_mtf.tools.benchmark import __main__ as benchmark
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import breakdown
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.benchmark import ratio_plot
from synthesizer_mtf.tools.benchmark import result_tables

TINY = {"inputs": 12, "targets": 6, "batch": 2, "decode_batch": 3, "num_layers": 1,
        "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 16, "vocabulary": 64}
CONFIG = model.Configuration(**TINY)
AUTHORS = "Synthesizer:random_plus_alpha"  # Impossible for 513 tokens.
# Seconds of a round of warm-up and of two that count, at 1 hypothesis.
SECONDS = {"SelfAttention": [90, 4, 2], "R": [70, 2, 1.5], "floor": [50, 1, 1],
           "V": [5, 1, 3]}
SIZES = {"SelfAttention": (1000, 10**9), "R": (3000, 8 * 10**8), "floor": (500, 10**8),
         "V": (1000, 10**9)}
PARTS = dict(zip(breakdown.PARTS, (3, 1, 2, 1, 1, 1.5, .5)))  # 10 in all.


class Program(model.Program):
  """A program that does nothing but take time."""

  def __init__(self, clock, row, config, measure):
    self.sizes = dict(zip(("parameters", "multiply_adds"), SIZES[row.name]))
    self._clock = clock
    self._seconds = iter(SECONDS[row.name])
    self._factor = config.beam if measure == "decode" else config.inputs / 520

  def run(self):
    self._clock.now += next(self._seconds) * self._factor

  def seconds_of_parts(self):
    return {**PARTS, breakdown.PRODUCTS: 4}

  def seconds_of_bare_products(self):
    return .25

  def close(self):
    self._seconds = iter(())


class Fake:
  """A clock that only programs move on, and the figures that were drawn."""

  def __init__(self):
    self.now, self.figures = 100.0, []

  def perf_counter(self):
    return self.now

  def sleep(self, seconds):
    pass


@contextlib.contextmanager
def faked():
  """Lets programs take time of a clock of ours, which this yields."""
  fake = Fake()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(model, "build", lambda *args: Program(fake, *args))
    patch.setattr(measuring, "time", fake)
    patch.setattr(ratio_plot.plt, "close", fake.figures.append)
    yield fake
  for figure in fake.figures:
    plt.close(figure)


def run(*flags):
  """Runs the command with the tiny sizes; returns what it says on both streams."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    benchmark.main([*(f"--{k}={v}" for k, v in TINY.items()), *flags])
  return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", name="outcome")
def fixture_outcome(tmp_path_factory):
  """What one run says and writes: streams, JSON rows, CSV rows, and the figure."""
  folder = tmp_path_factory.mktemp("benchmark")
  paths = {kind: folder / f"out.{kind}" for kind in ("json", "csv", "png")}
  with faked() as fake:
    said = run("--inputs=520", f"--rows=R,{AUTHORS},floor", "--steps=2", "--warmup=1",
               "--decode_steps=2", "--breakdown", "--beam=1,2",
               *(f"--{kind}={path}" for kind, path in paths.items()))
  rows = [json.loads(line) for line in paths["json"].read_text().splitlines()]
  with open(paths["csv"], newline="", encoding="utf-8") as f:
    table = list(csv.DictReader(f))
  assert paths["png"].read_bytes().startswith(b"\x89PNG")
  return types.SimpleNamespace(said=said, rows=rows, csv=table, figure=fake.figures[0])


def nothing(done, what):
  """Shows no progress."""


def measured(outcome, measure):
  return {r["row"]: r for r in outcome.rows if r["measure"] == measure}


def test_json_lines_say_what_was_measured_and_where(outcome):
  assert [(r["measure"], r["row"]) for r in outcome.rows] == [
      (measure, row) for measure in ("train", "eval", "decode", "decode")
      for row in ("SelfAttention", "R", AUTHORS, "floor")]
  for row in outcome.rows:
    assert row["configuration"]["d_model"] == 8
    assert (row["inputs"], row["targets"], row["device"]) == (520, 6, "cpu:0")
    assert row["versions"]["tensorflow"] and row["machine"]["cores"] > 0
    assert (row["warmup"], row["repeats"]) == (1, 2)
  paper = measured(outcome, "train")
  assert paper["R"]["paper_ratio"] == pytest.approx(4.26 / 3.90)
  assert paper["R"]["paper_row"] == "R" and "paper_ratio" not in paper["floor"]


def test_rates_ratios_and_shares_follow_from_the_times_that_count(outcome):
  train = measured(outcome, "train")
  random, stock, floor = (train[name] for name in ("R", "SelfAttention", "floor"))
  assert random["seconds"] == [2, 1.5] and stock["ratio"] == stock["share"] == 1
  assert (stock["median_seconds"], stock["quartiles_seconds"]) == (3, [2.5, 3.5])
  assert stock["steps_per_second"] == pytest.approx(1 / 3)
  assert stock["einsum_tflops"] == pytest.approx(2 * 10**9 / 3 / 1e12)
  assert random["einsum_tflops"] == pytest.approx(2 * 8 * 10**8 / 1.75 / 1e12)
  # In the two rounds stock takes 2 and 4/3 times as long as R; without the floor's
  # second, R takes a third and half of stock's time.
  assert random["ratio"] == pytest.approx((2 + 4 / 3) / 2)
  assert random["ratio_quartiles"] == pytest.approx([1.5, 11 / 6])
  assert random["share"] == pytest.approx((1 / 3 + 1 / 2) / 2)
  assert (floor["share"], floor["parameters"], floor["multiply_adds"]) == (
      0, 500, 10**8)
  greedy, beam = [r for r in outcome.rows
                  if r["measure"] == "decode" and r["row"] == "R"]
  assert greedy["tokens_per_second"] == pytest.approx(3 * 6 / 1.75)
  assert beam["tokens_per_second"] == pytest.approx(3 * 6 / 3.5)
  assert beam["tokens_per_second_quartiles"] == pytest.approx([18 / 3.75, 18 / 3.25])
  assert "einsum_tflops" not in beam  # Mesh does not count how often the loop runs.


def test_the_parts_of_a_traced_step_are_scaled_to_its_time(outcome):
  random = measured(outcome, "train")["R"]
  assert random["parts_seconds"] == pytest.approx(
      {part: seconds * 1.75 / 10 for part, seconds in PARTS.items()})
  assert random["products_seconds"] == pytest.approx(4 * 1.75 / 10)
  assert random["bare_products_seconds"] == .25
  assert ["R", "520/6", "525", "175", "350", "175", "175", "262", "88", "1750", "700",
          "250"] in tables.cells(outcome.said[0])
  assert "parts_seconds" not in measured(outcome, "eval")["R"]


def test_an_impossible_row_says_why_and_the_others_go_on(outcome):
  impossible = [r for r in outcome.rows if r["family"] == "authors"]
  assert {r["status"] for r in impossible} == {"not possible"}
  assert "512" in impossible[0]["reason"] and "median_seconds" not in impossible[0]
  assert all(r["status"] == "ok" for r in outcome.rows if r["family"] != "authors")
  assert impossible[0]["reason"] in outcome.said[0]


def test_the_tables_have_a_line_for_each_row_and_the_header_the_machine(outcome):
  printed, bars = outcome.said
  first = dict(zip(*[line for line in tables.cells(printed)
                     if line[0] in ("row", "R")][:2]))
  assert first == {
      "row": "R", "lengths": "520/6", "parameters": "3,000", "paper": "1.09",
      "speed": "1.67 [1.50 1.83]", "share": "0.42 [0.38 0.46]", "steps/s": "0.57",
      "ms/step": "1750 [1625 1875]", "multiply-adds": "800.0M", "TFLOPS": "0.001",
      "eval": "1.67 [1.50 1.83]"}
  assert ["R", "520/6", "10 [10 11] (1.67)", "5 [5 6] (1.67)"] in tables.cells(printed)
  assert "greedy, batch 3" in printed and "beam 2, batch 3" in printed
  assert outcome.rows[0]["machine"]["cpu"] in printed and "tensorflow 2." in printed
  assert "train 520/6" in bars  # The progress bar.


def test_the_csv_holds_the_same_rows(outcome):
  assert [r["row"] for r in outcome.csv] == [r["row"] for r in outcome.rows]
  assert float(outcome.csv[1]["median_seconds"]) == 1.75
  assert outcome.csv[1]["quartiles_seconds.0"] == "1.625"
  assert outcome.csv[0]["configuration.d_kv"] == "4"


def test_the_picture_has_a_bar_for_each_ratio_and_a_stack_of_the_parts(outcome):
  train, _, _, beam, parts = outcome.figure.axes
  assert [t.get_text() for t in train.get_yticklabels()] == [
      "SelfAttention", "R", "floor"]
  for axis in (train, beam):
    assert [(bar.get_y() + .4, bar.get_width()) for bar in axis.patches] == [
        (0, 1), (1, pytest.approx(5 / 3)), (2, 3)]
    assert [list(line.get_xdata()) for line in axis.lines[:2]] == [
        [1, 1], pytest.approx([1.5, 11 / 6])]
  paper, = train.collections  # Stock's and R's ratios in the paper.
  assert paper.get_offsets().tolist() == [[1, 0], [pytest.approx(4.26 / 3.90), 1]]
  assert train.get_xlabel() == "times as fast as SelfAttention"
  assert (train.get_title(), beam.get_title()) == ("training step", "beam 2, batch 3")
  stack = [bar for bar in parts.patches if bar.get_y() + .4 == 1]
  assert [bar.get_width() for bar in stack] == pytest.approx(
      [1e3 * PARTS[part] * .175 for part in breakdown.PARTS])
  assert stack[-1].get_x() + stack[-1].get_width() == pytest.approx(1750)
  assert [t.get_text() for t in parts.get_legend().get_texts()] == [*breakdown.PARTS]


def test_several_lengths_are_drawn_as_growth(tmp_path):
  with faked() as fake:
    run("--rows=R", "--lengths=260,520", "--steps=2", "--warmup=1", "--skip_eval",
        "--skip_decode", f"--png={tmp_path}/growth.png")
    axis, = fake.figures[0].axes
    assert {line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
            for line in axis.lines} == {
                "SelfAttention": ([260, 520], [1.5, 3]),
                "R": ([260, 520], [.875, 1.75]), "floor": ([260, 520], [.5, 1])}
    assert [t.get_text() for t in axis.get_xticklabels()] == ["260", "520"]


def test_many_rows_over_lengths_look_different():
  figure, axis = plt.subplots()
  names = [f"row {i}" for i in range(12)]
  ratio_plot._growth(axis, [
      {"row": name, "inputs": inputs, "family": "ours", "median_seconds": 1.,
       "quartiles_seconds": [1., 2.]} for name in names for inputs in (1, 2)], names)
  looks = {(line.get_color(), line.get_marker()) for line in axis.lines}
  plt.close(figure)
  assert len(looks) == len(names)


def test_nothing_to_draw_writes_no_file(outcome, tmp_path):
  impossible = [r for r in outcome.rows if r["status"] != "ok"]
  assert not ratio_plot.plot(impossible, tmp_path / "none.png")
  assert not list(tmp_path.iterdir())


def test_rows_take_turns_and_each_follows_each_other_one(monkeypatch):
  monkeypatch.setattr(measuring, "time", Fake())  # Others rest before each turn.
  order = []
  programs = {name: types.SimpleNamespace(run=lambda name=name: order.append(name))
              for name in "abc"}
  seconds = measuring.take_turns(programs, {}, 1, 19, nothing)
  assert all(sorted(order[i:i + 3]) == [*"abc"] for i in range(0, 60, 3))
  assert {*itertools.permutations("abc", 2)} <= {*itertools.pairwise(order)}
  assert all(len(s) == 19 for s in seconds.values())


def test_a_row_that_fails_is_left_out_and_the_others_go_on():
  with faked(), pytest.MonkeyPatch.context() as patch:
    made = model.build

    def build(row, config, measure):
      if row.name == "R":
        raise RuntimeError("broken\nin detail")
      program = made(row, config, measure)
      if row.name == "V":
        program.close()
      return program

    patch.setattr(model, "build", build)
    rows = [attentions.find_row(n) for n in ("SelfAttention", "V", "R", "floor")]
    results = {r["row"]: r for r in measuring.measure_time(
        rows, dataclasses.replace(CONFIG, inputs=520), "eval", 0, 1, nothing)}
  assert results["R"]["reason"] == "RuntimeError: broken"
  assert results["V"]["status"] == "failed"
  assert results["floor"]["status"] == "ok" and results["floor"]["ratio"] == 90 / 50
  assert "failed" in result_tables.table(list(results.values()))


def test_memory_is_a_share_of_stock_above_the_floor():
  results = {n: {"peak_mebibytes": m} for n, m in (
      ("SelfAttention", 500), ("R", 320), ("floor", 300))}
  measuring.add_shares(results)
  assert [r["memory_share"] for r in results.values()] == [1, 0.1, 0]


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own():
  rows = [attentions.find_row(n) for n in ("R", AUTHORS)]
  random, impossible = measuring.measure_memory(
      rows, dataclasses.replace(CONFIG, targets=513), 1, nothing)
  # Below, TensorFlow would not be there; above, the memory of this process would be.
  assert 100 < random["peak_mebibytes"] < 5000 and random["measure"] == "memory"
  assert impossible["status"] == "not possible"
  assert f"{random['peak_mebibytes']:.0f} |" in result_tables.table(
      [random, impossible])


@pytest.mark.slow
def test_the_command_measures_and_traces_real_programs(tmp_path):
  # The command changes TensorFlow for a whole process.
  processes.call(
      run, "--rows=R", "--steps=1", "--warmup=1", "--decode_steps=1", "--breakdown",
      "--skip_eval", "--beam=2", f"--json={tmp_path}/rows.json")
  lines = (tmp_path / "rows.json").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [(r["measure"], r["row"], r["reason"]) for r in rows] == [
      (measure, row, None) for measure in ("train", "decode")
      for row in ("SelfAttention", "floor", "R")]
  for row in rows[:3]:
    assert min(row["parts_seconds"].values()) > 0
    assert sum(row["parts_seconds"].values()) == pytest.approx(row["median_seconds"])
    assert 0 < row["products_seconds"] < row["median_seconds"]
    assert row["bare_products_seconds"] > 0


@pytest.mark.parametrize("flags, words", [
    (["--rows=R,X+V"], ["'X+V'", "--rows", "FR+D+V", "Synthesizer:random"]),
    (["--json=no/such/folder.json"], ["'no/such'", "make it first"]),
    (["--skip_train", "--skip_eval", "--skip_decode"], ["--skip"]),
    (["--breakdown", "--skip_train"], ["--breakdown", "--skip_train"])])
def test_a_mistake_ends_in_one_sentence_and_an_error_status(flags, words):
  with pytest.raises(SystemExit) as exit_info:
    benchmark.main(flags)
  message = exit_info.value.code  # Python prints it and returns 1.
  assert message.startswith("benchmark: ") and "\n" not in message
  assert all(word in message for word in words)
