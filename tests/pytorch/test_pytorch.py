"""Exported models in PyTorch compute what they compute in Mesh TensorFlow.

`make test-pytorch` runs these tests; another Python runs `compare.py`. With `-s` they
print the table of differences.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from support import exported_models
from support import hugging_face
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.hugging_face import __main__ as command
from synthesizer_mtf.tools.hugging_face import exporting
from synthesizer_mtf.tools.hugging_face import tokenizers

COUNT = 100
_SCRIPT = pathlib.Path(__file__).with_name("compare.py")
_NEIGHBOURS = pathlib.Path(__file__).with_name("neighbours.py")
_RESIZE = pathlib.Path(__file__).with_name("resize.py")
_MODEL = pathlib.Path(exporting.__file__).with_name("pytorch")

lines = exported_models.lines

# Random batches, one of which has all positions of the tables.
CASES = {name: lines(name) for name in (
    "V", "R", "Fix", "FR", "T", "D", "FD", "Pattern", "R+V", "R+D", "D+V", "FR+D+V")}
CASES.update({
    "V+V": lines("V+V"),
    "R+V without bias": lines("R+V", bias=None),
    "R+V at max_length": lines("R+V", bias="bias"),
    "a mix of layers": lines(
        "R", "encoder/synthesizer_stack.attention = ['FR+V', 'T']",
        "decoder/synthesizer_stack.attention = ['D+V', @SelfAttention]",
        "SelfAttention.relative_attention_type = 'bias_shared'"),
    "gated, untied": lines(
        "R+V", "DenseReluDense.activation = ['gelu', 'linear']",
        "Unitransformer.shared_embedding_and_softmax_weights = False"),
    "options": lines(
        "D+V", "DenseLogits.use_bias = True", "DenseLogits.share_heads = True",
        "DenseLogits.share_query = True", "Mixture.weights = 'per_layer'"),
    "tiles": lines(
        "T+R+FD+D+FR", *(f"{cls}.tile_length = 4" for cls in (
            "ToeplitzLogits", "RandomLogits", "FactorizedDenseLogits", "DenseLogits",
            "FactorizedRandomLogits")), "Mixture.weights = 'sum'"),
    "R without softmax": lines("R", "SyntheticAttention.softmax = False")})


@pytest.fixture(scope="module")
def compared(pytestconfig, tmp_path_factory, sentencepiece_model):
  """What `compare.py` finds for each case."""
  root = tmp_path_factory.mktemp("pytorch")
  for seed, (name, gin) in enumerate(CASES.items()):
    length = exported_models.MAX_LENGTH if name.endswith("at max_length") else None
    _export(root / name, sentencepiece_model, gin,
            exported_models.random_examples(seed, length))
  return _compare(pytestconfig, *(root / name for name in CASES))


def _export(folder, spiece, gin, examples, **words):
  model = exported_models.Exported(folder, spiece, gin)
  np.savez(folder / "ours.npz", **model.compute(*examples, **words))
  model.export()
  (folder / "names.json").write_text(json.dumps(model.names()))


def _run(config, *words, script=_SCRIPT, home=None):
  done = subprocess.run(
      [config.getoption("pytorch"), script, *words], capture_output=True, text=True,
      env={**os.environ, "HF_HUB_OFFLINE": "1",
           "HF_HOME": str((home or words[-1]) / "cache")}, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  return done


def _compare(config, *folders):
  done = _run(config, *folders)
  print(f"\n{done.stdout}")
  return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_the_same(compared, name):
  assert max(compared[name][what] for what in (
      "logits", "encoder", "both sides", "cached", "gradients")) < 1e-4, compared[name]


def test_hypotheses_are_the_same(pytestconfig, tmp_path, sentencepiece_model):
  names = "V", "R", "R+V"
  for name in names:
    _export(tmp_path / name, sentencepiece_model, lines(name),
            exported_models.examples(COUNT, 9), decode=9, beam=4, gradients=False)
  for row in _compare(pytestconfig, *(tmp_path / name for name in names)).values():
    assert row["greedy"] == COUNT and row["worse"] == 0, row
    if row["name"] == "R":  # Most of its rows end.
      assert row["beams"] > row["ended"] / 2 > 10, row


def test_a_model_trained_in_pytorch_comes_back(
    pytestconfig, tmp_path, sentencepiece_model):
  gin = lines("R+V", "encoder/synthesizer_stack.attention = ['FD', 'T+V']")
  _export(tmp_path, sentencepiece_model, gin, exported_models.examples(),
          gradients=False)
  _run(pytestconfig, "tune", tmp_path)
  command.main(["import", str(tmp_path / "tuned"), f"--output={tmp_path}/back"])
  ours = dict(np.load(tmp_path / "ours.npz"))
  targets = ours["targets"]
  logits, *_ = hugging_face.Mesh(tmp_path / "back").logits(
      ours["inputs"], targets, decode=1)
  tuned = np.load(tmp_path / "tuned.npy")
  np.testing.assert_allclose(logits[targets > 0], tuned[targets > 0], atol=1e-4)
  assert abs(tuned - ours["logits"]).max() > 0.01
  before, after = map(hugging_face.variables, (tmp_path / "ours", tmp_path / "back"))
  assert before.keys() == after.keys()
  np.testing.assert_array_equal(before["shared/embedding"], after["shared/embedding"])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_exported_tokenizer_gives_our_ids(pytestconfig, tmp_path, kind):
  path = hugging_face.vocabulary(tmp_path, kind)
  ours = vocabulary.load("it", str(path))
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  tokenizers.Tokenizer(str(path), ours.vocab_size, ours).export(theirs)
  (theirs / "texts.json").write_text(json.dumps(hugging_face.TEXTS))
  ids = json.loads(_run(pytestconfig, "tokens", theirs).stdout.splitlines()[-1])
  assert ids == [[*map(int, ours.encode(text)), 1] for text in hugging_face.TEXTS]


@pytest.fixture(scope="module")
def neighbours(pytestconfig, tmp_path_factory):
  """What `neighbours.py` finds: its draws, and then what is refused."""
  done = _run(pytestconfig, _MODEL, os.environ.get("CASES", "56"),
              os.environ.get("SEED", "1"), script=_NEIGHBOURS,
              home=tmp_path_factory.mktemp("neighbours"))
  return [json.loads(line) for line in done.stdout.splitlines()]


def test_padding_caches_dtypes_and_ways_to_decode_change_no_text(neighbours):
  wrong = [drawn for drawn in neighbours[:-1] if not drawn["error"] <= drawn["allowed"]]
  assert not wrong and len(neighbours) > 1, "\n".join(map(str, wrong))


def test_a_new_layer_alone_takes_masks_of_all_kinds_or_none(neighbours):
  errors = neighbours[-1]["alone"]
  assert len(errors) == 20 and max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("what, message", [
    ("sliding", " of 8 tokens, but synthesized attention sees all; use a cache with"),
    ("cross", "static cache of cross-attention has max_cache_len 7, but there are 5 "),
    ("pairs", "attention_mask has the shape [2, 5, 5], which does not give the pos"),
    ("pairs of targets", "decoder_attention_mask has the shape [2, 1, 4, 4], which"),
    ("length", "attention_mask is for 4 tokens, but the inputs have 5; give it a c"),
    ("key", "has the key 'encoder_atention', which nothing reads; did you mean 'en"),
    ("factors", "FD has a = 1 and b = 1, but their product must be its max_length, 5"),
    ("key of a layer", "an attention has the key 'weigths', which nothing reads; the "),
    ("weights", "'weights' of an attention is 'per_heads'; give one of 'per_head', '")])
def test_what_pytorch_cannot_compute_is_refused(neighbours, what, message):
  assert message in neighbours[-1]["refused"][what]


@pytest.fixture(scope="module")
def resized(pytestconfig, tmp_path_factory):
  """What `resize.py` finds."""
  home = tmp_path_factory.mktemp("resize")
  return json.loads(_run(pytestconfig, _MODEL, home, script=_RESIZE).stdout)


def test_resized_tables_are_interpolated_linearly(resized):
  tables = resized["tables"]
  assert len(tables) == 16 and max(tables.values()) < 1e-5, tables


def test_a_resized_model_is_saved_and_loaded_as_it_is(resized):
  assert len(resized["models"]) == 8 and max(resized["models"].values()) == 0, resized


@pytest.mark.parametrize("what, message", [
    ("loaded", "max_length=99 changes no table of a model that is loaded; load it wit"),
    ("by its class", "load it without, and call model.resize(max_length) then."),
    ("mistyped", "has the key 'encoder_atention', which nothing reads; did you mean"),
    ("another shape", "shapes than the configuration says; if it has another ma"),
    ("multiple", "max_length is 9, but FD needs a multiple of its b, 2; give one."),
    ("length", "max_length is 1; give an integer of at least 2."),
    ("parameter", "R has the parameter 'weights', which nothing reads; its param"),
    ("of V", "V has the parameter 'max_length', which nothing reads; its par"),
    ("too long", "fewer tokens, or lengthen its tables by resize(7).")])
def test_a_length_or_parameter_that_does_not_fit_is_refused(resized, what, message):
  assert message in resized["refused"][what]
