"""What several tests share."""

import os
import pydoc_data.topics

import gin
import pytest
import synthesizer_mtf  # first: it makes mesh_tensorflow importable
from synthesizer_mtf.tools import train_vocabulary


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
  path = tmp_path_factory.mktemp("vocabulary") / "spm.model"
  path.write_bytes(train_vocabulary.train(
      lines[:2000], 500, model_type="bpe", character_coverage=1.))
  return str(path)


@pytest.fixture
def clean_tasks(monkeypatch):
  """Starts without bindings and without the variables of our tasks."""
  for name in [n for n in os.environ if n.startswith("SYNTHESIZER_MTF_")]:
    monkeypatch.delenv(name)
  gin.clear_config()
  yield
  gin.clear_config()
