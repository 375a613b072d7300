"""`calibrate`: the average of a trained attention takes the place of V."""

import gin
import numpy as np
import pytest
from support import calibrated
from support import mtf_models
from support import sessions
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.calibrate import __main__ as calibrate
from synthesizer_mtf.tools.calibrate import attention_bindings
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
import tensorflow.compat.v1 as tf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def small_graphs():
  with sessions.unoptimized():
    yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A model, and a task with one text."""
  return calibrated.write(tmp_path_factory.mktemp("one_text"), ["a bird\tein Tier"])


def losses(model_dir):
  """The log-perplexity of the rows of a batch."""
  data, graph = calibrated.graph_of(model_dir)
  return next(map(graph.losses, data.batches(1)))[0]


def run(model_dir, output, *flags):
  calibrate.main([f"--model_dir={model_dir}", f"--output={output}", "--batches=2",
                  "--batch_size=3", *flags])
  return str(output)


def test_with_one_text_repeated_r_computes_what_v_does(model, tmp_path, capsys):
  output = run(model, tmp_path / "r", "--to=R")
  np.testing.assert_allclose(losses(output), losses(model), rtol=1e-5)
  old, new = (mtf_models.variables(folder) for folder in (model, output))
  place = "decoder/block_001/layer_000/SyntheticAttention/"
  assert new[place + "R"].shape == (2, *2 * [calibrated.LENGTHS["targets"]])
  assert set(old) - set(new) == {
      name for name in old if name[-2:] in ("/q", "/k") and "Synthetic" in name}
  assert "shared/embedding_slot_v" in old
  for name in set(old) & set(new):
    np.testing.assert_array_equal(old[name], new[name])
  slot = new[place + "R_slot_v"]  # Of Adafactor, for training.
  assert slot.shape == new[place + "R"].shape and not slot.any()
  said = capsys.readouterr().out
  # The text has 7 of 13 tokens, and the target 9 of 11.
  assert "encoder/0: no text has 120 of the 169 pairs of positions" in said
  assert said.count("| 0.000 ") == 8
  assert "decoder/1: no text has 21 of the 66 pairs of positions" in said


def test_with_one_text_packed_r_computes_what_v_does(tmp_path):
  data, graph = calibrated.graph_of(
      calibrated.write(tmp_path, ["a b\tx"], pack=True))  # Three to a row.
  batch = next(data.batches(1))
  assert (batch["inputs_segmentation"].max(-1) == 3).all()
  notations = dict.fromkeys(graph.layers, "R")
  attention_bindings.choose(
      blocks.entries(graph.layers, notations), blocks.lengths(graph.layers))
  new = reading.Graph(data.spec, summed=False)
  new.restore(f"{tmp_path}/model/model.ckpt-7", fitting.variables(
      fitting.fit(graph, lambda: [batch], notations, new.shapes)))
  np.testing.assert_allclose(new.losses(batch), graph.losses(batch), rtol=1e-5)


def test_packed_and_unpacked_rows_have_the_same_means(tmp_path):
  averages = []
  for pack, rows in ((False, 3), (True, 1)):  # All three fit into one row.
    folder = tmp_path / str(pack)
    folder.mkdir()
    model = calibrated.write(folder, ["a\tbc", "a bird\tx", "b c\tno"], pack)
    data, graph = calibrated.graph_of(model, rows)
    averages.append(means.gather(map(graph.sums, data.batches(1)), graph.layers))
  rows, packed = averages
  np.testing.assert_array_equal(
      rows["encoder/0"].pairs[:, 0], [3, 3, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(
      rows["decoder/0"].pairs[:, 1], [0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0])
  for name, ids in rows.items():
    np.testing.assert_array_equal(packed[name].pairs, ids.pairs)
    np.testing.assert_allclose(packed[name].weights, ids.weights, atol=1e-5)
    np.testing.assert_allclose(packed[name].entropies, ids.entropies, atol=1e-5)


def test_with_no_head_replaced_a_mixture_is_v_bit_for_bit(model):
  data, graph = calibrated.graph_of(model)
  expected = next(map(graph.losses, data.batches(1)))
  notations = {"encoder/1": "T", "decoder/0": "R"}
  attention_bindings.choose(blocks.entries(graph.layers, {
      name: f"{notation}+V" for name, notation in notations.items()}),
                  blocks.lengths(graph.layers), mixed=True)
  mixed = reading.Graph(data.spec)
  fit = fitting.fit(graph, lambda: data.batches(1), notations, mixed.shapes)
  mixed.restore(tf.train.latest_checkpoint(model), fitting.variables(
      fit, dict.fromkeys(notations, [])))
  for chosen, is_equal in (([], True), ([1], False)):
    mixed.session.assign(fitting.variables(fit, dict.fromkeys(notations, chosen)))
    losses = next(map(mixed.losses, data.batches(1)))
    assert np.array_equal(losses, expected) == is_equal


def test_heads_are_replaced_alone_and_their_layer_keeps_v(model, tmp_path):
  output = run(model, tmp_path / "mixed", "--to=R/[V,T]", "--heads=1")
  gin_files.parse([f"{output}/operative_config.gin"])
  assert gin.query_parameter("encoder/synthesizer_stack.attention") == ["R+V", "R+V"]
  assert gin.query_parameter("decoder/synthesizer_stack.attention") == ["V", "T+V"]
  new = mtf_models.variables(output)
  place = "decoder/block_001/layer_000/SyntheticAttention/"
  np.testing.assert_array_equal(np.argmax(new[place + "alpha"], -1), [1, 0])
  assert {place + "T", place + "q"} <= set(new) and place + "T_after" not in new
  assert np.isfinite(losses(output)).all()


def test_a_model_with_the_layer_of_t5_is_calibrated_as_v(tmp_path):
  model = calibrated.write(tmp_path, ["a bird\tein Tier"], stock=True)
  gin_files.parse([f"{model}/operative_config.gin"])
  data = reading.Data(None, "train", 2)
  stock = reading.Graph(data.spec)
  stock.restore(f"{model}/model.ckpt-7")
  expected = next(map(stock.losses, data.batches(1)))[0]
  assert not stock.layers
  np.testing.assert_allclose(losses(model), expected, rtol=1e-5)
  output = run(model, tmp_path / "r", "--to=[V,R]/R")
  np.testing.assert_allclose(losses(output), expected, rtol=1e-5)
  assert "encoder/block_000/layer_000/SyntheticAttention/q" in mtf_models.variables(
      output)


@pytest.mark.parametrize("flags, said", [
    (["--gin_param=d_ff = 15"], "`d_ff` is 15, but 14 there"),
    (["--gin_param=RandomLogits.max_length = 12"], "tokens; raise it"),
    (["--gin_param=utils.run.sequence_length = None"], "bind the longest sequences"),
    (["--gin_param=Unitransformer.positional_embedding = True",
      "--gin_param=Unitransformer.max_length = 12"], "has positional embeddings of 12"),
    (["--heads=0,2"], "--heads names 2, but encoder/0 has the heads 0 to 1"),
    (["--task=synth_none"], "not a task"),
    (["--batches=0"], None)])
def test_bad_input_is_said_before_anything_is_read(
    flags, said, model, tmp_path, monkeypatch, capsys):
  def read(*args):
    raise AssertionError("a batch was read")

  monkeypatch.setattr(reading.Data, "batches", read)
  with pytest.raises(SystemExit) as error:
    run(model, tmp_path / "r", "--to=R", *flags)
  if said:
    assert said in str(error.value) and "traceback" not in str(error.value)
  else:
    assert "0 is not at least 1" in capsys.readouterr().err
  assert not (tmp_path / "r").exists()


def test_texts_that_are_cut_are_counted(model, tmp_path):
  folder = tmp_path / "long"
  folder.mkdir()
  texts = ["a\tb", "a very long text\tb", f"{13 * 'a'}\tb", f"{'a' * 12}\tb"]
  gin_files.parse([], [*calibrated.bindings(folder, texts, False)])
  data = reading.Data(None, "train", 2)
  said = data.cut(8)
  # With the end of the sequence, 13 letters are 14 tokens.
  assert "4 of the first 8 texts of synth_text_pairs (50.0%)" in said
  assert "4 with inputs over 13, 0 with targets over 11" in said
  gin_files.parse([f"{model}/operative_config.gin"])
  assert reading.Data(None, "train", 2).cut(8) is None


@pytest.mark.parametrize("of, reason, said", [
    ("of_another_t5", "", "not registered"),
    ("synth_text_pairs", "no network", "without a network")])
def test_the_task_has_the_vocabulary_where_that_of_the_model_cannot_be_read(
    of, reason, said, model, monkeypatch, capsys):
  parameter = "get_vocabulary.mixture_or_task_name"
  gin_files.parse([f"{model}/operative_config.gin"], [f"{parameter} = {of!r}"])
  monkeypatch.setattr(checks, "unreachable", lambda path: reason)
  monkeypatch.setattr(reading.data_checks, "check_vocabularies", lambda *args: None)
  assert reading.Data("synth_text_pairs", "train", 2).spec["inputs"] == (2, 13)
  assert gin.query_parameter(f"t5.models.mesh_transformer.{parameter}") == (
      "synth_text_pairs")
  assert said in capsys.readouterr().out


def test_a_folder_with_a_model_is_not_overwritten(model):
  with pytest.raises(SystemExit, match="not empty"):
    run(model, model, "--to=R")


def layers(*names):
  return {name: moments.Layer(name, "", name.partition("/")[0], notation, 4, 8, True)
          for name, notation in names}


V = layers(("encoder/0", "V"), ("encoder/1", "V"), ("decoder/0", "V"))


def test_a_word_says_what_takes_the_place_of_each_layer():
  assert blocks.choose("R", V) == {"encoder/0": "R", "encoder/1": "R", "decoder/0": "R"}
  assert blocks.choose("[V,T]/FR", V) == {"encoder/1": "T", "decoder/0": "FR"}
  assert blocks.choose("R", V, ["decoder", "encoder/1"]) == {
      "encoder/1": "R", "decoder/0": "R"}
  assert blocks.choose("R", V, ["encoder/"]) == {"encoder/0": "R", "encoder/1": "R"}
  mixed = layers(("encoder/0", "R"), ("encoder/1", "V"))
  assert blocks.choose("[V,R]", mixed) == {"encoder/1": "R"}


@pytest.mark.parametrize("to, only, among, said", [
    ("Q", [], V, "'Q', which cannot take the place of V"),
    ("[R,R,R]/R", [], V, "3 entries in '\\[R,R,R\\]', but the stack has the 2 blocks"),
    ("R/R/R", [], V, "the stacks encoder, decoder; give"),
    ("R", ["encoder/2"], V, "--layers names 'encoder/2', but the model has encoder/0"),
    ("V", [], V, "no layer to replace"),
    ("R", [], layers(("encoder/0", "R"), ("encoder/1", "V")), "encoder/0, which is R"),
    ("R", [], layers(("encoder/0", "R")), "no layer with dot products alone")])
def test_what_cannot_be_replaced_is_said(to, only, among, said):
  with pytest.raises(checks.Error, match=said):
    blocks.choose(to, among, only)
