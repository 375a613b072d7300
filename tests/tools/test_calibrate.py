"""`calibrate`: the average of a trained attention takes the place of V."""

import numpy as np
import pytest
from support import models
from support import mtf_models
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools import calibrate
from synthesizer_mtf.tools import checkpoint_writer
from synthesizer_mtf.tools.calibration import blocks
from synthesizer_mtf.tools.calibration import fitting
from synthesizer_mtf.tools.calibration import means
from synthesizer_mtf.tools.calibration import reading
from synthesizer_mtf.tools.calibration import settings
import tensorflow.compat.v1 as tf

LENGTHS = {"inputs": 13, "targets": 11}


def bindings(folder, texts, pack, *more):
  """A tiny model with V in float32, and its task of these texts."""
  (folder / "texts.tsv").write_text("".join(f"{text}\n" for text in texts))
  return [
      *models.TINY, "synthesizer_stack.attention = 'V'",
      "SyntheticAttention.relative_attention_type = 'bias_shared'",
      "Unitransformer.positional_embedding = False",
      "get_vocabulary.mixture_or_task_name = 'synth_text_pairs'",
      "MIXTURE_NAME = 'synth_text_pairs'",
      f"{vocabulary.PARAMETER} = '{vocabulary.BYTES}'",
      f"synthesizer_mtf.tasks.pairs.train = '{folder}/texts.tsv'",
      f"utils.run.sequence_length = {LENGTHS}",
      "utils.get_variable_dtype.master_dtype = 'float32'",
      f"mesh_train_dataset_fn.pack = {pack}", *more]


def write(folder, texts, pack=False, scale=0.5, more=()):
  """Writes the folder of a model with random variables; returns its path."""
  lines = bindings(folder, texts, pack, *more)
  gin_files.parse([], lines)
  shapes = reading.Graph(reading.Data(None, "train", 2).spec).shapes
  generator = np.random.RandomState(0)
  values = {name: np.float32(scale * generator.randn(*shape))
            for name, shape in shapes.items()}
  values["global_step"] = np.int64(7)
  model = folder / "model"
  model.mkdir()
  checkpoint_writer.write(str(model), "model.ckpt-7", values.items())
  (model / "operative_config.gin").write_text("\n".join(lines) + "\n")
  return str(model)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A model, and a task with one text."""
  return write(tmp_path_factory.mktemp("one_text"), ["a bird\tein Tier"])


def graph_of(model_dir, batch_size=2):
  """(data, graph) of a folder's model."""
  gin_files.parse([f"{model_dir}/operative_config.gin"])
  settings.take_the_place_of_stock()
  data = reading.Data(None, "train", batch_size)
  graph = reading.Graph(data.spec)
  graph.restore(tf.train.latest_checkpoint(model_dir))
  return data, graph


def losses(model_dir):
  """The log-perplexity of the rows of a batch."""
  data, graph = graph_of(model_dir)
  return next(map(graph.losses, data.batches(1)))[0]


def run(model_dir, output, *flags):
  calibrate.main([f"--model_dir={model_dir}", f"--output={output}", "--batches=2",
                  "--batch_size=3", *flags])
  return str(output)


def test_with_one_text_repeated_r_computes_what_v_does(model, tmp_path, capsys):
  output = run(model, tmp_path / "r", "--to=R")
  np.testing.assert_allclose(losses(output), losses(model), rtol=1e-5)
  old, new = (mtf_models.variables(each) for each in (model, output))
  place = "decoder/block_001/layer_000/SyntheticAttention/"
  assert new[place + "R"].shape == (2, LENGTHS["targets"], LENGTHS["targets"])
  assert set(old) - set(new) == {
      name for name in old if name[-2:] in ("/q", "/k") and "Synthetic" in name}
  for name in set(old) & set(new):
    np.testing.assert_array_equal(old[name], new[name])
  said = capsys.readouterr().out
  # The text has 7 of 13 tokens, and the target 9 of 11.
  assert "encoder/0: no text has 120 of the 169 pairs of positions" in said
  assert said.count("| 0.000 ") == 8
  assert "decoder/1: no text has 21 of the 66 pairs of positions" in said


def test_with_one_text_packed_r_computes_what_v_does(tmp_path):
  data, graph = graph_of(write(tmp_path, ["a b\tx"], pack=True))  # Three to a row.
  batch = next(data.batches(1))
  assert (batch["inputs_segmentation"].max(-1) == 3).all()
  notations = dict.fromkeys(graph.layers, "R")
  settings.choose(blocks.entries(graph.layers, notations), blocks.lengths(graph.layers))
  new = reading.Graph(data.spec, summed=False)
  new.restore(f"{tmp_path}/model/model.ckpt-7", fitting.variables(
      fitting.fit(graph, lambda: [batch], notations, new.shapes)))
  np.testing.assert_allclose(new.losses(batch), graph.losses(batch), rtol=1e-5)


def test_packed_and_unpacked_rows_have_the_same_means(tmp_path):
  found = []
  for pack, rows in ((False, 3), (True, 1)):  # All three fit into one row.
    folder = tmp_path / str(pack)
    folder.mkdir()
    model = write(folder, ["a\tbc", "a bird\tx", "b c\tno"], pack)
    data, graph = graph_of(model, rows)
    found.append(means.gather(map(graph.sums, data.batches(1)), graph.layers))
  rows, packed = found
  np.testing.assert_array_equal(
      rows["encoder/0"].pairs[:, 0], [3, 3, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(
      rows["decoder/0"].pairs[:, 1], [0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0])
  for name, each in rows.items():
    np.testing.assert_array_equal(packed[name].pairs, each.pairs)
    np.testing.assert_allclose(packed[name].weights, each.weights, atol=1e-5)
    np.testing.assert_allclose(packed[name].entropies, each.entropies, atol=1e-5)


def test_with_no_head_replaced_a_mixture_is_v_bit_for_bit(model):
  data, graph = graph_of(model)
  expected = next(map(graph.losses, data.batches(1)))
  notations = {"encoder/1": "T", "decoder/0": "R"}
  settings.choose(blocks.entries(graph.layers, {
      name: f"{notation}+V" for name, notation in notations.items()}),
                  blocks.lengths(graph.layers), mixed=True)
  mixed = reading.Graph(data.spec)
  fit = fitting.fit(graph, lambda: data.batches(1), notations, mixed.shapes)
  mixed.restore(tf.train.latest_checkpoint(model), fitting.variables(
      fit, dict.fromkeys(notations, [])))
  for chosen, is_equal in (([], True), ([1], False)):
    mixed.assign(fitting.variables(fit, dict.fromkeys(notations, chosen)))
    found = next(map(mixed.losses, data.batches(1)))
    assert np.array_equal(found, expected) == is_equal
