"""Pairs and documents in rows with named fields: JSON lines, CSV and Parquet."""

import csv
import gzip
import json

import pyarrow as pa
from pyarrow import parquet
import pytest
import seqio
from support.task_files import bind
from support.task_files import texts
from synthesizer_mtf.tasks import records
from synthesizer_mtf.tools import train_vocabulary

pytestmark = pytest.mark.usefixtures("clean_tasks")

ROWS = [{"premise": "a, \"b\"\n\nc", "hypothesis": "ä", "label": 1},
        {"premise": "d", "hypothesis": "{e}", "label": 0}]
CLASSES = ["no", "yes"]
TEMPLATE = "nli {{}} premise: {premise} hypothesis: {hypothesis}"
PAIRS = [("nli {} premise: a, \"b\"\n\nc hypothesis: ä", "yes"),
         ("nli {} premise: d hypothesis: {e}", "no")]


@pytest.fixture(autouse=True)
def vocabulary(clean_tasks, sentencepiece_model):
  bind("vocabulary.sentencepiece_model", sentencepiece_model)


def write(path, rows=ROWS):
  """Writes rows in the format that the file's name implies."""
  if path.suffix == ".parquet":
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path
  opened = gzip.open if path.suffix == ".gz" else open
  with opened(path, "wt", encoding="utf-8", newline="") as f:
    if ".csv" in path.name:
      writer = csv.DictWriter(f, rows[0])
      writer.writeheader()
      writer.writerows(rows)
    else:
      f.writelines(json.dumps(row) + "\n" for row in rows)
  return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.csv", "a.csv.gz", "a.parquet"])
def test_keys_make_pairs_and_numbers_are_names_of_classes(name, tmp_path):
  bind("pairs.train", str(write(tmp_path / name)))
  bind("pairs.keys", {"inputs": TEMPLATE, "targets": "label"})
  bind("pairs.classes", CLASSES)
  assert texts("synth_text_pairs") == PAIRS
  assert texts("synth_text_pairs_encoder") == PAIRS


@pytest.mark.parametrize("name", ["a.json.gz", "a.csv", "a.parquet"])
def test_documents_are_in_a_field(name, tmp_path):
  rows = [{"body": "one\ntwo", "n": 1}, {"body": " ", "n": 2}, {"body": "3", "n": 3}]
  bind("text.train", str(write(tmp_path / name, rows)))
  bind("text.key", "body")
  source = seqio.TaskRegistry.get("synth_text_lm").source
  found = source.get_dataset("train", shuffle=False).as_numpy_iterator()
  assert [row["text"].decode() for row in found] == ["one\ntwo", "3"]
  assert source.num_input_examples("train") == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_key_leads_into_an_object(name, tmp_path):
  row = {"translation": {"en": "one", "de": "eins"}}
  bind("pairs.train", str(write(tmp_path / name, [row])))
  bind("pairs.keys", {"inputs": "translation.en", "targets": "translation.de"})
  assert texts("synth_text_pairs") == [("one", "eins")]


def test_columns_without_a_header_have_no_keys_but_numbers_of_classes(tmp_path):
  (tmp_path / "a.tsv").write_text("so good\t1\nso dull\tno\n")
  bind("pairs.train", str(tmp_path / "a.tsv"))
  bind("pairs.keys", {"inputs": "sentence", "targets": "label"})
  bind("pairs.classes", CLASSES)
  assert texts("synth_text_pairs") == [("so good", "yes"), ("so dull", "no")]


def test_names_that_are_numbers_stand_for_themselves(tmp_path):
  rows = [{"inputs": "a", "targets": 1}, {"inputs": "b", "targets": "2"}]
  bind("pairs.train", str(write(tmp_path / "a.jsonl", rows)))
  bind("pairs.classes", ["1", "2"])
  assert texts("synth_text_pairs") == [("a", "1"), ("b", "2")]
  bind("pairs.train", str(write(tmp_path / "b.jsonl", [{**rows[0], "targets": 0}])))
  with pytest.raises(ValueError, match="b.jsonl', line 1: the target is the number 0"):
    texts("synth_text_pairs")


BAD = {
    "no column": ("a.csv", [{"a": "b", "targets": "c"}],
                  "a.csv', line 1: there is no column 'inputs', but 'a', 'targets'"),
    "no column of Parquet": ("a.parquet", [{"a": "b", "targets": "c"}],
                             "a.parquet': there is no column 'inputs', but 'a', 'ta"),
    "null": ("a.parquet", [{"inputs": "b", "targets": "c"},
                           {"inputs": None, "targets": "c"}],
             "a.parquet', row 2: an object with the strings .* not {'inputs': None"),
    "a number": ("a.parquet", [{"inputs": "b", "targets": 1}],
                 "a.parquet', row 1: .*pairs.classes` the names of targets that are"),
    "blank": ("a.csv", [{"inputs": "b", "targets": " "}],
              "a.csv', line 2: the input or the target is empty"),
}


@pytest.mark.parametrize("name, rows, message", BAD.values(), ids=BAD)
def test_a_bad_row_is_named(name, rows, message, tmp_path):
  bind("pairs.train", str(write(tmp_path / name, rows)))
  with pytest.raises(ValueError, match=message):
    texts("synth_text_pairs")


@pytest.mark.parametrize("content, message", [
    ("inputs,targets\na,b\nc,d,e\n", "line 3: 3 columns, but the header has 2"),
    ("inputs,targets\na,\"b\n", "line 2: this is not CSV .unexpected end of data"),
    ("inputs,targets,inputs\na,b,c\n", "line 1: there are two columns 'inputs'"),
    ("inputs,targets\n\n", "a.csv' holds no text"),
    ("", "a.csv' holds no text"),
])
def test_bad_csv_is_named_with_its_line(content, message, tmp_path):
  (tmp_path / "a.csv").write_text(content)
  bind("pairs.train", str(tmp_path / "a.csv"))
  with pytest.raises(ValueError, match=message):
    texts("synth_text_pairs")


def test_a_file_that_is_not_parquet_is_named(tmp_path):
  (tmp_path / "a.parquet").write_text("inputs\ttargets\n")
  bind("pairs.train", str(tmp_path / "a.parquet"))
  with pytest.raises(ValueError, match="a.parquet' is not a whole Parquet file"):
    texts("synth_text_pairs")


@pytest.mark.parametrize("keys, message", [
    ("text", "pairs.keys` is 'text' but must be a dict"),
    ({"input": "a"}, "pairs.keys` is {'input': 'a'} but must be a dict"),
    ({"inputs": 3}, r"pairs.keys`\['inputs'\] is 3 but must be the key"),
    ({"inputs": "a {b"}, "is 'a {b', which is no template"),
    ({"inputs": "a {}"}, "a brace needs a key"),
    ({"inputs": "{{a}}"}, "it names no key"),
])
def test_wrong_keys_are_named(keys, message, tmp_path):
  bind("pairs.train", str(write(tmp_path / "a.jsonl")))
  bind("pairs.keys", keys)
  with pytest.raises(ValueError, match=message):
    texts("synth_text_pairs")


def test_a_number_without_a_name_is_named_with_its_row(tmp_path):
  rows = [*ROWS, {**ROWS[0], "label": 2}]
  bind("pairs.train", str(write(tmp_path / "a.parquet", rows)))
  bind("pairs.keys", {"inputs": "premise", "targets": "label"})
  bind("pairs.classes", CLASSES)
  with pytest.raises(ValueError, match="row 3: the target is the number 2, but"):
    texts("synth_text_pairs")


def test_caches_remember_the_keys():
  source = seqio.TaskRegistry.get("synth_text_pairs").source
  assert not source.made_with()
  bind("pairs.keys", {"inputs": TEMPLATE})
  assert source.made_with() == {"keys of the pairs": {"inputs": TEMPLATE}}


def test_a_vocabulary_is_trained_on_the_same_rows(tmp_path):
  pairs = write(tmp_path / "a.parquet", [{"inputs": "one", "targets": "two"}])
  rows = write(tmp_path / "b.csv")
  found = train_vocabulary.read([str(pairs), str(rows)], "{premise}|{hypothesis}")
  assert list(found) == ["one", "two", "a, \"b\"\n\nc|ä", "d|{e}"]
  assert records.has_keys(str(rows), ["premise", "label"])
  assert not records.has_keys(str(rows), ["premise", "inputs"])
