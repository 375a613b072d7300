"""Models from Hugging Face's folders and back, against Transformers' Flax T5."""

import json

import ml_dtypes
import numpy as np
import pytest
from support import decoding
from support import hugging_face
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools import hugging_face as command
from synthesizer_mtf.tools.hugging_face_bridge import importing
import transformers

KINDS = {
    "T5 1.0": hugging_face.T5_1_0, "T5 1.1": hugging_face.T5_1_1,
    "gated and tied": {"feed_forward_proj": "gated-gelu", "vocab_size": 610},
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


def run(*words):
  command.main([str(word) for word in words])


def assert_same_model(flax, mesh):
  """Logits, the encoder's output and greedy decoding are the same."""
  inputs, targets = hugging_face.examples()
  logits, encoded, decoded = mesh.logits(inputs, targets, decode=STEPS)
  expected, expected_encoded = flax.logits(inputs, targets)
  assert abs(expected[targets > 0]).max() > 1
  np.testing.assert_allclose(
      logits[targets > 0], expected[targets > 0], atol=1e-4)
  np.testing.assert_allclose(
      encoded[inputs > 0], expected_encoded[inputs > 0], atol=1e-4)
  # What is decoded greedily is, at each step, the best after what came before;
  # any id will do for what comes after.
  rows = np.ones_like(targets)
  rows[:, :STEPS] = np.maximum(decoded, 1)
  decoding.check_greedy(decoded, flax.logits(inputs, rows)[0].argmax(-1))
  return decoded


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_computes_what_transformers_does(folders, kind):
  theirs, ours = folders(kind)
  assert_same_model(hugging_face.Flax(theirs), hugging_face.Mesh(ours))


def test_an_exported_v_model_computes_the_same_in_transformers(folders, tmp_path):
  _, imported = folders("T5 1.1")
  hugging_face.with_our_attention(
      imported, tmp_path / "ours", "synthesizer_stack.attention = 'V'")
  run("export", tmp_path / "ours", f"--output={tmp_path}/theirs")
  flax = hugging_face.Flax(tmp_path / "theirs")
  decoded = assert_same_model(flax, hugging_face.Mesh(tmp_path / "ours"))
  inputs, _ = hugging_face.examples()
  # One row at a time, without padding, by Transformers' own search.
  expected = flax.generate(inputs[1:, :9], STEPS)
  assert decoding.until_eos(decoded[1:]) == decoding.until_eos(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_import_after_export_gives_the_same_files(folders, kind, tmp_path):
  _, ours = folders(kind)
  run("export", ours, f"--output={tmp_path}/theirs")
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again")
  for path in ours.glob("model.ckpt-0.*"):
    assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
  gin = (tmp_path / "again" / "stock_t5.gin").read_text()
  assert gin == (ours / "stock_t5.gin").read_text()


def test_bfloat16_survives_both_ways(folders, tmp_path):
  _, ours = folders("T5 1.0")
  run("export", ours, "--dtype=bfloat16", f"--output={tmp_path}/theirs")
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again")
  exact, rounded = map(hugging_face.variables, (ours, tmp_path / "again"))
  del exact["global_step"]
  for name, value in exact.items():
    assert rounded[name].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        rounded[name], value.astype(ml_dtypes.bfloat16))
  gin = (tmp_path / "again" / "operative_config.gin").read_text()
  assert "master_dtype = 'bfloat16'" in gin


def test_float16_and_mixed_dtypes_become_float32(tmp_path, sentencepiece_model):
  tensors = hugging_face.write(tmp_path / "theirs", sentencepiece_model,
                               dtype=np.float16)
  name = "encoder.final_layer_norm.weight"
  tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)
  hugging_face.save(tmp_path / "theirs", tensors)
  importing.run(str(tmp_path / "theirs"), str(tmp_path / "ours"))
  found = hugging_face.variables(tmp_path / "ours")
  for ours, theirs in (("shared/embedding", "shared.weight"),
                       ("encoder/rms_norm/scale", name)):
    assert found[ours].dtype == np.float32
    np.testing.assert_array_equal(found[ours], tensors[theirs].astype(np.float32))


def test_a_mixture_annealed_to_v_is_exported(folders, tmp_path):
  theirs, imported = folders("T5 1.0")
  hugging_face.with_our_attention(
      imported, tmp_path / "ours", "synthesizer_stack.attention = 'R+V'",
      "Mixture.final_weights = {'V': 1.0}", "Mixture.annealing_steps = (2, 20)",
      "RandomLogits.max_length = 4", step=20,
      R=np.ones([3, 4, 4], np.float32), alpha=np.ones([3, 2], np.float32))
  run("export", tmp_path / "ours", f"--output={tmp_path}/theirs")
  expected = hugging_face.load(theirs)
  found = hugging_face.load(tmp_path / "theirs")
  assert set(found) == set(expected)
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)
  with pytest.raises(SystemExit) as error:
    run("export", tmp_path / "ours", f"--output={tmp_path}/more",
        "--gin_param=Mixture.annealing_steps = (2, 21)")
  assert ("only V can be exported, but the model holds R+V in the encoder's "
          "blocks 0, 1; R+V in the decoder's blocks 0, 1" in str(error.value))


def test_shards_are_one_model(folders, tmp_path, sentencepiece_model):
  theirs, ours = folders("T5 1.1")
  shard(theirs, tmp_path / "shards")
  run("import", tmp_path / "shards", f"--output={tmp_path}/again")
  for path in ours.glob("model.ckpt-0.*"):
    assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def shard(theirs, folder):
  """Copies a folder; the weights lie in two shards with an index."""
  folder.mkdir()
  for name in ("config.json", "spiece.model"):
    (folder / name).write_bytes((theirs / name).read_bytes())
  tensors = hugging_face.load(theirs)
  places = {}
  for i in range(2):
    file = f"model-0000{i + 1}-of-00002.safetensors"
    part = dict(sorted(tensors.items())[i::2])
    hugging_face.save(folder, part, file)
    places.update(dict.fromkeys(part, file))
  (folder / "model.safetensors.index.json").write_text(
      json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))


def test_an_encoder_alone_becomes_one_for_classifiers(
    tmp_path, sentencepiece_model):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  tensors = hugging_face.write(theirs, sentencepiece_model,
                               is_encoder_decoder=False, vocab_size=610)
  importing.run(str(theirs), str(ours))
  inputs, _ = hugging_face.examples()
  mesh = hugging_face.Mesh(ours, targets_vocabulary=4)
  np.testing.assert_allclose(
      mesh.encode(inputs)[inputs > 0],
      hugging_face.Flax(theirs).encode(inputs)[inputs > 0], atol=1e-4)
  run("export", ours, f"--output={tmp_path}/again")
  assert not (tmp_path / "again" / "generation_config.json").exists()
  again = hugging_face.load(tmp_path / "again")
  assert set(again) == set(tensors)
  for name, value in tensors.items():
    np.testing.assert_array_equal(again[name], value)


def test_a_trained_classifier_is_exported_without_its_last_layer(
    tmp_path, sentencepiece_model):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  hugging_face.write(theirs, sentencepiece_model, is_encoder_decoder=False)
  importing.run(str(theirs), str(ours))
  hugging_face.save_variables(ours, 0, {
      **hugging_face.variables(ours),
      "classifier/kernel": np.ones([8, 128], np.float32)})
  with pytest.raises(SystemExit, match="'classifier/kernel'; leave them out"):
    run("export", ours, f"--output={tmp_path}/again")
  run("export", ours, "--leave_out=^classifier/", f"--output={tmp_path}/again")
  assert hugging_face.load(tmp_path / "again").keys() == (
      hugging_face.load(theirs).keys())


def test_the_tokenizer_of_an_exported_folder_gives_our_ids(
    folders, tmp_path, sentencepiece_model, monkeypatch):
  _, ours = folders("T5 1.0")
  run("export", ours, f"--output={tmp_path}/theirs")
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
  text = "The statement  is executed, naïve or not."
  assert tokens(text).input_ids == [*vocabulary.TaskVocabulary().encode(text), 1]
  assert tokens.convert_tokens_to_ids("<extra_id_0>") == 599
