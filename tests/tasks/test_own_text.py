"""Splits, order and examples of the user's own files; test_own_files reads lines."""

import json

import numpy as np
import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from support.task_files import LENGTHS
from support.task_files import own
from support.task_files import rows
from support.task_files import write
from synthesizer_mtf.tasks import text_source
from t5.models import mesh_transformer

pytestmark = pytest.mark.usefixtures("vocabulary")


def test_splits_are_those_whose_files_are_named(tmp_path, monkeypatch):
  task = seqio.TaskRegistry.get("synth_text_pairs")
  assert list(task.splits) == ["train", "validation", "test"]
  bind("pairs.train", write(tmp_path, {"a.tsv": "one\teins\n"}))
  assert list(task.splits) == ["train"]
  with pytest.raises(ValueError, match="tasks.pairs.test` or the env.*set it to"):
    examples("synth_text_pairs", "test")
  monkeypatch.setenv("SYNTHESIZER_MTF_PAIRS_TEST", write(tmp_path, {"b": "two\tzwei"}))
  assert list(task.splits) == ["train", "test"]
  assert rows("pairs", "test") == [("two", "zwei")]
  bind("text.test", write(tmp_path, {"a.txt": "one\n"}))
  assert rows("text", "test") == ["one"]


@pytest.mark.parametrize("task, parameter", [
    ("synth_text_span_corruption", "text.train"),
    ("synth_text_lm", "text.train"), ("synth_text_pairs", "pairs.train")])
def test_unnamed_files_are_an_error_that_names_the_parameter(task, parameter):
  with pytest.raises(ValueError, match=f"synthesizer_mtf.tasks.{parameter}"):
    examples(task)


def test_blanks_around_commas_in_the_environment_are_dropped(tmp_path, monkeypatch):
  folder = write(tmp_path, {"a.txt": "a\n", "b.txt": "b\n"})[:-1]
  monkeypatch.setenv("SYNTHESIZER_MTF_TEXT_TRAIN", f"{folder}a.txt, {folder}b.txt ,")
  assert rows("text") == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_shuffled_pairs_come_once_in_each_pass_and_each_in_its_own_order(
    name, tmp_path):
  own("pairs", tmp_path, {name: "\n".join(
      f"{i}\tt" if name == "a.tsv" else json.dumps({"inputs": str(i), "targets": "t"})
      for i in range(1500))})
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  def passes():
    dataset = source.get_dataset("train", seed=5).repeat(2).as_numpy_iterator()
    order = [int(example["inputs"]) for example in dataset]
    return order[:1500], order[1500:]
  first, second = passes()
  assert sorted(first) == sorted(second) == list(range(1500))
  assert first != second
  assert (first, second) == passes()
  assert abs(np.corrcoef(first, range(1500))[0, 1]) < 0.1
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_training_examples_of_small_sets_come_once_in_each_pass(tmp_path):
  own("pairs", tmp_path, {"a.tsv": "\n".join(f"{i}\tt" for i in range(40))})
  dataset = seqio.TaskRegistry.get("synth_text_pairs").get_dataset(
      LENGTHS, "train", seed=5, num_epochs=3)
  order = [int(example["inputs_pretokenized"])
           for example in dataset.as_numpy_iterator()]
  passes = [order[:40], order[40:80], order[80:]]
  assert all(sorted(numbers) == list(range(40)) for numbers in passes)
  assert len(set(map(tuple, passes))) == 3


@pytest.mark.slow
def test_training_text_does_not_follow_sorted_files(tmp_path):
  bind("text.train", write(tmp_path, {
      "a.txt": "\n".join(f"{i} the" for i in range(6000))}))
  task = seqio.TaskRegistry.get("synth_text_lm")
  chosen = task.output_features["targets"].vocabulary
  numbers = [int(number) for example in task.get_dataset(
      {"targets": 12}, "train", seed=5).take(60).as_numpy_iterator()
           for number in chosen.decode_tf(example["targets"]).numpy().split()
           if number.isdigit()]
  assert len(numbers) > 30
  assert min(numbers) < 1000 and max(numbers) > 5000


def test_a_set_too_large_for_memory_is_shuffled_in_windows_and_says_so(
    tmp_path, monkeypatch, caplog):
  bind("pairs.train", write(tmp_path, {
      f"{name}.tsv": "\n".join(f"{name}{i}\tt" for i in range(100)) for name in "ab"}))
  monkeypatch.setattr(text_source, "_SHUFFLE_BYTES", 10_000)
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  order = [example["inputs"] for example in source.get_dataset(
      "train", seed=5).as_numpy_iterator()]
  assert len(set(order)) == 200
  assert "train: the 200 examples take more memory" in caplog.text
  assert "drawn from the next 39 of up to 16 files" in caplog.text


def test_span_corruption_of_own_text_has_sentinels(tmp_path):
  bind("text.train", write(tmp_path, {
      "a.txt": "\ufeff" + "The cat sat on the mat. " * 8 + "\r\n\n"}))
  rows = examples("synth_text_span_corruption")
  assert rows and (np.concatenate([e["inputs"] for e in rows]) >= 500).any()


def test_rows_of_a_language_model_hold_every_token_and_an_end_after_each_document(
    tmp_path):
  words = " ".join(f"word{i}" for i in range(200))
  bind("text.train", write(tmp_path, {"a.txt": f"{words}\nthe end\n"}))
  evaluated, = mesh_transformer.mesh_eval_dataset_fn(
      "synth_text_lm", {"targets": 16}, "train")
  rows = [row["targets"] for row in evaluated.dataset_fn().as_numpy_iterator()]
  chosen = seqio.TaskRegistry.get("synth_text_lm").output_features[
      "targets"].vocabulary
  assert len(rows) > 20
  ids = [*chosen.encode(words), 1, *chosen.encode("the end"), 1]
  assert [token for row in rows for token in row if token] == ids
  assert all(list(e) == ["targets"] for e in examples("synth_text_lm"))


def test_long_pairs_are_cut_and_counted_not_dropped(tmp_path, capfd):
  bind("pairs.train", write(tmp_path, {"a.tsv": "one\teins\n"}))
  assert len(examples("synth_text_pairs")) == 1
  assert "Cut to" not in capfd.readouterr().err
  bind("pairs.train", write(tmp_path, {"a.tsv": "\n".join(
      [f"{'long ' * 40}\tt{i}" for i in range(12)] + ["short\tt12"])}))
  rows = examples("synth_text_pairs")
  assert [e["targets_pretokenized"].decode() for e in rows] == [
      f"t{i}" for i in range(13)]
  assert all(len(e["inputs"]) == 32 and e["inputs"][-1] == e["targets"][-1] == 1
             for e in rows[:12])
  printed = [line for line in capfd.readouterr().err.splitlines()
             if line.startswith("Cut to sequence_length {'inputs': 32")]
  assert ["1 of 1 examples" in printed[0],
          "10 of 10 examples of synth_text_pairs so" in printed[1],
          len(printed)] == [True, True, 2]
