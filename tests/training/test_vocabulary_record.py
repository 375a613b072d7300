"""A folder records its vocabulary; another one of the same size is refused."""

import json
import logging
import pathlib
import types

from mesh_tensorflow.transformer import utils
import pytest
import seqio
from support import models
from synthesizer_mtf import checks
from synthesizer_mtf.tasks import vocabulary as vocabulary_lib
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import vocabulary_record
from t5.models import MtfModel

TASK = "synth_text_pairs"


@pytest.fixture(name="other")
def fixture_other(sentencepiece_model, tmp_path):
  """A vocabulary of the same size whose file has other bytes."""
  path = tmp_path / "other.model"
  content = pathlib.Path(sentencepiece_model).read_bytes()
  path.write_bytes(content.replace("\u2581the".encode(), "\u2581eht".encode()))
  assert path.read_bytes() != content
  return str(path)


@pytest.fixture(name="make")
def fixture_make(tmp_path, monkeypatch, sentencepiece_model):
  """A function that makes a tiny `MtfModel` in a subfolder; its data."""
  pairs = tmp_path / "pairs.tsv"
  pairs.write_text("the one\teno\nthe two\towt\n")
  for split in ("TRAIN", "VALIDATION"):
    monkeypatch.setenv(f"SYNTHESIZER_MTF_PAIRS_{split}", str(pairs))
  monkeypatch.setenv(vocabulary_lib.VARIABLE, sentencepiece_model)
  models.parse_gin(["models/bi_v1.gin"], [*models.TINY, "num_layers = 1"])
  return lambda name: MtfModel(
      model_dir=str(tmp_path / name), tpu=None, batch_size=2, mesh_shape="batch:1",
      mesh_devices=["cpu:0"], sequence_length={"inputs": 8, "targets": 8},
      iterations_per_loop=1, learning_rate_schedule=0.001)


@pytest.mark.slow
def test_a_trained_model_is_compared_wherever_it_is_used(
    make, other, sentencepiece_model, tmp_path, monkeypatch, caplog):
  model = make("model")
  model.train(TASK, 1)
  record = json.loads((tmp_path / "model/vocabulary.json").read_text())
  assert record["inputs"] == record["targets"]
  assert record["inputs"]["path"] == sentencepiece_model
  lines = tmp_path / "lines"
  lines.write_text("the one\n")
  uses = [
      lambda: model.train(TASK, 2), lambda: model.eval(TASK, -1),
      lambda: model.predict(str(lines), str(lines), vocabulary=ours),
      lambda: model.score(["one"], ["eno"], vocabulary=ours),
      lambda: model.export(str(tmp_path), vocabulary=ours)]
  ours = vocabulary_lib.TaskVocabulary()
  monkeypatch.setenv(vocabulary_lib.VARIABLE, other)
  for use in uses:
    with pytest.raises(checks.Error, match="was trained with another vocabulary of "
                       f"inputs: '{sentencepiece_model}' .*, and now it is '{other}' "
                       ".*; give it the vocabulary .* remove .*vocabulary.json"):
      use()
  assert complete.find(str(tmp_path / "model"))[-1].endswith("-1")
  monkeypatch.setattr(utils, "train_model", lambda *args, **kwargs: None)
  make("tuned").finetune(TASK, 1, str(tmp_path / "model"))
  assert "its embeddings stand for other pieces" in caplog.text


def described(*paths):
  vocabularies = map(seqio.SentencePieceVocabulary, paths)
  return vocabulary_record.describe(tuple(vocabularies))


def trained(folder, record):
  vocabulary_record.write(str(folder), record)
  (folder / "model.ckpt-1.index").write_text("")


def test_only_what_the_ids_stand_for_counts(
    sentencepiece_model, other, tmp_path, monkeypatch):
  copy = tmp_path / "copy.model"
  copy.write_bytes(pathlib.Path(sentencepiece_model).read_bytes())
  folder = tmp_path / "model"
  folder.mkdir()
  trained(folder, described(sentencepiece_model, sentencepiece_model))
  vocabulary_record.check(str(folder), described(str(copy), str(copy)))
  monkeypatch.setenv(vocabulary_lib.VARIABLE, str(copy))
  ours = vocabulary_lib.TaskVocabulary()
  vocabulary_record.check(str(folder), vocabulary_record.describe(ours))
  vocabulary_record.check(
      str(folder), vocabulary_record.describe(
          seqio.SentencePieceVocabulary(str(copy), extra_ids=100)))
  unknown = types.SimpleNamespace(vocab_size=3)
  vocabulary_record.check(str(folder), vocabulary_record.describe((ours, unknown)))
  with pytest.raises(checks.Error, match="another vocabulary of targets"):
    vocabulary_record.check(str(folder), described(str(copy), other))
  with pytest.raises(checks.Error, match="and now it is bytes; give"):
    vocabulary_record.check(
        str(folder), vocabulary_record.describe((seqio.ByteVocabulary(), unknown)))
  vocabulary_record.write(str(folder), vocabulary_record.describe((ours, unknown)))
  with pytest.raises(checks.Error, match="another vocabulary of targets"):
    vocabulary_record.check(str(folder), described(str(copy), other))


def test_bytes_are_bytes_in_our_tasks_and_in_seqio(monkeypatch):
  monkeypatch.setenv(vocabulary_lib.VARIABLE, vocabulary_lib.BYTES)
  for vocabulary in vocabulary_lib.TaskVocabulary(), seqio.ByteVocabulary(extra_ids=3):
    assert vocabulary_record.describe(vocabulary)["inputs"]["sha256"] == "bytes"


def test_folders_without_a_record_or_a_checkpoint_are_not_compared(
    sentencepiece_model, other, tmp_path):
  ours, others = (described(path, path) for path in (sentencepiece_model, other))
  folder = str(tmp_path)
  vocabulary_record.check(str(tmp_path / "new"), others)
  vocabulary_record.write(folder, ours)
  vocabulary_record.check(folder, others)
  (tmp_path / "vocabulary.json").write_text("{")
  (tmp_path / "model.ckpt-1.index").write_text("")
  with pytest.raises(checks.Error, match="vocabulary.json' cannot be read .*; bring"):
    vocabulary_record.check(folder, ours)
  (tmp_path / "vocabulary.json").unlink()
  vocabulary_record.check(folder, others)


def test_a_warm_start_from_another_vocabulary_is_told(
    sentencepiece_model, other, tmp_path, caplog):
  ours = described(sentencepiece_model, sentencepiece_model)
  trained(tmp_path, ours)
  for checkpoint in (tmp_path, tmp_path / "model.ckpt-1"):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      vocabulary_record.warn_if_other(str(checkpoint), ours)
      assert not caplog.text
      vocabulary_record.warn_if_other(str(checkpoint), described(other, other))
    assert "trained with another vocabulary of inputs" in caplog.text
