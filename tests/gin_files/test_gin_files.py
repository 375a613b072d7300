"""Every gin file parses, and runs for a step at a tiny size."""

import functools
import pathlib

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.attention import functions
import tensorflow.compat.v1 as tf

FOLDER = pathlib.Path(gin_files.folder())


def names(folder):
  return sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob(folder))


ATTENTIONS = names("attention/*.gin")
# Classifiers have other targets; test_classifier.py tests them.
MODELS = [n for n in names("models/**/*.gin")
          if not n.endswith("common.gin") and "table7" not in n]
TABLE4 = {"transformer": 222.9, "d": 224.5, "r": 254.4, "r+v": 292.1,
          "d+v": 243.4, "lightconv": 223.2, "dyconv": 256.2}


def train(steps=1):
  """Trains a tiny model; returns the losses and the variables by name."""
  m = models.Model()
  generator = np.random.RandomState(0)
  with m.tf_graph.as_default():
    tf.set_random_seed(1)
    inputs = m.ids(generator.randint(2, models.VOCABULARY, (2, 9)))
    targets = m.ids(generator.randint(2, models.VOCABULARY, (2, 7)))
    _, loss = m.model.call_simple(inputs, targets, True, mode="train")
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    assert all(g is not None for g in grads)
    tf.train.get_or_create_global_step()
    updates = optimize.AdafactorOptimizer(learning_rate=0.05).apply_grads(
        grads, variables)
    trained = {v.name for v in variables}
    losses, values = m.run(loss, updates=updates, steps=steps)
  return [l[0] for l in losses], values, trained


def test_an_own_length_holds_if_classifier_gin_comes_after_it(tmp_path):
  own = tmp_path / "own.gin"
  own.write_text("utils.run.sequence_length = {'inputs': 64, 'targets': 9}\n")
  for files, length in ([own, "classifier.gin"], 64), (["classifier.gin"], 512):
    gin_files.parse(["models/laptop.gin", *files])
    assert gin_files.bound("utils.run.sequence_length", None) == {
        "inputs": length, "targets": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ATTENTIONS if "+" not in n])
def test_every_attention_file_trains(name):
  models.parse_gin([name], models.TINY + ["num_layers = 1"])
  losses, values, trained = train(steps=8)
  assert np.isfinite(losses).all() and losses[-1] < losses[0]
  if name == "attention/fix.gin":  # Its matrices are not parameters.
    assert any(key.endswith("/R") for key in values)
    assert not any(key.endswith("/R") for key in trained)


def test_every_mixtures_file_makes_its_parts():
  known = {notation.lower(): cls for notation, cls in
           functions.SYNTHESIZING_FUNCTIONS.items()}
  mixtures = [name for name in ATTENTIONS if "+" in name]
  assert mixtures
  for name in mixtures:
    models.parse_gin([name], models.TINY)
    parts = [known[part] for part in pathlib.Path(name).stem.split("+")]
    model = models.build()
    for stack in (model.encoder, model.decoder):
      layer = stack.layer_stack.layers[0]
      if stack is model.encoder or "pattern" not in name:  # Its file is for encoders.
        assert [type(part) for part in layer.mixture.synthesizers] == parts


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_file_runs_a_step_at_a_tiny_size(name):
  notation = ["synthesizer_stack.attention = 'R'"] if "laptop" in name else []
  models.parse_gin([name], models.TINY + notation + [
      "num_layers = 1", "SyntheticAttention.num_heads = 3",
      "SyntheticAttention.key_value_size = 4"])
  losses, _, _ = train()
  assert np.isfinite(losses).all()


def test_each_notation_of_the_tables_has_a_file():
  for notation in ("v", "r", "fix", "fr", "d", "fd", "r+d", "fr+d", "d+v",
                   "r+v", "fr+v"):
    assert f"attention/{notation}.gin" in ATTENTIONS


@functools.cache
def count_parameters(name):
  models.parse_gin([f"models/{name}.gin"])
  return models.count_parameters(32128, length=512)


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


def test_gin_folder_is_no_python_package():
  assert not list(FOLDER.rglob("__init__.py"))


def test_folders_of_ones_own_on_pythons_path_hide_no_gin_files(tmp_path, monkeypatch):
  for made in ("models", "attention/r", "objectives"):
    (tmp_path / made).mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  gin_files.parse(["dataset.gin", "models/laptop.gin", "attention/r.gin",
                   "objectives/span_3_15_u_u.gin"])
