"""Which lines of the user's own files are texts and pairs, and which are mistakes."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import tempfile
import zipfile

import gin
import pyarrow as pa
from pyarrow import parquet
import pytest
import seqio
from support.task_files import bind
from support.task_files import own
from support.task_files import rows
from support.task_files import texts
from support.task_files import write
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import records
from synthesizer_mtf.tools.base import vocabularies
import tensorflow.compat.v2 as tf

pytestmark = pytest.mark.usefixtures("vocabulary")


def zipped(*parts):
  """The bytes of a file in gzip's format, with a member for each part."""
  return b"".join(gzip.compress(part.encode()) for part in parts)


def archive():
  """The bytes of a zip archive of one file."""
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as f:
    f.writestr("a.txt", "one\n")
  return buffer.getvalue()


def tfrecord():
  """The bytes of a TFRecord file of one example."""
  example = tf.train.Example(features=tf.train.Features(feature={
      "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"one"]))}))
  with tempfile.NamedTemporaryFile() as f:
    with tf.io.TFRecordWriter(f.name) as writer:
      writer.write(example.SerializeToString())
    return f.read()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_same_lines_are_checked_counted_and_read(suffix, tmp_path):
  for content, expected in [
      ("\ufeffone\ntwo\n", ["one", "two"]),  # A byte order mark.
      ("one\r\n\r\ntwo\r\n", ["one", "two"]),
      ("one\n \u3000\t\n\x85\n\x1c\ntwo", ["one", "two"]),  # Blanks.
      ("  one \n\ttwo", ["  one ", "\ttwo"]),
      ("α β\n語\n", ["α β", "語"]),
      ("a" * 3_000_000 + "\nb", ["a" * 3_000_000, "b"]),
      ("one\u2028two\x0bthree\n", ["one\u2028two\x0bthree"])]:
    assert own("text", tmp_path, {"a.txt" + suffix: content}) == expected
  for content, expected in [
      ("\ufeffa\tb\nc\td\n", [("a", "b"), ("c", "d")]),
      ("a\tb\r\n\r\n \u3000\nc\td", [("a", "b"), ("c", "d")]),
      (" a \t b\n", [(" a ", " b")]),
      ("a\u2028b\tc\x0bd\x85\n", [("a\u2028b", "c\x0bd\x85")]),
      ('"a\tb"\n', [('"a', 'b"')])]:
    assert own("pairs", tmp_path, {"a.tsv" + suffix: content}) == expected


def test_gzip_members_are_read(tmp_path):
  for content in (zipped("one\n", "two\n"), zipped("one\n", "two\n", ""),
                  zipped("one\nt", "wo\n"), zipped("", "one\n", "", "two\n"),
                  zipped("one\n", "two\n") + bytes(700)):
    assert own("text", tmp_path, {"a.txt.gz": content}) == ["one", "two"]


def test_json_lines_csv_columns_and_plain_text_mix_in_one_split(tmp_path):
  row = {"inputs": "tab\tand\nline", "targets": "zwei", "more": 1}
  assert own("pairs", tmp_path, {
      "a.jsonl.gz": json.dumps(row) + "\r\n", "b.tsv": '"one"\t eins \n',
      "c.json": json.dumps({"targets": "\U0001f600", "inputs": "é"})}) == [
          ("tab\tand\nline", "zwei"), ('"one"', " eins "), ("é", "\U0001f600")]
  assert own("text", tmp_path, {
      "a.txt": "{ a line of text\n", "b.jsonl": '{"text": "two"}\n'}) == [
          "{ a line of text", "two"]


def test_text_of_json_lines_is_read_under_its_key_and_not_their_markup(tmp_path):
  lines = [{"text": "one\ntwo", "timestamp": "2019", "url": "u"}, {"text": " "},
           {"text": "{"}, {"text": "\u00e9 \U0001f600"}]
  for name in ("a.jsonl", "a.json", "a.json.gz"):
    assert own("text", tmp_path, {name: "\n".join(map(json.dumps, lines))}) == [
        "one\ntwo", "{", "\u00e9 \U0001f600"]
  bind("text.key", "body")
  assert own("text", tmp_path, {"a.jsonl": '{"body": "one", "text": "two"}'}) == ["one"]
  bind("text.key", None)
  assert own("text", tmp_path, {"a.jsonl": '{"text": "one"}'}) == ['{"text": "one"}']


def of_rows(suffix, made):
  """The content of a file of rows with named fields, as its suffix implies."""
  if suffix == ".parquet":
    out = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(made), out)
    return out.getvalue().to_pybytes()
  if "csv" not in suffix:
    return "".join(json.dumps(row) + "\n" for row in made)
  text = io.StringIO(newline="")
  writer = csv.DictWriter(text, made[0])
  writer.writeheader()
  writer.writerows(made)
  return text.getvalue()


NLI = [{"premise": "a, \"b\"\n\nc", "hypothesis": "ä", "label": 1},
       {"premise": "d", "hypothesis": "{e}", "label": 0}]
FORMATS = [".jsonl", ".json.gz", ".csv", ".csv.gz", ".parquet"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_keys_make_pairs_and_texts_and_numbers_are_names_of_classes(suffix, tmp_path):
  bind("pairs.keys", {"inputs": "nli {{}} premise: {premise} hypothesis: {hypothesis}",
                      "targets": "label"})
  bind("pairs.classes", ["no", "yes"])
  bind("pairs.train", write(tmp_path, {"a" + suffix: of_rows(suffix, NLI)}))
  for task in ("synth_text_pairs", "synth_text_pairs_encoder"):
    assert texts(task) == [("nli {} premise: a, \"b\"\n\nc hypothesis: ä", "yes"),
                           ("nli {} premise: d hypothesis: {e}", "no")]
  bind("text.key", "body")
  assert own("text", tmp_path, {"a" + suffix: of_rows(suffix, [
      {"body": text, "n": 1} for text in ("one\ntwo", " ", "3")])}) == ["one\ntwo", "3"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_key_leads_into_an_object(suffix, tmp_path):
  bind("pairs.keys", {"inputs": "translation.en", "targets": "translation.de"})
  assert own("pairs", tmp_path, {"a" + suffix: of_rows(suffix, [
      {"translation": {"en": "one", "de": "eins"}}])}) == [("one", "eins")]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_key_names_an_entry_of_a_list(suffix, tmp_path):
  content = of_rows(suffix, [{"question": "who", "answers": {"text": ["a", "b"]}}])
  for entry, answer in ("0", "a"), ("1", "b"):
    bind("pairs.keys", {"inputs": "question", "targets": f"answers.text.{entry}"})
    assert own("pairs", tmp_path, {"a" + suffix: content}) == [("who", answer)]
  for key, message in [("answers.text", r'"answers.text" is a list; name .*text.0"'),
                       ("answers.text.2", "an object with the strings")]:
    bind("pairs.keys", {"inputs": "question", "targets": key})
    with pytest.raises(ValueError, match=message):
      own("pairs", tmp_path, {"a" + suffix: content})


def test_columns_without_a_header_have_no_keys_but_numbers_of_classes(tmp_path):
  bind("pairs.keys", {"inputs": "sentence", "targets": "label"})
  bind("pairs.classes", ["no", "yes"])
  assert own("pairs", tmp_path, {"a.tsv": "so good\t1\nso dull\tno\n"}) == [
      ("so good", "yes"), ("so dull", "no")]


def test_names_that_are_numbers_stand_for_themselves(tmp_path):
  bind("pairs.classes", ["1", "2"])
  made = [{"inputs": "a", "targets": 1}, {"inputs": "b", "targets": "2"}]
  assert own("pairs", tmp_path, {"a.jsonl": of_rows("", made)}) == [
      ("a", "1"), ("b", "2")]
  with pytest.raises(ValueError, match="b.jsonl', line 1: the target is the number 0"):
    own("pairs", tmp_path, {"b.jsonl": of_rows("", [{**made[0], "targets": 0}])})


LABELS = ["0.0", "1.0", " 0", "1 ", "01", "+1.", "True", "false", "no", " yes"]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.tsv.gz"])
def test_labels_as_other_programs_write_them_are_classes(name, tmp_path):
  bind("pairs.classes", ["no", "yes"])
  separator = "," if "csv" in name else "\t"
  lines = [f"{i}{separator}{label}" for i, label in enumerate(LABELS)]
  if separator == ",":
    lines = ["inputs,targets", *lines, '"10","1.0"', '"11"," 0"']
  pairs = own("pairs", tmp_path, {name: "\ufeff" + "\r\n".join(lines)})
  assert "".join(target[0] for _, target in pairs[:10]) == "nynyyyynny"
  assert [target for _, target in pairs[10:]] == ["yes", "no"] * (separator == ",")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_labels_that_are_numbers_or_truths_are_classes(suffix, tmp_path):
  bind("pairs.classes", ["no", "yes"])
  for labels in ([0.0, 1.0], [False, True], [0, 1]):
    assert own("pairs", tmp_path, {"a" + suffix: of_rows(suffix, [
        {"inputs": "a", "targets": label} for label in labels])}) == [
            ("a", "no"), ("a", "yes")]


@pytest.mark.parametrize("classes, target, label", [
    (["1.0", "2.0"], "1", "1.0"), (["-1", "1"], "-1.0", "-1"),
    (["true", "false"], "true", "true"), (["1 star", "2 stars"], "1.0", "2 stars")])
def test_a_name_wins_over_a_number(classes, target, label, tmp_path):
  bind("pairs.classes", classes)
  assert own("pairs", tmp_path, {"a.tsv": f"a\t{target}"}) == [("a", label)]


@pytest.mark.parametrize("classes, target", [
    (["no", "yes"], target) for target in (
        "-1", "-1.0", "2.0", "0.5", "nan", "maybe", "No", "1e0", "\xa00")] + [
    (["true", "false"], "True"), (["a", "b", "c"], "True"), (["1", "2"], "0.0")])
def test_a_target_that_is_no_class_is_named_with_its_line(classes, target, tmp_path):
  bind("pairs.classes", classes)
  for name, content in (("a.tsv", f"a\t{classes[0]}\nb\t{target}\n"),
                        ("a.csv", f"inputs,targets\na,{classes[0]}\nb,{target}\n")):
    number = content.count("\n")
    with pytest.raises(ValueError, match=(
        f"{name}', line {number}: the target .*pairs.classes` ?,? (is|which are)")):
      own("pairs", tmp_path, {name: content})


# Files with a mistake, and what the message says about the place and the mistake.
BAD_TEXTS = [
    ("a.txt", "one\nt\rwo\n", "a.txt', line 2: a carriage return within the line"),
    ("a.txt", "one\nt\0wo\n", "a.txt', line 2: a NUL character, .*; remove"),
    ("a.txt", "one".encode("utf-16-le"), "line 1: a NUL character, .* UTF-16 to UTF-8"),
    ("a.txt", b"one\r\nt\xe4wo\n", "a.txt', line 2: byte 1 is not UTF-8"),
    ("a.txt", "one".encode("utf-16"), "a.txt', line 1: byte 0 is not UTF-8"),
    ("a.txt", zipped("one"), "line 1: the file is compressed by gzip; let its name"),
    ("a.txt", bz2.compress(b"one"), "the file is compressed by bzip2; unpack it"),
    ("a.txt", lzma.compress(b"one"), "the file is compressed by xz; unpack it"),
    ("a.txt", archive(), "the file is a zip archive; unpack it"),
    ("a.txt", of_rows(".parquet", [{"text": "one"}]), "the file is Parquet; let its"),
    ("a.txt", tfrecord(), "the file is TFRecord; .*TFExampleDataSource"),
    ("a.txt", "\ufeff\r\n", "a.txt' holds no text"),
    ("a.txt.gz", zipped("\n".join(map(str, range(9999))))[:-99], "not a whole|ends in"),
    ("a.txt.gz", b"plain", "a.txt.gz' ends in .gz but is not a w"),
    ("a.txt.gz", zipped("one\n") + b"\x1f\x8b\x08", "ends in .gz but is not a w"),
    ("a.txt", '{"text": "one"}\n', "line 1: this is an object in JSON with .*jsonl"),
    ("a.jsonl", "plain\n", "a.jsonl', line 1: not JSON"),
    ("a.jsonl", '{"text": "one"}\n{"body": "b"}\n',
     'line 2: an object with the string "text".*tasks.text.key` is \'text\''),
    ("a.jsonl", '{"text": 3}\n', 'line 1: an object with the string "text" is'),
    ("a.jsonl", '{"text": " "}\n', "a.jsonl' holds no text"),
    ("a.jsonl", '{"text": ' + "[" * 99_999, "line 1: JSON that is nested"),
]
BAD_PAIRS = [
    ("a.tsv", "a\tb\nc\n", "a.tsv', line 2: 1 columns, but a pair needs 2"),
    ("a.tsv", "a\tb\nc\td\te\n", "line 2: 3 columns"),
    ("a.tsv", "a\t \n", "line 1: the input or the target is empty"),
    ("a.tsv", "a\tb\nc\td\0\n", "a.tsv', line 2: a NUL character"),
    ("a.jsonl", '{"inputs": "a", "targets": "b\\u0000"}', "line 1: a NUL character"),
    ("a.jsonl", '{"inputs": "a", "targets": "\\ud800"}', "line 1: half of a surrogate"),
    ("a.jsonl", '{"inputs": "a", "targets": 3}', "line 1: an object with the strings"),
    ("a.jsonl", '{"inputs": "a", "targets": ""}', "the input or the target is empty"),
    ("a.jsonl", '{"inputs": ' + '{"a": ' * 99_999, "line 1: JSON that is nested too d"),
    ("a.jsonl", '{"inputs": "a"}', 'line 1: .*"inputs" and "targets" is needed'),
    ("a.jsonl", '["inputs", "targets"]', '"inputs" and "targets" is needed'),
    ("a.csv", "a,targets\nb,c\n",
     "a.csv', line 1: there is no column 'inputs', but 'a', 'targets'"),
    ("a.csv", "inputs,targets\nb, \n", "a.csv', line 2: the input or the target is e"),
    ("a.csv", "inputs,targets\na,b\nc,d,e\n", "line 3: 3 columns, but the header"),
    ("a.csv", "inputs,targets\na,\"b\n", "line 2: this is not CSV .unexpected end"),
    ("a.csv", "inputs,targets,inputs\na,b,c\n", "there are two columns 'inputs'"),
    ("a.csv", "inputs,targets\n\n", "a.csv' holds no text"),
    ("a.csv", "", "a.csv' holds no text"),
    ("a.parquet", of_rows(".parquet", [{"a": "b", "targets": "c"}]),
     "a.parquet': there is no column 'inputs', but 'a', 'ta"),
    ("a.parquet", of_rows(".parquet", [{"inputs": text, "targets": "c"}
                                       for text in ("b", None)]),
     "a.parquet', row 2: an object with the strings .* not {'inputs': None"),
    ("a.parquet", of_rows(".parquet", [{"inputs": "b", "targets": 1}]),
     "a.parquet', row 1: .*pairs.classes` the names of targets that are"),
    ("a.parquet", "inputs\ttargets\n", "a.parquet' is not a whole Parquet file"),
]


@pytest.mark.parametrize("kind, files", [("text", BAD_TEXTS), ("pairs", BAD_PAIRS)],
                         ids=["text", "pairs"])
def test_a_bad_file_is_named_with_the_line(kind, files, tmp_path):
  for name, content, message in files:
    with pytest.raises(ValueError, match=message):
      own(kind, tmp_path, {name: content})


def test_one_empty_file_among_others_is_named(tmp_path):
  with pytest.raises(ValueError, match="b.txt' holds no text"):
    own("text", tmp_path, {"a.txt": "one\n", "b.txt": ""})


def test_a_number_without_a_name_is_named_with_its_row(tmp_path):
  bind("pairs.keys", {"inputs": "premise", "targets": "label"})
  bind("pairs.classes", ["no", "yes"])
  with pytest.raises(ValueError, match="row 3: the target is the number 2, but"):
    own("pairs", tmp_path, {"a.parquet": of_rows(".parquet", [
        *NLI, {**NLI[0], "label": 2}])})


@pytest.mark.parametrize("keys, message", [
    ("text", "pairs.keys` is 'text' but must be a dict"),
    ({"input": "a"}, "pairs.keys` is {'input': 'a'} but must be a dict"),
    ({"inputs": 3}, r"pairs.keys`\['inputs'\] is 3 but must be the key"),
    ({"inputs": "a {b"}, "is 'a {b', which is not a template"),
    ({"inputs": "a {}"}, "a brace needs a key"),
    ({"inputs": "{{a}}"}, "it names no key"),
])
def test_wrong_keys_are_named(keys, message, tmp_path):
  bind("pairs.keys", keys)
  with pytest.raises(ValueError, match=message):
    own("pairs", tmp_path, {"a.jsonl": of_rows("", NLI)})


def test_wrong_globs_and_a_wrong_key_are_named_with_the_remedy(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for value, message in [
      *((value, "text.train.*set it to the path")
        for value in (3, ["a.txt", 4], [], "", [""], {"a": 1})),
      (str(tmp_path), f"`synthesizer_mtf.tasks.text.train` names .*which is a folder; "
                      f"name its files, as in '{tmp_path}/\\*.txt'"),
      ("/no/such/*.txt", "text.train.*'/no/such/.*no such file"),
      ("nowhere.txt", f"beside the gin file nor in .{tmp_path}")]:
    bind("text.train", value)
    with pytest.raises(ValueError, match=message):
      rows("text")
  bind("text.key", 3)
  with pytest.raises(ValueError, match="tasks.text.key` is 3; name the key"):
    rows("text")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
  def refuse(path, mode):
    raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")
  bind("text.train", write(tmp_path, {"a.txt": "one\n"}))
  monkeypatch.setattr(tf.io.gfile, "GFile", refuse)
  with pytest.raises(ValueError, match="a.txt' cannot be read .Permission denied"):
    rows("text")


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
  for name in ("odd[1].txt", "a*b?.txt", "[.txt"):
    others = write(tmp_path, {name: "one\n", "odd1.txt": "another\n"})
    bind("text.train", others[:-1] + name)
    assert rows("text") == ["one"]


def test_the_log_counts_examples_blank_lines_and_the_longest_line(tmp_path, log):
  own("text", tmp_path, {"a.txt": "one\n\nfour five\n", "b.txt": "two\n"})
  assert ("a.txt: 2 examples, 1 blank lines skipped, longest line 9 characters"
          in log.text)
  assert "train: 3 examples in 2 files." in log.text


def test_markup_without_the_text_is_read_with_a_warning(tmp_path, caplog):
  assert own("text", tmp_path, {"a.txt": '{"body": "one"}\n{}\n'}) == [
      '{"body": "one"}', "{}"]
  assert "a.txt' is read as plain text, but its first line is an obj" in caplog.text


def test_paths_in_a_gin_file_are_relative_to_it_and_others_to_the_folder(
    tmp_path, monkeypatch):
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
  with gin.unlock_config():
    gin_files.parse(["all.gin"], ["synthesizer_mtf.tasks.text.validation = './a.txt'"])
    assert sorted(rows("text")) == ["beside", "only here"]
    assert rows("text", "validation") == ["here"]
    assert gin.query_parameter("news/synthesizer_mtf.tasks.text.train") == str(
        tmp_path / "data" / "a.txt")
    (tmp_path / "data").rename(tmp_path / "moved")
    gin_files.parse(["moved/data.gin"])
    assert rows("text", "validation") == ["beside"]


def test_reading_plain_files_needs_no_python(tmp_path):
  """Hosts of a pod can read plain files, although the trainer's Python is not there."""
  for kind, task, content in (("text", "synth_text_lm", "one\n"),
                              ("pairs", "synth_text_pairs", "one\teins\n")):
    bind(f"{kind}.train", write(tmp_path, {"a.txt": content}))
    source = seqio.TaskRegistry.get(task).source
    with tf.Graph().as_default() as graph:
      source.get_dataset("train", shuffle=False)
      functions = graph.as_graph_def().library.function
    nodes = {node.op for f in functions for node in f.node_def}
    assert "StaticRegexFullMatch" in nodes
    assert not [op for op in nodes if "PyFunc" in op]


def test_caches_remember_the_keys():
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  assert not source.made_with()
  bind("pairs.keys", {"inputs": "{a}"})
  assert source.made_with() == {"keys of the pairs": {"inputs": "{a}"}}


def test_a_vocabulary_is_trained_on_the_same_rows(tmp_path):
  folder = write(tmp_path, {
      "a.parquet": of_rows(".parquet", [{"inputs": "one", "targets": "two"}]),
      "b.csv": of_rows(".csv", NLI)})[:-1]
  texts = vocabularies.read(
      [folder + "a.parquet", folder + "b.csv"], "{premise}|{hypothesis}")
  assert list(texts) == ["one", "two", "a, \"b\"\n\nc|ä", "d|{e}"]
  assert records.has_keys(folder + "b.csv", ["premise", "label"])
  assert not records.has_keys(folder + "b.csv", ["premise", "inputs"])


def test_a_file_is_checked_again_after_it_or_its_keys_have_changed(tmp_path):
  """The error comes before TensorFlow reads the file, whose message has no end."""
  path = tmp_path / "a.csv"
  path.write_text("inputs,targets,label\none,eins,x\n")
  bind("pairs.train", str(path))
  assert list(rows("pairs")) == [("one", "eins")]
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  for bindings, said in [
      ({"keys": {"targets": "missing"}}, "there is no column 'missing'"),
      ({"keys": {"targets": "label"}, "classes": ["a", "b"]}, "2: the target 'x' "),
      ({"keys": None, "classes": ["a", "b"]}, "line 2: the target 'eins' ")]:
    for name, value in bindings.items():
      bind(f"pairs.{name}", value)
    with pytest.raises(checks.Error, match=said):
      source.list_shards("train")
  bind("pairs.classes", None)
  before = path.stat()
  path.write_text("inputs,targets,label\none,,einsx\n")
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
  assert path.stat().st_size == before.st_size
  with pytest.raises(checks.Error, match="line 2: the input or the target is empty"):
    source.list_shards("train")
