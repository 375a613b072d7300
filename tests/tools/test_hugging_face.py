"""Models from Hugging Face's folders and back, against Transformers' Flax T5."""

import json
import re
import resource
import shutil
import sys

import gin
import ml_dtypes
import numpy as np
import pytest
from support import decoding
from support import hugging_face
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.hugging_face import __main__ as command
from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import attention
from synthesizer_mtf.tools.hugging_face import importing
from synthesizer_mtf.tools.hugging_face import tokenizers
from synthesizer_mtf.tools.hugging_face import trained
import transformers

KINDS = {
    "T5 1.0": hugging_face.T5_1_0,
    "T5 1.1": {**hugging_face.T5_1_1, "num_decoder_layers": 1, "vocab_size": 768},
    "gated and tied": {"feed_forward_proj": "gated-gelu", "vocab_size": 610},
    "untied relu": {"tie_word_embeddings": False}}

STEPS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory, sentencepiece_model):
  """Makes a folder of a kind, and the folder imported from it, once for each kind."""
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
  # Each greedy token is the best one after the tokens before it. The ids after the
  # decoded ones have no effect.
  rows = np.ones_like(targets)
  rows[:, :STEPS] = np.maximum(decoded, 1)
  decoding.check_greedy(decoded, flax.logits(inputs, rows)[0].argmax(-1))
  return decoded


def assert_same_checkpoint(folder, other):
  for path in folder.glob("model.ckpt-0.*"):
    assert (other / path.name).read_bytes() == path.read_bytes()


def assert_same_tensors(expected, tensors):
  assert tensors.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(tensors[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("kind, gin", [
    ("T5 1.0", "stock_t5.gin"), ("T5 1.1", "operative_config.gin")])
def test_an_imported_model_computes_what_transformers_does(folders, kind, gin):
  theirs, ours = folders(kind)
  flax = hugging_face.Flax(theirs)
  decoded = assert_same_model(flax, hugging_face.Mesh(ours, gin=gin))
  inputs, _ = hugging_face.examples()
  # One row at a time, without padding, by Transformers' own search.
  expected = flax.generate(inputs[1:, :9], STEPS)
  assert decoding.until_eos(decoded[1:]) == decoding.until_eos(expected)


@pytest.mark.parametrize("kind, attention", [
    *((kind, None) for kind in KINDS), ("T5 1.1", "V")])
def test_import_after_export_gives_the_same_files(folders, tmp_path, kind, attention):
  theirs, imported = folders(kind)
  ours = imported
  if attention:  # Ours computes the same.
    ours = tmp_path / "ours"
    hugging_face.with_our_attention(
        imported, ours, f"synthesizer_stack.attention = '{attention}'")
  run("export", ours, f"--output={tmp_path}/theirs")
  assert_same_tensors(
      hugging_face.load(theirs), hugging_face.load(tmp_path / "theirs"))
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again")
  assert_same_checkpoint(imported, tmp_path / "again")
  assert (tmp_path / "again" / "stock_t5.gin").read_text() == (
      imported / "stock_t5.gin").read_text()


@pytest.mark.parametrize("bindings", [
    [], ["LayerStack.dropout_rate = 0.1", "LayerStack.norm_epsilon = 1e-6"]])
def test_a_model_with_the_norms_of_t5_1_0_is_exported(folders, bindings, tmp_path):
  _, ours = folders("T5 1.0")
  run("export", ours, f"--output={tmp_path}/expected")
  old = tmp_path / "old"
  shutil.copytree(ours, old)
  with open(old / "operative_config.gin", "a") as f:
    f.write("\n".join([*bindings, ""]))
  checkpoint_writer.write(str(old), "model.ckpt-0", (
      (re.sub("/rms_norm/", "/layer_norm/" if "layer_0" in name else
              "/final_layer_norm/", name), value)
      for name, value in hugging_face.variables(ours).items()))
  run("export", old, f"--output={tmp_path}/found")
  assert (tmp_path / "found" / "model.safetensors").read_bytes() == (
      tmp_path / "expected" / "model.safetensors").read_bytes()


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
  variables = hugging_face.variables(tmp_path / "ours")
  for ours, theirs in (("shared/embedding", "shared.weight"),
                       ("encoder/rms_norm/scale", name)):
    assert variables[ours].dtype == np.float32
    np.testing.assert_array_equal(variables[ours], tensors[theirs].astype(np.float32))


def test_a_mixture_annealed_to_v_is_exported(folders, tmp_path):
  theirs, imported = folders("T5 1.0")
  hugging_face.with_our_attention(
      imported, tmp_path / "ours", "synthesizer_stack.attention = 'R+V'",
      "Mixture.final_weights = {'V': 1.0}", "Mixture.annealing_steps = (2, 20)",
      "RandomLogits.max_length = 4", step=20,
      R=np.ones([3, 4, 4], np.float32), alpha=np.ones([3, 2], np.float32))
  run("export", tmp_path / "ours", f"--output={tmp_path}/theirs")
  assert_same_tensors(
      hugging_face.load(theirs), hugging_face.load(tmp_path / "theirs"))
  # Before the last step, a part of the learned weights, which are equal, is left.
  run("export", tmp_path / "ours", f"--output={tmp_path}/more",
      "--gin_param=Mixture.annealing_steps = (0, 25)")
  alpha = hugging_face.load(tmp_path / "more")[
      "encoder.block.1.layer.0.SelfAttention.alpha"]
  np.testing.assert_allclose(np.exp(alpha) / np.exp(alpha).sum(-1, keepdims=True),
                             np.tile([0.1, 0.9], (3, 1)), rtol=1e-5)


def test_a_mixture_with_a_part_annealed_to_0_is_exported(folders, tmp_path):
  R = np.arange(48, dtype=np.float32).reshape(3, 4, 4)
  hugging_face.with_our_attention(
      folders("T5 1.0")[1], tmp_path / "ours",
      "synthesizer_stack.attention = 'R+R+V'", "RandomLogits.max_length = 4",
      "Mixture.final_weights = [0.0, 0.4, 0.6]", "Mixture.annealing_steps = (2, 20)",
      step=20, alpha=np.ones([3, 3], np.float32), **{"part_0/R": -R, "part_1/R": R})
  run("export", tmp_path / "ours", f"--output={tmp_path}/theirs")
  theirs = hugging_face.load(tmp_path / "theirs")
  place = "decoder.block.1.layer.0.SelfAttention."
  np.testing.assert_array_equal(theirs[f"{place}synthesizers.0.R"], R)
  np.testing.assert_allclose(np.exp(theirs[f"{place}alpha"] - 1),
                             np.tile([0.4, 0.6], (3, 1)), rtol=1e-5)
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again")
  np.testing.assert_array_equal(hugging_face.variables(tmp_path / "again")[
      "decoder/block_001/layer_000/SyntheticAttention/R"], R)


@pytest.mark.parametrize("notation, share_query, final, kept", [
    ("R+R+V", False, [0.4, 0.0, 0.6], {"0.R": "part_0/R", "1.q.weight": "q"}),
    ("V+V+R", False, [0.4, 0.0, 0.6], {"0.q.weight": "part_0/q", "1.R": "R"}),
    ("V+V+R", False, [0.0, 1.0, 0.0], {"0.k.weight": "part_1/k"}),
    ("D+V+FD", False, [0, 0.5, 0.5], {"0.q.weight": "q", "1.W1.weight": "part_2/W1"}),
    ("FD+V+V", False, [0, 0.5, 0.5], {"0.q.weight": "part_1/q",
                                      "1.k.weight": "part_2/k"}),
    ("D+V", True, [0.0, 1.0], {"0.k.weight": "k", "0.q.weight": "q"})])
def test_parts_of_final_weight_0_leave_the_names_of_the_others(
    notation, share_query, final, kept):
  described = [{"name": name, **attention.DEFAULTS[name]}
               for name in notation.split("+")]
  described[0]["share_query"] = share_query
  left = tuple(i for i, weight in enumerate(final) if weight)
  layer = attention.Attention(
      "SyntheticAttention", {"synthesizers": [described[i] for i in left]}, 3, 5, 32,
      0.1, (final, 1.0), left, described)
  names = {weight.hugging_face.removeprefix("synthesizers."): weight.mesh
           for weight in attention.variables(layer, 8, True, False)}
  assert kept.items() <= names.items()
  assert ("alpha" in names) == (len(left) > 1) and "q.weight" not in names


def shard(folder):
  """Puts the weights of a folder into two shards with an index."""
  tensors, places = hugging_face.load(folder), {}
  for i in range(2):
    file = f"model-0000{i + 1}-of-00002.safetensors"
    part = dict(sorted(tensors.items())[i::2])
    hugging_face.save(folder, part, file)
    places.update(dict.fromkeys(part, file))
  (folder / "model.safetensors").unlink()
  (folder / "model.safetensors.index.json").write_text(
      json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))


UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def copy_embedding(folder):
  """Adds copies of the embedding, and a weight that no model uses."""
  tensors = hugging_face.load(folder)
  for name in ("encoder.embed_tokens.weight", "lm_head.weight"):
    tensors[name] = tensors["shared.weight"].copy()
  hugging_face.save(folder, {**tensors, UNUSED: np.ones([32, 3], np.float32)})


def edited(**changes):
  return lambda folder: hugging_face.edit(folder, **changes)


@pytest.mark.parametrize("kind, change, notes", [
    ("T5 1.1", shard, []),
    ("T5 1.1", edited(tie_word_embeddings=True, scale_decoder_outputs=False,
                      dtype="float32", num_experts=4), []),  # As Transformers 5 writes.
    ("T5 1.0", copy_embedding, [f"{UNUSED} is left out: no model has it."])])
def test_shards_copies_and_keys_without_effect_make_the_same_model(
    folders, tmp_path, kind, change, notes):
  theirs, ours = folders(kind)
  shutil.copytree(theirs, tmp_path / "theirs")
  change(tmp_path / "theirs")
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again",
      "--ignore=num_experts")
  assert_same_checkpoint(ours, tmp_path / "again")
  origin = json.loads((tmp_path / "again" / "hugging_face.json").read_text())
  assert origin["notes"] == notes


@pytest.mark.slow
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
  assert_same_tensors(tensors, hugging_face.load(tmp_path / "again"))


def test_a_trained_classifier_is_exported_with_and_without_its_last_layer(
    tmp_path, sentencepiece_model):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  hugging_face.write(theirs, sentencepiece_model, is_encoder_decoder=False)
  importing.run(str(theirs), str(ours))
  kernel = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
  hugging_face.save_variables(ours, 0, {
      **hugging_face.variables(ours), "classifier/kernel": kernel})
  with pytest.raises(SystemExit, match="names no task whose targets are classes; name "
                                       "it .* or leave the classifier out"):
    run("export", ours, f"--output={tmp_path}/again")
  run("export", ours, "--leave_out=^classifier/", f"--output={tmp_path}/again")
  assert hugging_face.load(tmp_path / "again").keys() == (
      hugging_face.load(theirs).keys())
  run("export", ours, f"--output={tmp_path}/whole", "--gin_param=get_vocabulary."
      "mixture_or_task_name = 'synth_imdb_reviews_encoder'")
  np.testing.assert_array_equal(
      hugging_face.load(tmp_path / "whole")["classifier.weight"], kernel.T)
  config = json.loads((tmp_path / "whole" / "config.json").read_text())
  assert config["id2label"] == {"0": "neg", "1": "pos"}
  assert config["auto_map"]["AutoModelForSequenceClassification"] == (
      "modeling_synthesizer.SynthesizerForSequenceClassification")
  run("import", tmp_path / "whole", f"--output={tmp_path}/back")
  assert_same_variables(tmp_path / "back", ours)


# Every notation, in PyTorch. tests/pytorch/ compares what the models compute.

# Each part of the notation, in blocks whose parts differ in their parameters, too.
MANY = """
encoder/synthesizer_stack.attention = ["R+D+V", "T+FD", "Pattern+Fix", "FR", "V+V",
                                       @encoder/short/SyntheticAttention]
encoder/make_layer_stack.num_layers = 6
encoder/short/SyntheticAttention.synthesizers = [
    @encoder/short/RandomLogits(), @encoder/shorter/RandomLogits()]
encoder/short/RandomLogits.max_length = 5
encoder/shorter/RandomLogits.tile_length = 3
encoder/short/SyntheticAttention.softmax = False
decoder/synthesizer_stack.attention = ["D+V", @SelfAttention, "T"]
decoder/make_layer_stack.num_layers = 3
decoder/DenseLogits.share_query = True
decoder/DenseLogits.share_heads = True
decoder/SyntheticAttention.relative_attention_type = None
encoder/DenseLogits.use_bias = True
RandomLogits.max_length = 7
FixedRandomLogits.max_length = 8
FactorizedRandomLogits.max_length = 9
ToeplitzLogits.max_length = 6
DenseLogits.max_length = 10
FactorizedDenseLogits.max_length = 12
Mixture.weights = 'per_layer'
"""


def with_random_variables(folder, *gin):
  """Replaces the variables of an imported model by those that gin lines need."""
  with open(folder / "operative_config.gin", "a") as f:
    f.write("\n".join([*gin, ""]))
  path = str(folder / "model.ckpt-0")
  gin_files.parse([str(folder / "operative_config.gin")])
  arch, blocks = trained.read(path, 0, lambda name: False)
  generator = np.random.RandomState(0)
  for old in folder.glob("*ckpt*"):
    old.unlink()
  hugging_face.save_variables(folder, 0, {"global_step": np.int64(0), **{
      weight.mesh: generator.randn(*weight.shape).astype(np.float32)
      for weight in architecture.weights(arch, blocks, is_t5=False)}})
  return arch, blocks


def assert_same_variables(folder, other):
  """Two checkpoints have the same values; names differ at most in SelfAttention's."""
  variables, expected = (
      {name.replace("/SelfAttention/", "/SyntheticAttention/"): value
       for name, value in hugging_face.variables(one).items()}
      for one in (folder, other))
  assert_same_tensors(expected, variables)


def test_every_notation_goes_to_pytorch_and_comes_back(folders, tmp_path):
  ours = tmp_path / "ours"
  shutil.copytree(folders("untied relu")[1], ours)
  arch, blocks = with_random_variables(ours, MANY)
  run("export", ours, f"--output={tmp_path}/theirs")
  theirs = hugging_face.load(tmp_path / "theirs")
  place = "encoder.block.0.layer.0.SelfAttention.synthesizers."
  assert theirs[f"{place}0.R"].shape == (3, 7, 7)
  assert theirs[f"{place}1.W1.weight"].shape == (15, 8)
  assert {path.name for path in (tmp_path / "theirs").iterdir()} == {
      "config.json", "generation_config.json", "model.safetensors", "README.md",
      "modeling_synthesizer.py", "configuration_synthesizer.py", "spiece.model",
      "tokenizer.json", "tokenizer_config.json"}
  run("import", tmp_path / "theirs", f"--output={tmp_path}/again")
  assert_same_variables(tmp_path / "again", ours)
  gin_files.parse([str(tmp_path / "again" / "operative_config.gin")])
  arch_again, blocks_again = trained.read(
      str(tmp_path / "again" / "model.ckpt-0"), 0, lambda name: False)
  described, described_again = (
      {place: (layer.description, layer.heads, layer.d_kv)
       for place, layer in layers.items()} for layers in (blocks, blocks_again))
  assert (arch_again, described_again) == (arch, described)


@pytest.mark.parametrize("attention, message", [
    ("'Linformer'", "block 0 of the encoder is Linformer, but only V, R, Fix, FR, T, "
     "D, FD, Pattern and their mixtures can be exported; export a SavedModel"),
    ("@TalkingHeadsSelfAttention", "block 0 of the encoder is Talk")])
def test_an_attention_that_pytorch_lacks_is_refused(
    folders, tmp_path, attention, message):
  with pytest.raises(SystemExit, match=message):
    run("export", folders("T5 1.0")[1], f"--output={tmp_path}/theirs",
        f"--gin_param=encoder/synthesizer_stack.attention = {attention}")
  assert not list(tmp_path.iterdir())


def test_the_tokenizer_of_an_exported_folder_gives_our_ids(
    folders, tmp_path, sentencepiece_model, monkeypatch, capsys):
  _, ours = folders("T5 1.0")
  run("export", ours, f"--output={tmp_path}/theirs")
  assert "Note: The vocabulary" not in capsys.readouterr().out
  monkeypatch.setenv("SYNTHESIZER_MTF_VOCAB", sentencepiece_model)
  tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
  assert_same_tokens(tokens, vocabulary.TaskVocabulary())
  assert tokens.convert_tokens_to_ids("<extra_id_0>") == 599


def assert_same_tokens(tokens, ours, texts=hugging_face.TEXTS):
  """A tokenizer of Hugging Face has the ids of a vocabulary of ours."""
  assert {text: tokens(text).input_ids for text in texts} == {
      text: [*map(int, ours.encode(text)), 1] for text in texts}


@pytest.fixture
def unigram(tmp_path):
  """A folder with a small SentencePiece model of T5's type, and an empty one."""
  for name in ("unigram", "exported", "copy"):
    (tmp_path / name).mkdir()
  hugging_face.vocabulary(tmp_path / "unigram", "unigram")
  return tmp_path / "unigram"


@pytest.mark.parametrize("extra_ids", [None, 103])
def test_the_exported_tokenizer_of_a_unigram_model_gives_our_ids(unigram, extra_ids):
  ours = vocabulary.load("it", str(unigram / "spiece.model"), extra_ids)
  theirs = unigram.with_name("exported")
  tokenizers.Tokenizer(
      ours.sentencepiece_model_file, ours.vocab_size, ours).export(theirs)
  tokens = transformers.AutoTokenizer.from_pretrained(theirs)
  assert_same_tokens(tokens, ours)
  assert len(tokens) == ours.vocab_size
  again = tokenizers.read(str(theirs), {})
  assert again.size == ours.vocab_size and not again.added
  assert again.pieces.sentinels == ours.sentinels


@pytest.mark.parametrize("extra_ids", [0, 50, 100, 150])
@pytest.mark.parametrize("special", [False, True])
def test_tokens_that_a_tokenizer_adds_keep_their_ids(unigram, extra_ids, special):
  theirs = transformers.T5Tokenizer(
      str(unigram / "spiece.model"), extra_ids=extra_ids, legacy=False)
  theirs.add_tokens(["<sep>", "[new word]"], special_tokens=special)
  theirs.save_pretrained(unigram)
  tokens_read = tokenizers.read(str(unigram), {})
  assert tokens_read.size == len(theirs) == 72 + extra_ids
  assert tokens_read.added == ("<sep>", "[new word]")
  copy, again = map(unigram.with_name, ("copy", "exported"))
  tokens_read.copy(copy)
  gin.parse_config(tokens_read.bindings(str(copy)))
  ours = vocabulary.chosen()
  assert ours.vocab_size == len(theirs)
  assert ours.sentinels == [
      theirs.convert_tokens_to_ids(f"<extra_id_{i}>") for i in range(extra_ids)]
  texts = ["the <sep> if", "the<sep>if", "<sep>  the<sep><sep>", "a [new word] <sep>"]
  assert_same_tokens(theirs, ours, texts)
  for text in texts:
    np.testing.assert_array_equal(ours.encode_tf(text), ours.encode(text))
  tokenizers.Tokenizer(
      tokens_read.path, ours.vocab_size, ours, tokens_read.model).export(again)
  tokens = transformers.AutoTokenizer.from_pretrained(again)
  assert_same_tokens(tokens, ours, [*texts, *hugging_face.TEXTS[:4]])


@pytest.mark.parametrize("file, content, message", [
    ("added_tokens.json", {"<sep>": 180}, "adds the tokens '<sep>' to its vocab.* are "
     "no new words with the ids after the 70 pieces of spiece.model, one by one; such"),
    ("added_tokens.json", {"if": 40}, "adds the tokens 'if' to"),
    ("special_tokens_map.json", {"additional_special_tokens": ["<sep>", "<a>"]},
     "names the tokens '<a>', '<sep>', but no file gives their ids; save its tok")])
def test_an_added_token_that_cannot_be_kept_is_refused(unigram, file, content, message):
  (unigram / file).write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message):
    tokenizers.read(str(unigram), {})


# The vocabularies


def mt5_model(path, spiece):
  """Writes a model that holds its sentinels as pieces, as mT5's does."""
  from sentencepiece import sentencepiece_model_pb2
  model = sentencepiece_model_pb2.ModelProto()
  with open(spiece, "rb") as f:
    model.ParseFromString(f.read())
  for i in reversed(range(100)):
    model.pieces.add(piece=f"▁<extra_id_{i}>", score=-100, type=4)
  path.write_bytes(model.SerializeToString())


def parse_vocabulary(folder):
  gin_files.parse([str(folder / "operative_config.gin")])
  return vocabulary.TaskVocabulary()


def test_mt5s_vocabulary_has_its_sentinels_already(
    tmp_path, sentencepiece_model):
  theirs = tmp_path / "theirs"
  hugging_face.write(theirs, **hugging_face.T5_1_1)
  hugging_face.edit(theirs, model_type="mt5", feed_forward_proj=None,
                    architectures=["MT5ForConditionalGeneration"])
  mt5_model(theirs / "spiece.model", sentencepiece_model)
  importing.run(str(theirs), str(tmp_path / "ours"))
  assert "decoder/logits/kernel" in hugging_face.variables(tmp_path / "ours")
  chosen = parse_vocabulary(tmp_path / "ours")
  assert chosen.vocab_size == 600
  assert chosen.decode([599]) == "<extra_id_0>"


def test_byt5_has_bytes_in_both_directions(tmp_path):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  hugging_face.write(theirs, vocab_size=384, **hugging_face.T5_1_1)
  hugging_face.edit(theirs, "tokenizer_config.json",
                    tokenizer_class="ByT5Tokenizer")
  importing.run(str(theirs), str(ours))
  chosen = parse_vocabulary(ours)
  assert chosen.vocab_size == 259
  run("export", ours, f"--output={tmp_path}/again")
  tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
  text = "naïve </s>"
  assert tokens(text).input_ids == [*chosen.encode(text), 1]
  assert tokens.decode(chosen.encode(text)) == chosen.decode(
      chosen.encode(text)) == text
  assert len(tokens) == 384


def test_a_copied_head_that_transformers_5_does_not_scale_becomes_a_weight(
    tmp_path, sentencepiece_model):
  theirs = tmp_path / "theirs"
  tensors = hugging_face.write(theirs, sentencepiece_model)
  hugging_face.edit(theirs, scale_decoder_outputs=False)
  note, = importing.run(str(theirs), str(tmp_path / "ours"))
  assert note.startswith("lm_head.weight is a copy of shared.weight")
  np.testing.assert_array_equal(
      hugging_face.variables(tmp_path / "ours")["decoder/logits/kernel"],
      tensors["shared.weight"].T)


# Mistakes


def with_tensors(change):
  """Changes the weights of a folder."""
  def harm(folder):
    tensors = hugging_face.load(folder)
    change(tensors)
    hugging_face.save(folder, tensors)

  return harm


def with_bytes(change):
  """Changes the bytes of the file of weights."""
  def harm(folder):
    path = folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))

  return harm


def without(name):
  return lambda folder: (folder / name).unlink()


def set_nan(tensors):
  tensors["encoder.block.1.layer.0.SelfAttention.q.weight"][3, 2] = np.nan


def lose_shard(folder):
  shard(folder)
  (folder / "model-00002-of-00002.safetensors").unlink()


def only_torch(folder):
  (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


HARMS = {
    "config.json": {
        "no config": (without("config.json"), "there is no config.json in"),
        "config that is not JSON": (
            lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        "another model": (edited(model_type="bert"), "model_type 'bert', but only"),
        "another architecture": (
            edited(architectures=["T5ForSequenceClassification"]),
            "of the architecture 'T5ForSequenceClassification', but only"),
        "unknown key": (edited(num_experts=4), "key 'num_experts' .4., which is not "
                        "known here.*--ignore=num_experts"),
        "another max_distance": (
            edited(relative_attention_max_distance=64),
            "relative_attention_max_distance 64, but Mesh TensorFlow's"),
        "another activation": (edited(feed_forward_proj="gelu"),
                               "feed_forward_proj 'gelu', but"),
        "activation that does not agree": (
            edited(feed_forward_proj="relu", dense_act_fn="tanh"),
            "dense_act_fn 'tanh', but feed_forward_proj 'relu' means 'relu'")},
    "weights": {
        "other sizes": (edited(d_ff=13), r"DenseReluDense.wi.weight' in the shape "
                        r"\[12, 8\], but config.json says \[13, 8\]"),
        "size that is none": (edited(d_kv="5"), "d_kv '5', but it must be a pos"),
        "more blocks": (edited(num_layers=3, num_decoder_layers=2),
                        "lacks 8 of the model's 55 tensors, such as 'encoder.block.2"),
        "fewer blocks": (edited(num_layers=1, num_decoder_layers=2),
                         "8 tensors that the model of config.json does not have, such "
                         "as 'encoder.block.1"),
        "another head": (
            with_tensors(lambda t: t.update({"lm_head.weight": -t["shared.weight"]})),
            "'lm_head.weight', which must equal 'shared.weight'"),
        "no head": (edited(tie_word_embeddings=False),
                    "lacks 1 of the model's 48 tensors, such as 'lm_head.weight'"),
        "NaN": (with_tensors(set_nan), "'encoder.block.1.layer.0.SelfAttention.q."
                "weight' with NaN or infinite values"),
        "whole numbers": (
            with_tensors(lambda t: t.update({"shared.weight": t[
                "shared.weight"].astype(np.int8)})),
            "'shared.weight' as I8, but only F16, BF16, F32"),
        "truncated weights": (with_bytes(lambda b: b[:-1]), "is damaged"),
        "truncated header": (with_bytes(lambda b: b[:100]), "is damaged"),
        "lying header": (with_bytes(lambda b: b.replace(b"[640,8]", b"[640,9]")),
                         "is damaged"),
        "no weights": (without("model.safetensors"), "has no weights: neither"),
        "a shard missing": (lose_shard, "names the shard 'model-00002-of-00002."
                            "safetensors', which is not there"),
        "weights of torch": (only_torch, "only be read where torch is installed")},
    "vocabulary": {
        "no vocabulary": (without("spiece.model"), "has no spiece.model"),
        "vocabulary that is none": (
            lambda folder: (folder / "spiece.model").write_bytes(b"none"),
            "spiece.model', which is not a SentencePiece model"),
        "larger vocabulary": (
            lambda folder: hugging_face.write(
                folder, vocab_size=590), "has a vocabulary of 600 ids, sentinels "
            "included, but an embedding of 590 rows")}}


@pytest.mark.parametrize("where", HARMS)
def test_a_wrong_folder_is_one_sentence_and_leaves_nothing(
    folders, where, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  for i, (harm, (change, message)) in enumerate(HARMS[where].items()):
    folder = tmp_path / str(i)
    folder.mkdir()
    shutil.copytree(folders("T5 1.0")[0], folder / "theirs")
    change(folder / "theirs")
    with pytest.raises(SystemExit, match=rf"^hugging_face: .*{message}.*\.$"):
      run("import", folder / "theirs", f"--output={folder}/ours")
    assert [path.name for path in folder.iterdir()] == ["theirs"], harm


@pytest.mark.parametrize("way", ["import", "export"])
def test_a_used_folder_and_a_full_disk_are_one_sentence_and_leave_nothing(
    folders, way, tmp_path):
  (tmp_path / "mine.txt").write_text("keep")
  source = dict(zip(["import", "export"], folders("T5 1.0")))[way]
  with pytest.raises(SystemExit, match="not empty .it holds 'mine.txt'."):
    run(way, source, f"--output={tmp_path}")
  # A limit of file sizes stands for a full disk, which has another error.
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, limit[1]))
  try:
    with pytest.raises(SystemExit, match=(
        r"cannot be written \(File too large\); make room")):
      run(way, source, f"--output={tmp_path}/new")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
