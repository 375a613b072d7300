"""`tools/inspect_task`: the examples that a task feeds to a model."""

import collections
import functools
import json

import pytest
import seqio
from synthesizer_mtf.tools.inspect_task import __main__ as inspect_task
from synthesizer_mtf.tools.inspect_task import length_plot
from synthesizer_mtf.tools.inspect_task import task_reading
import tensorflow.compat.v2 as tf

SIZES = [3, 9, 5, 4]  # Tokens of the inputs, with their end; targets have two.
LENGTHS = {"inputs": 6, "targets": 4}


def _data(split, shuffle_files, seed=None):
  del split, shuffle_files, seed
  rows = [("x" * (size - 1), "y") for size in SIZES]
  return tf.data.Dataset.from_tensor_slices(
      {"inputs": [a for a, _ in rows], "targets": [b for _, b in rows]})


def _made(dataset, sequence_length):
  return dataset.map(lambda row: {key: row[key][:sequence_length[key]]
                                  for key in ("inputs", "targets")})


@pytest.fixture
def task():
  """A task of bytes, and mixtures of it and another."""
  feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
  cut = seqio.preprocessors.append_eos_after_trim
  steps = {"test_bytes": cut, "test_more": functools.partial(cut),
           "test_made": functools.partial(_made)}
  others = {"test_both": "test_more", "test_cuts": "test_made"}
  for name, step in steps.items():
    seqio.TaskRegistry.add(
        name, source=seqio.FunctionDataSource(
            _data, ["train"], num_input_examples={"train": 4}),
        preprocessors=[seqio.preprocessors.tokenize, step],
        output_features={"inputs": feature, "targets": feature}, metric_fns=[])
  for name, other in others.items():
    seqio.MixtureRegistry.add(name, [("test_bytes", 3), (other, 1)])
  yield "test_bytes"
  for name in others:
    seqio.MixtureRegistry.remove(name)
  for name in steps:
    seqio.TaskRegistry.remove(name)


def read(name, lengths=LENGTHS, number=2, most=10, split="train"):
  return task_reading.read(name, split, lengths, number, most)


def test_lengths_cuts_and_packed_rows_are_right(task):
  findings = read(task)
  assert findings.tokens["inputs"].tolist() == [3, 6, 5, 4]
  assert findings.members[task].sizes["inputs"].tolist() == SIZES
  assert findings.members[task].sizes["targets"].tolist() == [2] * 4
  assert findings.whole and len(findings.examples) == 2
  # No two of them fit into one row of 6.
  assert findings.per_row == 1 and findings.fill["inputs"] == 18 / 24
  assert findings.fill["targets"] == 0.5


def test_examples_of_a_packed_row_are_told_apart(task):
  findings = read(task, {"inputs": 12, "targets": 4}, most=3)
  row, other = findings.packed
  assert [len(ids) for ids in task_reading.segments(row, "inputs")] == [3, 9]
  assert [len(ids) for ids in task_reading.segments(other, "inputs")] == [5]
  assert not findings.whole and findings.per_row == 1.5


@pytest.mark.slow
def test_examples_made_to_length_are_not_called_cut(tasks_to_read):
  findings = read("synth_c4_span_corruption", {"inputs": 32, "targets": 14}, most=5)
  assert findings.longest_uncut("inputs") is None
  assert set(findings.tokens["inputs"]) == {32}
  assert [row["cut"] for row in inspect_task.rows(findings)[:2]] == [None, None]


def test_a_mixture_shows_its_rates(task):
  findings = read("test_both")
  assert findings.rates == [("test_bytes", 3.0), ("test_more", 1.0)]
  shares = [row["share"] for row in inspect_task.rows(findings)
            if row["kind"] == "rate"]
  assert shares == [0.75, 0.25] and not findings.members["test_more"].made


def test_the_command_prints_text_ids_and_table_and_draws_lengths(
    task, tmp_path, capsys):
  inspect_task.main([task, "--number=1", "--lengths=inputs=6,targets=4",
                     f"--plot={tmp_path}/a.png", f"--json={tmp_path}/a.jsonl"])
  printed = capsys.readouterr().out
  for part in ("inputs, 3 tokens\n    text     'xx'\n    ids      123 123 1\n"
               "    decoded  'xx'", "packed row 1", "inputs of example 1, 3 tokens",
               "the whole split"):
    assert part in printed
  line, = [words.split() for words in printed.splitlines()
           if words.startswith("inputs ")]
  assert line == ["inputs", "4", "6", "4.5", "4", "6", "9", "25.0%", "75.0%"]
  rows = [json.loads(row) for row in (tmp_path / "a.jsonl").read_text().splitlines()]
  assert rows[0]["cut"] == 0.25 and rows[0]["longest_uncut"] == 9
  assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_lengths_come_from_gin_where_none_are_given(task, capsys):
  inspect_task.main([task, "--number=1", "--gin_param=utils.run.sequence_length "
                     "= {'inputs': 7, 'targets': 3}"])
  assert "inputs          4      7" in capsys.readouterr().out


@pytest.mark.slow
def test_cuts_are_counted_for_each_member_beside_span_corruption(
    task, tmp_path, capsys, monkeypatch):
  assert read("test_cuts").cut("inputs") == 0.25 * 3 / 4
  figures = []
  monkeypatch.setattr(length_plot.plt, "close", figures.append)
  inspect_task.main(["test_cuts", "--lengths=inputs=6,targets=4",
                     f"--plot={tmp_path}/a.png"])
  inputs, targets = figures[0].axes
  # The other task has no end of a text, and makes 8 tokens 6.
  check_lengths(inputs, SIZES + [2, 6, 4, 3], 6)
  check_lengths(targets, 4 * [2] + 4 * [1], 4)
  assert inputs.get_title().startswith("inputs: median 4, longest 9, ")
  assert "test_bytes: 25.0% cut" in inputs.texts[0].get_text()
  printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
  assert "test_bytes 3 75.00% 25.0% 0.0%" in printed
  assert "test_made 1 25.00% made to length made to length" in printed


def check_lengths(axis, sizes, limit):
  """The bars of an axis count these lengths, and its line is at the limit."""
  bars = [bar for bar in axis.patches if bar.get_height()]
  counted = sorted(collections.Counter(sizes).items())
  assert [bar.get_height() for bar in bars] == [count for _, count in counted]
  assert [bar.get_x() for bar in bars] == pytest.approx(
      [size for size, _ in counted], abs=0.2)
  assert [list(line.get_xdata()) for line in axis.lines] == [[limit, limit]]


@pytest.mark.parametrize("flags, message", [
    (["test_bytes", "--split=test"], "--split is 'test', but 'test_bytes' has train"),
    (["test_bytes", "--lengths=inputs=6,more=4"],
     "names 'more', but the features of 'test_bytes' are inputs, targets"),
])
def test_mistakes_end_in_one_sentence(task, flags, message):
  with pytest.raises(SystemExit, match=message):
    inspect_task.main(flags)
