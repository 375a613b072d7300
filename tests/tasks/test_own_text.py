"""Tests of tasks on the user's own files; test_tasks.py has the simple tests."""

import gzip
import json
import logging

import gin
import numpy as np
import pytest
import seqio
from support.task_files import bind
from support.task_files import examples
from support.task_files import LENGTHS
from support.task_files import texts
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import text_source
from t5.models import mesh_transformer
import tensorflow.compat.v2 as tf

pytestmark = pytest.mark.usefixtures("clean_tasks")


@pytest.fixture(autouse=True)
def vocabulary(clean_tasks, sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)


def documents(split="train"):
  source = seqio.TaskRegistry.get("synth_text_lm").source
  return [e["text"].decode() for e in source.get_dataset(
      split, shuffle=False).as_numpy_iterator()]


def count(split="train"):
  source = seqio.TaskRegistry.get("synth_text_lm").source
  return source.num_input_examples(split)


@pytest.mark.parametrize("content, expected", [
    (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),  # A byte order mark.
    (b"one\r\n\r\ntwo\r\n", ["one", "two"]),
    (b"one\n \xe3\x80\x80\t\n\xc2\x85\n\x1c\ntwo", ["one", "two"]),  # Blanks.
    (b"  one \n\ttwo", ["  one ", "\ttwo"]),
    ("α β\n語\n".encode(), ["α β", "語"]),
    (b"a" * 3_000_000 + b"\nb", ["a" * 3_000_000, "b"]),
    (b"one\xe2\x80\xa8two\x0bthree\n", ["one\u2028two\x0bthree"]),
], ids=["bom", "crlf", "blank", "spaces", "utf8", "long", "separators"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_same_lines_are_checked_counted_and_read(
    content, expected, suffix, tmp_path):
  path = tmp_path / f"a.txt{suffix}"
  path.write_bytes(gzip.compress(content) if suffix else content)
  bind("text.train", str(path))
  assert documents() == expected
  assert count() == len(expected)


@pytest.mark.parametrize("content, expected", [
    ("\ufeffa\tb\nc\td\n", [("a", "b"), ("c", "d")]),
    ("a\tb\r\n\r\n \u3000\nc\td", [("a", "b"), ("c", "d")]),
    (" a \t b\n", [(" a ", " b")]),
    ("a\u2028b\tc\x0bd\x85\n", [("a\u2028b", "c\x0bd\x85")]),
    ('"a\tb"\n', [('"a', 'b"')]),
], ids=["bom", "blank", "spaces", "separators", "quotes"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_and_compressed_pairs_are_the_same(content, expected, suffix, tmp_path):
  path = tmp_path / f"a.tsv{suffix}"
  path.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
  bind("pairs.train", str(path))
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  found = source.get_dataset("train", shuffle=False).as_numpy_iterator()
  assert [(e["inputs"].decode(), e["targets"].decode()) for e in found] == expected


@pytest.mark.parametrize("content, message", [
    (b"one\nt\rwo\n", "'.*a.txt', line 2: a carriage return within the line"),
    (b"one\nt\0wo\n", "'.*a.txt', line 2: a NUL character, which is not text; remove"),
    ("one".encode("utf-16-le"), "line 1: a NUL character, .* UTF-16 to UTF-8"),
    (b"one\r\nt\xe4wo\n", "'.*a.txt', line 2: byte 1 is not UTF-8"),
    ("one".encode("utf-16"), "'.*a.txt', line 1: byte 0 is not UTF-8"),
    (gzip.compress(b"one", mtime=0),  # Equal bytes in all processes of the tests.
     "line 1: this is compressed by gzip; let the name"),
    (b"\xef\xbb\xbf\r\n", "'.*a.txt' holds no text"),
])
def test_bad_text_is_named_with_file_and_line(content, message, tmp_path):
  (tmp_path / "a.txt").write_bytes(content)
  bind("text.train", str(tmp_path / "*.txt"))
  with pytest.raises(ValueError, match=message):
    documents()


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_nul_character_in_a_pair_is_named_with_file_and_line(name, tmp_path):
  content = b"a\tb\nc\td\0\n"
  (tmp_path / name).write_bytes(
      gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
  bind("pairs.train", str(tmp_path / name))
  with pytest.raises(ValueError, match=f"{name}', line 2: a NUL character"):
    seqio.TaskRegistry.get("synth_text_pairs").source.get_dataset("train")


def test_one_empty_file_among_others_is_named(tmp_path):
  (tmp_path / "a.txt").write_text("one\n")
  (tmp_path / "b.txt").write_text("")
  bind("text.train", str(tmp_path / "*.txt"))
  with pytest.raises(ValueError, match="b.txt' holds no text"):
    documents()


@pytest.mark.parametrize("content", [
    gzip.compress("\n".join(map(str, range(10000))).encode(), mtime=0)[:-99], b"plain",
    gzip.compress(b"one\n", mtime=0) + b"\n",
    gzip.compress(b"one\n", mtime=0) + b"\x1f\x8b\x08"],
    ids=["cut off", "plain", "a line after it", "half a member after it"])
def test_an_incomplete_gzip_file_is_an_error_that_names_it(content, tmp_path):
  (tmp_path / "a.txt.gz").write_bytes(content)
  bind("text.train", str(tmp_path / "a.txt.gz"))
  with pytest.raises(ValueError, match="a.txt.gz' ends in .gz but is not a w"):
    documents()


@pytest.mark.parametrize("parts, padding", [
    ([b"one\n", b"two\n"], b""), ([b"one\n", b"two\n", b""], b""),
    ([b"one\nt", b"wo\n"], b""), ([b"", b"one\n", b"", b"two\n"], b""),
    ([b"one\n", b"two\n"], bytes(700))],
    ids=["two", "empty last", "line over members", "empty", "zeros at the end"])
def test_gzip_members_are_read(parts, padding, tmp_path):
  path = tmp_path / "all.txt.gz"
  path.write_bytes(b"".join(map(gzip.compress, parts)) + padding)
  bind("text.train", str(path))
  assert documents() == ["one", "two"]
  assert count() == 2


def test_folder_is_refused_with_the_glob_to_write_instead(tmp_path):
  bind("text.train", str(tmp_path))
  with pytest.raises(ValueError) as error:
    documents()
  assert "`synthesizer_mtf.tasks.text.train` names" in str(error.value)
  assert f"which is a folder; name its files, as in '{tmp_path}/*.txt'" in str(
      error.value)


@pytest.mark.parametrize("value", [3, ["a.txt", 4], [], "", [""], {"a": 1}])
def test_globs_of_a_wrong_kind_are_refused(value):
  bind("text.train", value)
  with pytest.raises(ValueError, match="text.train.*set it to the path"):
    documents()


def test_log_counts_examples_blank_lines_and_the_longest_line(tmp_path, caplog):
  (tmp_path / "a.txt").write_text("one\n\nfour five\n")
  (tmp_path / "b.txt").write_text("two\n")
  bind("text.train", str(tmp_path / "*.txt"))
  with caplog.at_level(logging.INFO, logger="absl"):
    documents()
  assert ("a.txt: 2 examples, 1 blank lines skipped, longest line 9 characters"
          in caplog.text)
  assert "train: 3 examples in 2 files." in caplog.text


def test_columns_and_json_lines_mix_in_one_split(tmp_path):
  row = {"inputs": "tab\tand\nline", "targets": "zwei", "more": 1}
  with gzip.open(tmp_path / "a.jsonl.gz", "wt") as f:
    f.write(json.dumps(row) + "\r\n")
  (tmp_path / "b.tsv").write_text('"one"\t eins \n')
  (tmp_path / "c.json").write_text(
      json.dumps({"targets": "\U0001f600", "inputs": "é"}))  # As \ud83d\ude00.
  bind("pairs.train", str(tmp_path / "*"))
  assert texts("synth_text_pairs") == [
      ("tab\tand\nline", "zwei"), ('"one"', " eins "), ("é", "\U0001f600")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.json.gz"])
def test_text_of_json_lines_is_read_and_not_their_markup(name, tmp_path):
  rows = [{"text": "one\ntwo", "timestamp": "2019", "url": "u"}, {"text": " "},
          {"text": "{"}, {"text": "\u00e9 \U0001f600"}]
  content = "\n".join(map(json.dumps, rows)).encode()
  (tmp_path / name).write_bytes(
      gzip.compress(content) if name.endswith(".gz") else content)
  bind("text.train", str(tmp_path / name))
  assert documents() == ["one\ntwo", "{", "\u00e9 \U0001f600"]
  assert count() == 3


def test_plain_text_and_json_lines_mix_in_one_split(tmp_path):
  (tmp_path / "a.txt").write_text("{ a line of text\n")
  (tmp_path / "b.jsonl").write_text('{"text": "two"}\n')
  bind("text.train", str(tmp_path / "*"))
  assert documents() == ["{ a line of text", "two"]


def test_the_key_of_the_text_is_a_parameter(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"body": "one", "text": "two"}\n')
  bind("text.train", str(tmp_path / "a.jsonl"))
  bind("text.key", "body")
  assert documents() == ["one"]


def test_without_a_key_json_lines_are_plain_text(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
  bind("text.train", str(tmp_path / "a.jsonl"))
  bind("text.key", None)
  assert documents() == ['{"text": "one"}']


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", '{"text": "one"}\n',
     "a.txt', line 1: this is an object in JSON with the string 'text'.*jsonl"),
    ("a.jsonl", "plain\n", "a.jsonl', line 1: not JSON"),
    ("a.jsonl", '{"text": "one"}\n{"body": "b"}\n',
     'line 2: an object with the string "text".*tasks.text.key` is \'text\''),
    ("a.jsonl", '{"text": 3}\n', 'line 1: an object with the string "text" is'),
    ("a.jsonl", '{"text": " "}\n', "a.jsonl' holds no text"),
    ("a.jsonl", '{"text": ' + "[" * 99_999 + "\n", "line 1: JSON that is nested"),
])
def test_a_file_that_is_not_what_its_name_says_is_named(
    name, content, message, tmp_path):
  (tmp_path / name).write_text(content)
  bind("text.train", str(tmp_path / name))
  with pytest.raises(ValueError, match=message):
    documents()


def test_markup_without_the_text_is_read_with_a_warning(tmp_path, caplog):
  (tmp_path / "a.txt").write_text('{"body": "one"}\n{}\n')
  bind("text.train", str(tmp_path / "a.txt"))
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert documents() == ['{"body": "one"}', "{}"]
  assert "a.txt' is read as plain text, but its first line is an obj" in caplog.text


def test_a_wrong_key_is_named():
  bind("text.key", 3)
  with pytest.raises(ValueError, match="tasks.text.key` is 3; name the key"):
    documents()


@pytest.mark.parametrize("name", ["odd[1].txt", "a*b?.txt", "[.txt"])
def test_a_file_whose_name_looks_like_a_glob_is_found(name, tmp_path):
  (tmp_path / name).write_text("one\n")
  (tmp_path / "odd1.txt").write_text("another\n")
  bind("text.train", str(tmp_path / name))
  assert documents() == ["one"]


@pytest.fixture
def own_gin(clean_tasks, monkeypatch):
  """`gin_files.parse`, undone afterwards."""
  with gin.unlock_config():
    yield gin_files.parse
  gin_files.parse()


def test_paths_in_a_gin_file_are_relative_to_it_and_others_to_the_folder(
    own_gin, sentencepiece_model, tmp_path, monkeypatch):
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "a.txt").write_text("beside\n")
  (tmp_path / "a.txt").write_text("here\n")
  (tmp_path / "b.txt").write_text("only here\n")
  (tmp_path / "data" / "data.gin").write_text(
      "synthesizer_mtf.tasks.text.train = ['*.txt', 'b.txt']\n"
      "news/tasks.text.train = 'a.txt'\n"
      "synthesizer_mtf.tasks.text.validation = 'a.txt'\n")
  (tmp_path / "all.gin").write_text(f"include '{tmp_path}/data/data.gin'\n")
  monkeypatch.chdir(tmp_path)
  own_gin(["all.gin"], [
      "synthesizer_mtf.tasks.text.validation = './a.txt'"])
  assert sorted(documents()) == ["beside", "only here"]
  assert documents("validation") == ["here"]
  assert gin.query_parameter("news/synthesizer_mtf.tasks.text.train") == str(
      tmp_path / "data" / "a.txt")
  (tmp_path / "data").rename(tmp_path / "moved")
  own_gin(["moved/data.gin"])
  assert documents("validation") == ["beside"]


def test_an_error_about_a_relative_path_says_where_it_was_looked_for(
    tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  bind("text.train", "nowhere.txt")
  with pytest.raises(ValueError, match=f"beside the gin file nor in .{tmp_path}"):
    documents()


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("one\n")
  bind("text.train", str(tmp_path / "a.txt"))
  def refuse(path, mode):
    raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")
  monkeypatch.setattr(tf.io.gfile, "GFile", refuse)
  with pytest.raises(ValueError, match="a.txt' cannot be read .Permission denied"):
    documents()


@pytest.mark.parametrize("line, message", [
    ('{"inputs": "a", "targets": "b\\u0000"}', "line 1: a NUL character"),
    ('{"inputs": "a", "targets": "\\ud800"}', "line 1: half of a surrogate"),
    ('{"inputs": "a", "targets": 3}', "line 1: an object with the strings"),
    ('{"inputs": "a", "targets": ""}', "line 1: the input or the target is e"),
    ('{"inputs": ' + '{"a": ' * 99_999, "line 1: JSON that is nested too deeply"),
    ("null", "line 1: an object with the strings"),
    ("{", "line 1: not JSON"),
    ('{"inputs": "a"}', '"inputs" and "targets" is needed'),
    ('["inputs", "targets"]', '"inputs" and "targets" is needed'),
])
def test_bad_json_is_named(line, message, tmp_path):
  (tmp_path / "a.jsonl").write_text(line + "\n")
  bind("pairs.train", str(tmp_path / "a.jsonl"))
  with pytest.raises(ValueError, match=message):
    texts("synth_text_pairs")


@pytest.mark.parametrize("kind, task, content", [
    ("text", "synth_text_lm", "one\n"), ("pairs", "synth_text_pairs", "one\teins\n")])
def test_reading_plain_files_needs_no_python(kind, task, content, tmp_path):
  """Hosts of a pod can read plain files, although the trainer's Python is not there."""
  (tmp_path / "a.txt").write_text(content)
  bind(f"{kind}.train", str(tmp_path / "a.txt"))
  source = seqio.TaskRegistry.get(task).source
  with tf.Graph().as_default() as graph:
    source.get_dataset("train", shuffle=False)
    functions = graph.as_graph_def().library.function
  nodes = {node.op for f in functions for node in f.node_def}
  assert "StaticRegexFullMatch" in nodes
  assert not [op for op in nodes if "PyFunc" in op]


def test_a_test_split_of_own_files_is_read(tmp_path):
  (tmp_path / "a.txt").write_text("one\n")
  (tmp_path / "a.tsv").write_text("one\teins\n")
  bind("text.test", str(tmp_path / "a.txt"))
  bind("pairs.test", str(tmp_path / "a.tsv"))
  assert documents("test") == ["one"]
  assert texts("synth_text_pairs", "test") == [("one", "eins")]


def test_splits_are_those_whose_files_are_named(tmp_path, monkeypatch):
  task = seqio.TaskRegistry.get("synth_text_pairs")
  assert list(task.splits) == ["train", "validation", "test"]
  bind("pairs.train", "a.tsv")
  assert list(task.splits) == ["train"]
  monkeypatch.setenv("SYNTHESIZER_MTF_PAIRS_TEST", "b.tsv")
  assert list(task.splits) == ["train", "test"]


def test_a_split_without_files_names_the_parameter(tmp_path):
  (tmp_path / "a.tsv").write_text("one\teins\n")
  bind("pairs.train", str(tmp_path / "a.tsv"))
  with pytest.raises(ValueError, match="tasks.pairs.test` or the env.*set it to"):
    examples("synth_text_pairs", "test")


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_shuffled_pairs_come_once_in_each_pass_and_each_in_its_own_order(
    name, tmp_path):
  lines = [f"{i}\tt" if name == "a.tsv" else
           json.dumps({"inputs": str(i), "targets": "t"}) for i in range(1500)]
  (tmp_path / name).write_text("\n".join(lines))
  bind("pairs.train", str(tmp_path / name))
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
  (tmp_path / "a.tsv").write_text("\n".join(f"{i}\tt" for i in range(40)))
  bind("pairs.train", str(tmp_path / "a.tsv"))
  dataset = seqio.TaskRegistry.get("synth_text_pairs").get_dataset(
      LENGTHS, "train", seed=5, num_epochs=3)
  order = [int(example["inputs_pretokenized"])
           for example in dataset.as_numpy_iterator()]
  passes = [order[:40], order[40:80], order[80:]]
  assert all(sorted(each) == list(range(40)) for each in passes)
  assert len(set(map(tuple, passes))) == 3


def test_training_text_does_not_follow_sorted_files(tmp_path):
  (tmp_path / "a.txt").write_text("\n".join(f"{i} the" for i in range(6000)))
  bind("text.train", str(tmp_path / "a.txt"))
  dataset = seqio.TaskRegistry.get("synth_text_lm").get_dataset(
      {"targets": 12}, "train", seed=5)
  chosen = seqio.TaskRegistry.get("synth_text_lm").output_features[
      "targets"].vocabulary
  found = [int(number) for example in dataset.take(60).as_numpy_iterator()
           for number in chosen.decode_tf(example["targets"]).numpy().split()
           if number.isdigit()]
  assert len(found) > 30
  assert min(found) < 1000 and max(found) > 5000


def test_a_set_too_large_for_memory_is_shuffled_in_windows_and_says_so(
    tmp_path, monkeypatch, caplog):
  for name in "ab":
    (tmp_path / f"{name}.tsv").write_text(
        "\n".join(f"{name}{i}\tt" for i in range(100)))
  bind("pairs.train", str(tmp_path / "*.tsv"))
  monkeypatch.setattr(text_source, "_SHUFFLE_BYTES", 10_000)
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  order = [example["inputs"] for example in source.get_dataset(
      "train", seed=5).as_numpy_iterator()]
  assert len(set(order)) == 200
  assert "train: the 200 examples take more memory" in caplog.text
  assert "drawn from the next 39 of up to 16 files" in caplog.text


def test_rows_of_a_language_model_hold_every_token(tmp_path):
  words = " ".join(f"word{i}" for i in range(200))
  (tmp_path / "a.txt").write_text(f"{words}\nthe end\n")
  bind("text.train", str(tmp_path / "a.txt"))
  evaluated, = mesh_transformer.mesh_eval_dataset_fn(
      "synth_text_lm", {"targets": 16}, "train")
  rows = [row["targets"] for row in evaluated.dataset_fn().as_numpy_iterator()]
  chosen = seqio.TaskRegistry.get("synth_text_lm").output_features[
      "targets"].vocabulary
  assert len(rows) > 20
  ids = [*chosen.encode(words), 1, *chosen.encode("the end"), 1]
  assert [token for row in rows for token in row if token] == ids


def test_long_pairs_are_cut_and_counted_not_dropped(tmp_path, capfd):
  rows = [f"{'long ' * 40}\tt{i}" for i in range(12)] + ["short\tt12"]
  (tmp_path / "a.tsv").write_text("\n".join(rows))
  bind("pairs.train", str(tmp_path / "a.tsv"))
  found = examples("synth_text_pairs")
  assert [e["targets_pretokenized"].decode() for e in found] == [
      f"t{i}" for i in range(13)]
  assert all(len(e["inputs"]) == 32 and e["inputs"][-1] == e["targets"][-1] == 1
             for e in found[:12])
  printed = [line for line in capfd.readouterr().err.splitlines()
             if line.startswith("Cut to sequence_length {'inputs': 32")]
  assert ["1 of 1 examples" in printed[0],
          "10 of 10 examples of synth_text_pairs so" in printed[1],
          len(printed)] == [True, True, 2]


def test_pairs_that_fit_give_no_message(tmp_path, capfd):
  (tmp_path / "a.tsv").write_text("one\teins\n")
  bind("pairs.train", str(tmp_path / "a.tsv"))
  assert len(examples("synth_text_pairs")) == 1
  assert "Cut to" not in capfd.readouterr().err


def test_blanks_around_commas_in_the_environment_are_dropped(
    tmp_path, monkeypatch):
  for name in "ab":
    (tmp_path / f"{name}.txt").write_text(f"{name}\n")
  monkeypatch.setenv("SYNTHESIZER_MTF_TEXT_TRAIN",
                     f"{tmp_path}/a.txt, {tmp_path}/b.txt ,")
  assert documents() == ["a", "b"]
