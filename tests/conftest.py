"""What several tests share."""

import pydoc_data.topics

import synthesizer_mtf  # first: it makes mesh_tensorflow importable

import gin
import prepared
import pytest
import sentencepiece
import seqio


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory):
  """Path of a SentencePiece model of 500 pieces, made from Python's manual."""
  lines = "\n".join(pydoc_data.topics.topics.values()).splitlines()
  prefix = tmp_path_factory.mktemp("vocabulary") / "spm"
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(lines[:2000]), model_prefix=str(prefix),
      vocab_size=500, model_type="bpe", character_coverage=1.0, pad_id=0,
      eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
  return f"{prefix}.model"


@pytest.fixture(scope="session")
def tfds_data_dir(tmp_path_factory):
  """A TFDS directory with a few rows of every data set, which tasks read."""
  folder = str(tmp_path_factory.mktemp("tfds"))
  prepared.write_all(folder)
  seqio.set_tfds_data_dir_override(folder)
  yield folder
  seqio.set_tfds_data_dir_override(None)


@pytest.fixture
def tasks_to_read(tfds_data_dir, sentencepiece_model, monkeypatch):
  """Lets a test read tasks; gives the TFDS directory."""
  gin.clear_config()
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  return tfds_data_dir
