"""Files of `reproduce` are read as written, and compared by --compare, seed by seed."""

import json

import numpy as np
import pytest
from scipy import stats
from support import tables
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.experiments import lines

SETTING = {"table": 4, "scale": "laptop", "steps": 7, "finetune_steps": 3,
           "gin_params": ["d_ff = 8"]}


def run_line(row="R", seed=1, **changes):
  return {"kind": "run", "format": 1, "row": row, "task": "TASK", "seed": seed,
          "status": "ok", "scores": {"log_perplexity": 2.5}, **SETTING,
          **changes}


def without(key):
  line = run_line()
  del line[key]
  return line


def write(path, *written):
  path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n"
                          for line in written))
  return str(path)


def test_lines_of_a_study_keep_the_keys_of_their_own(tmp_path):
  line = run_line(study="warm_start", curves={"loss": [[1, 2.0]]}, seconds=3.5)
  del line["table"], line["format"]
  results = lines.read(write(tmp_path / "a.jsonl", line))
  assert results.runs == [line] and results.setting["study"] == "warm_start"


def test_an_older_name_of_a_row_is_read_as_the_new_one(tmp_path):
  results = lines.read(
      write(tmp_path / "a.jsonl", run_line("all alike"), run_line("R")))
  assert [run["row"] for run in results.runs] == ["uniform", "R"]
  with pytest.raises(ValueError, match="seed 1 of uniform on TASK is there twice"):
    lines.read(write(tmp_path / "a.jsonl", run_line("all alike"), run_line("uniform")))


@pytest.mark.parametrize("line, number, message", [
    ([run_line(), '{"kind": "ru'], 2, "not a whole line of JSON .*cut off"),
    (["\n", "7\n"], 2, "not a JSON object"),
    ([run_line(), run_line(seed=2, format=2)], 2, "of format 2, which is not 1"),
    ([run_line(), run_line(seed=2, steps=8)], 2,
     "another setting than .*:1: 'steps' is 8, not 7"),
    ([run_line(), {"kind": "row", **SETTING, "gin_params": []}], 2,
     r"'gin_params' is \[\], not \['d_ff = 8'\]"),
    ([{**without("table"), "study": "a"}, run_line(seed=2)], 2,
     "'study' is None, not 'a'"),
    ([run_line(), run_line("V"), run_line()], 3,
     "seed 1 of R on TASK is there twice, first at .*:1"),
    ([run_line(scores={"loss": float("nan")})], 1,
     "'loss' of R on TASK, seed 1, is nan"),
    ([run_line(scores={"loss": "2.5"})], 1, "'loss' .* not a finite number"),
    ([run_line(seed="1")], 1, "'seed' is '1', not an integer"),
    *(([without(key)], 1, f"has no '{key}'") for key in (
        "kind", "row", "task", "seed", "status", "scores", "table", "scale",
        "steps", "finetune_steps", "gin_params")),
])
def test_a_line_that_would_spoil_a_mean_is_an_error_with_its_place(
    tmp_path, line, number, message):
  path = write(tmp_path / "a.jsonl", *line)
  with pytest.raises(ValueError, match=f"^{path}:{number}.*{message}"):
    lines.read(path)


@pytest.mark.parametrize("text", [[], ["\n"], [{"kind": "row", **SETTING}]])
def test_a_file_without_runs_is_an_error(tmp_path, text):
  with pytest.raises(ValueError, match='a.jsonl has no line of kind "run"'):
    lines.read(write(tmp_path / "a.jsonl", *text))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
  with pytest.raises(ValueError, match="cannot read .*a.jsonl: No such file"):
    lines.read(tmp_path / "a.jsonl")


# Compared.


@pytest.fixture
def compared(tmp_path, capsys):
  """Writes two files, {(row, seed): scores}; returns Markdown and JSON lines."""
  def run(a, b, **changes):
    files = [write(tmp_path / "a.jsonl", *run_lines(a)),
             write(tmp_path / "b.jsonl", *run_lines(b, **changes))]
    path = tmp_path / "out.jsonl"
    assert reproduce.main(["--compare", *files, f"--json={path}"]) == 0
    compared_ = list(map(json.loads, path.read_text().splitlines()))
    return capsys.readouterr().out, compared_

  return run


def run_lines(runs, **changes):
  """The lines of runs, {(row, seed): scores, or the reason of a failure}."""
  for (row, seed), scores in runs.items():
    more = {"scores": scores} if isinstance(scores, dict) else {
        "scores": {}, "status": "failed", "reason": scores}
    yield run_line(row, seed, **more, **changes)


def cells(markdown):
  """The lines of the table, {(row, score): cells}."""
  return {(row, score): rest for row, _, score, *rest in tables.cells(markdown)}


def test_differences_are_paired_by_seed(compared):
  rng = np.random.default_rng(0)
  of_seed = 100 * rng.normal(size=5)  # Much larger than the changes.
  change = 0.5 + 0.1 * rng.normal(size=5)
  a = {("R", seed): {"loss": x} for seed, x in enumerate(of_seed)}
  b = {("R", seed): {"loss": of_seed[seed] + change[seed]}
       for seed in (4, 2, 0, 1, 3)}
  markdown, (line,) = compared(a, b)
  expected = stats.ttest_1samp(change, 0).confidence_interval(0.95)
  np.testing.assert_allclose(line["difference"], change.mean())
  np.testing.assert_allclose(line["interval"], expected)
  assert line["seeds"] == [0, 1, 2, 3, 4] and line["pairs"] == 5
  np.testing.assert_allclose(line["b"] - line["a"], line["difference"])
  assert line["excludes_zero"] is True
  assert cells(markdown)["R", "loss"][0] == "5"
  assert cells(markdown)["R", "loss"][-3:] == [
      f"{expected.low:+.4g} to {expected.high:+.4g}", "< 0.001", "*"]
  np.testing.assert_allclose(line["p"], stats.ttest_1samp(change, 0).pvalue)
  assert line["significant"] is True
  assert "WARNING" not in markdown and "In one file only" not in markdown


def test_only_differences_significant_after_correction_have_a_mark(compared):
  change = {seed: 1.6 + seed for seed in range(3)}  # p is 0.046 for each alone.
  shifts = {"loss": 99, "one": 0, "two": 0}
  a = {("R", seed): dict.fromkeys([*shifts, "around", "same"], 0.0) for seed in change}
  b = {("R", seed): {**{name: x + more for name, more in shifts.items()},
                     "around": x - 2.6, "same": 0.0} for seed, x in change.items()}
  markdown, written = compared(
      {**a, ("V", 1): {"loss": 3}}, {**b, ("V", 1): {"loss": 5}})
  assert [line["excludes_zero"] for line in written] == [*3 * [True], False, None, None]
  assert [line["significant"] for line in written] == [True, *3 * [False], None, None]
  assert written[4]["interval"] is None and written[5]["interval"] is None
  assert [row[-1] for row in cells(markdown).values()][1:] == ["*", *5 * [""]]
  assert cells(markdown)["V", "loss"] == ["1", "3", "5", "+2", "-", "-", ""]
  assert "One pair has no interval" in markdown


def test_runs_and_scores_that_only_one_file_has_are_listed(compared):
  both = {"loss": 3.0}
  markdown, written = compared(
      {("R", 1): both, ("R", 2): both, ("V", 1): both, ("D", 9): "no memory"},
      {("R", 1): {**both, "bleu": 9}, ("R", 2): "too hot", ("R", 3): both})
  assert [(line["kind"], line["row"]) for line in written[:1]] == [
      ("difference", "R")] and written[0]["seeds"] == [1]
  assert [(line["only_in"], line["row"], line["seed"], line["scores"],
           line["reason"]) for line in written[1:]] == [
               ("a", "R", 2, ["loss"], "failed: too hot"),
               ("a", "V", 1, ["loss"], None),
               ("a", "D", 9, [], "failed: no memory"),
               ("b", "R", 1, ["bleu"], None), ("b", "R", 3, ["loss"], None)]
  assert markdown.splitlines()[-5:] == [
      "- A: R on TASK, seed 2: loss (B failed: too hot)",
      "- A: V on TASK, seed 1: loss",
      "- A: D on TASK, seed 9: no scores (A failed: no memory)",
      "- B: R on TASK, seed 1: bleu", "- B: R on TASK, seed 3: loss"]


def test_files_without_a_pair_say_so(compared):
  markdown, written = compared({("R", 1): {"loss": 3}}, {("R", 2): {"loss": 3}})
  assert "No row, task, seed and score is in both files." in markdown
  assert [line["kind"] for line in written] == ["unpaired"] * 2


def test_settings_that_differ_are_named(compared):
  runs = {("R", 1): {"loss": 3}}
  markdown, _ = compared(runs, runs, steps=800, gin_params=["d_ff = 9"])
  assert ("WARNING: the settings differ: steps 7 in A, 800 in B; gin_params "
          "['d_ff = 8'] in A, ['d_ff = 9'] in B.") in markdown


def test_two_tables_are_not_compared(tmp_path):
  runs = {("R", 1): {"loss": 3}}
  files = [write(tmp_path / "a.jsonl", *run_lines(runs)),
           write(tmp_path / "b.jsonl", *run_lines(runs, study="speed"))]
  with pytest.raises(SystemExit, match="a.jsonl is of table 4 and .*b.jsonl of "
                     "study speed; compare two files of the same"):
    reproduce.main(["--compare", *files])
