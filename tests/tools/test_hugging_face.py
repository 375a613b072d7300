"""Models from Hugging Face's folders and back, against Transformers' Flax T5."""

import numpy as np
import pytest
from support import decoding
from support import hugging_face
from synthesizer_mtf.tools.hugging_face_bridge import importing

KINDS = {
    "T5 1.0": hugging_face.T5_1_0, "T5 1.1": hugging_face.T5_1_1,
    "gated and tied": {"feed_forward_proj": "gated-gelu"},
    "untied relu": {"tie_word_embeddings": False, "num_decoder_layers": 1}}

STEPS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory, sentencepiece_model):
  """Makes a folder of a kind, and what is imported from it; each once."""
  made = {}

  def make(kind):
    if kind not in made:
      root = tmp_path_factory.mktemp("bridge")
      theirs, ours = root / "theirs", root / "ours"
      hugging_face.write(theirs, sentencepiece_model, **KINDS[kind])
      importing.run(str(theirs), str(ours))
      made[kind] = theirs, ours
    return made[kind]

  return make


def assert_same_model(flax, mesh):
  """Logits, the encoder's output and greedy decoding are the same."""
  inputs, targets = hugging_face.examples()
  logits, encoded, decoded = mesh.logits(inputs, targets, decode=STEPS)
  expected, expected_encoded = flax.logits(inputs, targets)
  np.testing.assert_allclose(
      logits[targets > 0], expected[targets > 0], atol=1e-4)
  np.testing.assert_allclose(
      encoded[inputs > 0], expected_encoded[inputs > 0], atol=1e-4)
  assert abs(expected[targets > 0]).max() > 1
  # What is decoded greedily is, at each step, the best of what is decoded.
  rows = np.pad(decoded, ((0, 0), (0, targets.shape[1] - STEPS)))
  best = flax.logits(inputs, np.where(rows, rows, EOS_PAD))[0].argmax(-1)
  decoding.check_greedy(decoded, best)


# What stands after the end of a row, where nothing is looked at.
EOS_PAD = 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_computes_what_transformers_does(folders, kind):
  theirs, ours = folders(kind)
  assert_same_model(hugging_face.Flax(theirs), hugging_face.Mesh(ours))
