"""Every gin file parses, and makes what its name says at a tiny size."""

import functools
import pathlib

import pytest
from support import models
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import notation

FOLDER = pathlib.Path(gin_files.folder())


def names(folder):
  return sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob(folder))


ATTENTIONS = names("attention/*.gin")
# Classifiers have other targets; test_classifier.py tests them.
MODELS = [n for n in names("models/**/*.gin")
          if not n.endswith("common.gin") and "table7" not in n]
TABLE4 = {"transformer": 222.9, "d": 224.5, "r": 254.4, "r+v": 292.1,
          "d+v": 243.4, "lightconv": 223.2, "dyconv": 256.2}


def test_an_own_length_holds_if_classifier_gin_comes_after_it(tmp_path):
  own = tmp_path / "own.gin"
  own.write_text("utils.run.sequence_length = {'inputs': 64, 'targets': 9}\n")
  for files, length in ([own, "classifier.gin"], 64), (["classifier.gin"], 512):
    gin_files.parse(["models/laptop.gin", *files])
    assert gin_files.bound("utils.run.sequence_length", None) == {
        "inputs": length, "targets": 1}


def test_every_attention_file_makes_the_attention_of_its_name():
  """test_random_configurations.py computes the steps of each."""
  known = {name.lower(): cls for name, cls in {
      **functions.SYNTHESIZING_FUNCTIONS, **notation.LAYERS}.items()}
  known["mixer"] = known["r"]
  for name in ATTENTIONS:
    models.parse_gin([name], models.TINY)
    parts = [known[part] for part in
             pathlib.Path(name).stem.replace("_", "").split("+")]
    m = models.build()
    for stack in (m.encoder, m.decoder):
      layer = stack.layer_stack.layers[0]
      classes = [*map(type, layer.mixture.synthesizers)] if (
          isinstance(layer, synthesizer_mtf.SyntheticAttention)) else [type(layer)]
      in_encoders = "pattern" in name or "linformer" in name
      assert classes == parts or stack is m.decoder and in_encoders, name


def test_the_matrices_of_fix_are_no_parameters():
  models.parse_gin(["attention/fix.gin"], models.TINY)
  graph = models.training_step().graph
  assert any(v.name.endswith("/R") for v in graph.all_variables)
  assert not any(v.name.endswith("/R") for v in graph.trainable_variables)


@pytest.mark.slow
def test_every_model_file_makes_a_training_step_at_a_tiny_size():
  for name in MODELS:
    attention = ["synthesizer_stack.attention = 'R'"] if "laptop" in name else []
    models.parse_gin([name], models.TINY + attention + [
        "num_layers = 1", "SyntheticAttention.num_heads = 3",
        "SyntheticAttention.key_value_size = 4"])
    models.training_step()


def test_each_notation_of_the_tables_has_a_file():
  for name in ("v", "r", "fix", "fr", "d", "fd", "r+d", "fr+d", "d+v", "r+v", "fr+v"):
    assert f"attention/{name}.gin" in ATTENTIONS


@functools.cache
def count_parameters(name):
  return models.count_parameters(
      lambda *more: models.parse_gin([f"models/{name}.gin"], more), 32128, length=512)


@pytest.mark.slow
def test_presets_have_the_papers_number_of_parameters_and_base_plus_that_of_r_plus_v():
  for name, millions in TABLE4.items():
    assert round(count_parameters(f"table4/{name}") / 1e6, 1) == millions, name
  plus, target, base = map(
      count_parameters, ("base_plus", "table4/r+v", "table4/transformer"))
  assert round(plus / 1e6, 1) == 292.2
  eight = 8 * 2 * 768 * (12 + 12)  # Parameters of 8 more channels of d_ff.
  assert (plus - base) % eight == 0
  assert abs(plus - target) <= eight / 2


def test_folders_of_ones_own_on_pythons_path_hide_no_gin_files(tmp_path, monkeypatch):
  for made in ("models", "attention/r", "objectives"):
    (tmp_path / made).mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  gin_files.parse(["dataset.gin", "models/laptop.gin", "attention/r.gin",
                   "objectives/span_3_15_u_u.gin"])
