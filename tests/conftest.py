"""What several tests share."""

import pydoc_data.topics

import gin
import pytest
import sentencepiece
import synthesizer_mtf  # first: it makes mesh_tensorflow importable


@pytest.fixture
def clean_gin():
  """No configuration of other tests, and none left to them."""
  gin.clear_config()
  yield
  gin.clear_config()


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
