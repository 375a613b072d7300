"""Every gin file parses, and runs for a step at a tiny size."""

import functools
import pathlib

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from synthesizer_mtf import gin_files
from synthesizer_mtf.synthesizers import names as synthesizer_names
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


@pytest.mark.parametrize("name", [n for n in ATTENTIONS if "+" not in n])
def test_every_attention_file_trains(name):
  models.parse_gin([name], models.TINY + ["num_layers = 1"])
  losses, _, _ = train(steps=8)
  assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize("name", [n for n in ATTENTIONS if "+" in n])
def test_every_mixtures_file_makes_its_parts(name):
  models.parse_gin([name], models.TINY)
  known = {notation.lower(): cls for notation, cls in
           synthesizer_names.SYNTHESIZING_FUNCTIONS.items()}
  parts = [known[part] for part in pathlib.Path(name).stem.split("+")]
  model = models.build()
  for stack in (model.encoder, model.decoder):
    layer = stack.layer_stack.layers[0]
    if stack is model.encoder or "pattern" not in name:  # Its file is for encoders.
      assert [type(part) for part in layer.mixture.synthesizers] == parts


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


@pytest.mark.slow
def test_a_fixed_random_matrix_never_changes_and_is_not_counted():
  values = []
  for steps in (1, 3):
    models.parse_gin(["attention/fix.gin"], models.TINY + ["num_layers = 1"])
    _, variables, trained = train(steps)
    values.append({k: v for k, v in variables.items() if k.endswith("/R")})
  assert values[0] and not any(name.endswith("/R") for name in trained)
  for name, value in values[0].items():
    np.testing.assert_array_equal(values[1][name], value)


@functools.cache
def count_parameters(name):
  models.parse_gin([name])
  m = models.Model(vocabulary=32128)
  with m.tf_graph.as_default():
    ids = m.ids(np.zeros((1, 512), int))
    m.model.call_simple(ids, ids, True, mode="train")
  return sum(v.size for v in m.graph.trainable_variables)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TABLE4))
def test_table_4_presets_have_the_papers_number_of_parameters(name):
  count = count_parameters(f"models/table4/{name}.gin")
  assert round(count / 1e6, 1) == TABLE4[name]


@pytest.mark.slow
def test_base_plus_is_the_transformer_nearest_in_size_to_r_plus_v():
  plus, target, base = (count_parameters(f"models/{name}.gin") for name in (
      "base_plus", "table4/r+v", "table4/transformer"))
  assert round(plus / 1e6, 1) == 292.2
  eight = 8 * 2 * 768 * (12 + 12)  # Parameters of 8 more channels of d_ff.
  assert (plus - base) % eight == 0
  assert abs(plus - target) <= eight / 2


def test_gin_folder_is_no_python_package():
  assert not list(FOLDER.rglob("__init__.py"))


@pytest.mark.parametrize("made", ["models", "attention/r", "objectives"])
def test_folders_of_ones_own_on_pythons_path_hide_no_gin_files(
    made, tmp_path, monkeypatch):
  (tmp_path / made).mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  gin_files.parse(["dataset.gin", "models/laptop.gin", "attention/r.gin",
                   "objectives/span_3_15_u_u.gin"])
