"""Tests of the command that trains a vocabulary."""

import gzip
import json
import pydoc_data.topics

import pytest
import sentencepiece
from support.task_files import bind
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools import train_vocabulary
from synthesizer_mtf.tools.base import vocabularies

pytestmark = pytest.mark.usefixtures("clean_tasks")


@pytest.fixture
def text(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text(pydoc_data.topics.topics["naming"])
  return path


def train(tmp_path, **flags):
  """Runs the command in this process; returns the path of its model."""
  values = {"output": tmp_path / "spm.model", "vocab_size": 200, **flags}
  train_vocabulary.main(["--quiet"] + [
      f"--{name}={value}" for name, value in values.items()])
  return values["output"]


def loaded(path):
  return sentencepiece.SentencePieceProcessor(model_file=str(path))


def failure(tmp_path, **flags):
  """Returns the one sentence with which the command ends."""
  with pytest.raises(SystemExit) as exit_info:
    train(tmp_path, **flags)
  message = exit_info.value.code
  assert message.startswith("train_vocabulary: ") and "\n" not in message
  return message


def test_the_command_writes_a_model_that_the_tasks_take(text, tmp_path, capsys):
  with gzip.open(tmp_path / "a.tsv.gz", "wt") as f:
    f.write("ß ß ß\tæ æ æ\n\n")
  (tmp_path / "a.jsonl").write_text(
      json.dumps({"inputs": "ø ø ø", "targets": "é é é"}))
  output = tmp_path / "new" / "spm.model"
  train_vocabulary.main([
      "--input", str(text), str(tmp_path / "a.*"), f"--output={output}",
      "--vocab_size=300", "--character_coverage=1"])
  said = capsys.readouterr()
  assert "in 3 files" in said.err and "Reading" in said.err
  assert said.out.strip().splitlines()[-1] == f"{vocabulary.PARAMETER} = '{output}'"
  bind("vocabulary.sentencepiece_model", str(output))
  chosen = vocabulary.TaskVocabulary()
  assert chosen.vocab_size == 300 + 100
  for word in ("namespace", "ß", "æ", "ø", "é"):
    assert chosen.decode(chosen.encode(word)) == word


def test_model_is_the_same_each_time(text, tmp_path):
  first = train(tmp_path, input=text).read_bytes()
  second = train(tmp_path, input=text, output=tmp_path / "b.model")
  assert second.read_bytes() == first


def test_every_model_type_has_t5s_ids(text, tmp_path):
  for model_type in vocabularies.MODEL_TYPES:
    path = train(tmp_path, input=text, model_type=model_type, vocab_size=70,
                 character_coverage=0.98, output=tmp_path / model_type)
    model = loaded(path)
    assert (model.pad_id(), model.eos_id(), model.unk_id(), model.bos_id()) == (
        0, 1, 2, -1), model_type


def test_text_of_long_lines_is_used_whole():
  """SentencePiece alone leaves out lines of more than 4192 bytes."""
  lines = [("x" * 99 + " ") * 60 + "rareword " * 9, "ü" * 5000]
  model = sentencepiece.SentencePieceProcessor(
      model_proto=vocabularies.train(lines, 16, character_coverage=1.))
  ids = model.encode("rareword ü")
  assert model.unk_id() not in ids


def test_existing_file_is_kept_unless_told(text, tmp_path):
  output = tmp_path / "spm.model"
  output.write_bytes(b"mine")
  assert "exists already" in failure(tmp_path, input=text)
  assert output.read_bytes() == b"mine"
  train_vocabulary.main(["--overwrite", "--quiet", "--vocab_size=200",
                         f"--input={text}", f"--output={output}"])
  assert len(output.read_bytes()) > 1000


@pytest.mark.parametrize("flags, message", [
    ({"character_coverage": 0.5}, "--character_coverage is 0.5; give 0.98"),
    ({"vocab_size": 2}, "--vocab_size is 2; give 4 or more"),
    ({"sample_lines": 7}, "--sample_lines is 7; give 101 or"),
    ({"output": "/"}, "--output is '/', a folder"),
    ({"vocab_size": 20},
     "--vocab_size is 20, but the characters of this text alone take"),
])
def test_bad_flags_are_named(flags, message, text, tmp_path):
  assert message in failure(tmp_path, **{"input": text, **flags})


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"a few words\n",
     "--vocab_size is 200, but this text yields no more than"),
    ("a.tsv", b"one\n", "a.tsv', line 1: 1 columns"),
    ("a.jsonl", b'{"body": "one"}\n', "--text_key is 'text'; change it"),
    ("a.jsonl", b'{"inputs": "a", "targets": "b"}\n{"text": "c"}', "line 2: an ob"),
])
def test_bad_input_is_named(name, content, message, tmp_path):
  (tmp_path / name).write_bytes(content)
  assert message in failure(tmp_path, input=tmp_path / name)
  assert not (tmp_path / "spm.model").exists()


@pytest.mark.parametrize("rows, flags", [
    ([{"text": "spam", "url": "q"}, {"text": "ham", "url": "q"}], {}),
    ([{"body": "spam", "text": "q"}, {"body": "ham", "text": "q"}],
     {"text_key": "body"}),
    ([{"inputs": "spam", "targets": "ham", "text": "q"}], {}),
])
def test_json_lines_give_their_text_and_not_their_markup(rows, flags, tmp_path):
  with gzip.open(tmp_path / "a.jsonl.gz", "wt") as f:
    f.writelines(json.dumps(row) + "\n" for row in rows)
  path = train(tmp_path, input=tmp_path / "a.jsonl.gz", vocab_size=9,
               model_type="char", character_coverage=1, **flags)
  model = loaded(path)
  pieces = {model.id_to_piece(i) for i in range(3, model.vocab_size())}
  assert pieces == {"\u2581", *"spamh"}


def test_error_while_reading_is_not_taken_for_the_end_of_the_text():
  def lines():
    yield "some words " * 50
    raise OSError("the disk is gone")
  with pytest.raises(OSError, match="the disk is gone"):
    vocabularies.train(lines(), 10, character_coverage=1.)


def test_sample_of_lines_trains(text, tmp_path):
  path = train(tmp_path, input=text, sample_lines=101, vocab_size=60,
               character_coverage=0.98)
  assert loaded(path).vocab_size() == 60
