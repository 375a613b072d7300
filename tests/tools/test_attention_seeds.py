"""The tables of `plot_attention --seeds` about several training runs."""

import json

import numpy as np
import pytest
from support import tables
from synthesizer_mtf.tools.plot_attention import __main__ as plot_attention
from synthesizer_mtf.tools.plot_attention import seeds

WINDOWS = [1, 2, 4]


def summary(near, stddev):
  return {"window_mass": [near / 4, near / 2, near], "half_mass_window": 3,
          "entropy": 2.0, "stddev": stddev, "max": 0.5, "share_0.1_to_0.2": 0.01,
          "histogram": [0.5] * 100}


def head(attention, layer, number, near, stddev, alpha=None):
  row = {"layer": layer, "head": number, "attention": attention, "windows": WINDOWS,
         "bins": [0.0, 1.0], "trained": summary(near, stddev),
         "initial": summary(0.25, 0.01), "uniform": summary(0.125, 0.0)}
  if alpha is not None:
    row["alpha"] = {"R": 1 - alpha, "V": alpha}
    row["initial_alpha"] = {"R": 0.5, "V": 0.5}
  return row


def write(path, rows):
  path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  return str(path)


@pytest.fixture(name="files")
def _files(tmp_path):
  return [
      write(tmp_path / "r.1.jsonl", [head("R", "encoder/0", 0, 0.5, 0.3),
                                     head("R", "encoder/0", 1, 0.7, 0.5)]),
      write(tmp_path / "r.2.jsonl", [head("R", "encoder/0", 0, 0.8, 0.4),
                                     head("R", "encoder/0", 1, 0.8, 0.4)]),
      write(tmp_path / "m.1.jsonl", [head("R+V", "encoder/0", 0, 0.4, 0.1, 0.6),
                                     head("R+V", "encoder/0", 1, 0.4, 0.1, 0.9)])]


def test_means_are_over_heads_and_errors_over_seeds(files):
  text = seeds.markdown(seeds.read(files), 4)
  cells = {line[0]: line for line in tables.cells(text)}
  # The means over the heads of the two seeds are 0.6 and 0.8.
  assert cells["R"][1:4] == ["encoder/0", "2", "0.700 ± 0.100 (0.250)"]
  assert cells["R"][6] == "0.400 ± 0.000 (0.010)"
  assert cells["uniform"][3] == "0.125"
  assert ("- R, encoder: 0.70 ± 0.10 of the weight lies within 4 tokens (0.25 before "
          "training, 0.12 if all keys weighed the same)") in text
  assert ("- Standard deviation of the weights, encoder: R 0.400 ± 0.000 > "
          "R+V 0.100.") in text


def test_alpha_is_shown_for_each_layer_with_its_heads(files):
  lines = tables.cells(seeds.markdown(seeds.read(files), 4))
  assert ["R+V", "encoder/0", "V", "0.750", "0.500", "0.600", "0.900"] in lines


def test_one_file_of_all_runs_gives_the_same_tables(files, tmp_path, capsys):
  path = tmp_path / "all.jsonl"
  plot_attention.main(["--seeds", *files, f"--json={path}", "--window=2"])
  first = capsys.readouterr().out
  plot_attention.main(["--seeds", str(path), "--window=2"])
  assert capsys.readouterr().out == first and "0.350 ± 0.050" in first
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert {row["run"] for row in rows} == {"r.1", "r.2", "m.1"}
  assert not any("histogram" in row["trained"] or "bins" in row for row in rows)
  assert np.shape(rows) == (6,)


@pytest.mark.parametrize("text, message", [
    ('{"layer": "encoder/0"', "a.jsonl:1 is not a whole line of JSON"),
    ('{"layer": "encoder/0"}', "a.jsonl:1 has no 'head', so it is not a line of"),
    ("", "--seeds names no file with lines")])
def test_other_files_are_named(text, message, tmp_path):
  (tmp_path / "a.jsonl").write_text(text)
  with pytest.raises(SystemExit, match=message):
    plot_attention.main(["--seeds", str(tmp_path / "a.jsonl")])


def test_a_head_that_is_there_twice_is_named(files):
  with pytest.raises(SystemExit, match=(
      "head 0 of encoder/0 of the training 'r.1' is there twice")):
    plot_attention.main(["--seeds", files[0], files[0]])


@pytest.mark.parametrize("flags, message", [
    (["--seeds", "a.jsonl", "--model_dir=d"], "takes files of --json, not --model_dir"),
    (["--model_dir=d"], "^plot_attention: give --output=FOLDER for pictures, "
     "--html=FILE for a page, or both.$")])
def test_flags_that_do_not_go_together_end_in_one_sentence(flags, message):
  with pytest.raises(SystemExit, match=message):
    plot_attention.main(flags)
