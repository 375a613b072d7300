"""Files of `reproduce` are read exactly as written, or an error refuses them."""

import json

import pytest
from synthesizer_mtf.tools.reproduction import lines

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


def written(folder, *found):
  path = folder / "a.jsonl"
  path.write_text("".join(
      line if isinstance(line, str) else json.dumps(line) + "\n"
      for line in found))
  return path


def test_lines_of_a_study_keep_the_keys_of_their_own(tmp_path):
  line = run_line(study="warm_start", curves={"loss": [[1, 2.0]]}, seconds=3.5)
  del line["table"], line["format"]
  found = lines.read(written(tmp_path, line))
  assert found.runs == [line] and found.setting["study"] == "warm_start"


def test_an_older_name_of_a_row_is_read_as_the_new_one(tmp_path):
  found = lines.read(written(tmp_path, run_line("all alike"), run_line("R")))
  assert [run["row"] for run in found.runs] == ["uniform", "R"]
  with pytest.raises(ValueError, match="seed 1 of uniform on TASK is there twice"):
    lines.read(written(tmp_path, run_line("all alike"), run_line("uniform")))


@pytest.mark.parametrize("found, number, message", [
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
    tmp_path, found, number, message):
  path = written(tmp_path, *found)
  with pytest.raises(ValueError, match=f"^{path}:{number}.*{message}"):
    lines.read(path)


@pytest.mark.parametrize("found", [[], ["\n"], [{"kind": "row", **SETTING}]])
def test_a_file_without_runs_is_an_error(tmp_path, found):
  with pytest.raises(ValueError, match='a.jsonl has no line of kind "run"'):
    lines.read(written(tmp_path, *found))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
  with pytest.raises(ValueError, match="cannot read .*a.jsonl: No such file"):
    lines.read(tmp_path / "a.jsonl")
