"""The attention that `plot_attention` reads, counts and draws."""

import contextlib
import io
import json
import shutil

import gin
import numpy as np
import pytest
from support import cases
from support import models
from support import pages
from support import reference
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.plot_attention import __main__ as plot_attention
from synthesizer_mtf.tools.plot_attention import figures as figure_files
from synthesizer_mtf.tools.plot_attention import reader
from synthesizer_mtf.tools.plot_attention import statistics
import tensorflow.compat.v1 as tf

TEXTS = [{"inputs": "a bird", "targets": "zwei"},
         {"inputs": "fly", "targets": "Vogel"}]


def bindings(notation, pieces, *more):
  return models.TINY + cases.bindings(notation) + [
      f"synthesizer_stack.attention = '{notation}'",
      "Unitransformer.positional_embedding = False",
      "get_vocabulary.mixture_or_task_name = 'synth_text_pairs'",
      f"{vocabulary.PARAMETER} = '{pieces}'", *more]


def build(notation, *more, examples=({},), length=None):
  models.parse_gin([], bindings(notation, vocabulary.BYTES, *more))
  return reader.Model(examples, length)


def load(model, seed=0):
  """Gives all variables large random values; returns them by name."""
  model.session.initialize()
  generator = np.random.RandomState(seed)
  variables = {name: variable for name, variable in sorted(
      model.session.variables.items()) if name != "global_step"}
  model.session.assign({name: 0.7 * generator.randn(*variable.shape.as_list())
                        for name, variable in variables.items()})
  # The variables in checkpoints are bfloat16, T5's default.
  return {name: value.astype(np.float64)
          for name, value in model.session.run(variables).items()}


def expected_weights(notation, variables, stack, ids):
  """The first layer's weights, from the formulas: [heads, length, length]."""
  block = f"{stack}/block_000/layer_000/"
  x = variables["shared/embedding"][ids][None]
  x = x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-6)
  x = x * variables[block + "rms_norm/scale"]
  inside = block + "SyntheticAttention/"
  p = {name[len(inside):]: value for name, value in variables.items()
       if name.startswith(inside)}
  segment = np.ones((1, len(ids)), int)
  decoder = stack == "decoder"
  logits = cases.mixed_logits(notation, p, x, segment, decoder, heads=2)
  mask = reference.mask(segment, decoder)
  return reference.softmax(np.where(mask[:, None], logits, -1e30))[0]


@pytest.mark.slow
@pytest.mark.parametrize("notation", [*cases.VARIANTS, "R+V", "FR+D+V"])
def test_weights_equal_those_of_the_formulas(notation):
  model = build(notation, "num_layers = 1", examples=TEXTS, length=12)
  # A pattern of an encoder may end with the text.
  assert model.layers["decoder/0"].needs_text == bool(
      {"V", "D", "FD", "LD"} & set(notation.split("+")))
  variables = load(model)
  for i, example in enumerate(TEXTS):
    attention = model.attend(["encoder/0", "decoder/0"], i)
    inputs = [byte + 3 for byte in example["inputs"].encode()] + [1]
    targets = [byte + 3 for byte in example["targets"].encode()] + [1]
    for stack, ids in (("encoder", inputs), ("decoder", [0] + targets[:-1])):
      layer = attention[f"{stack}/0"]
      np.testing.assert_allclose(
          layer.weights, expected_weights(notation, variables, stack, ids),
          atol=2e-5)
    alpha = variables.get("encoder/block_000/layer_000/SyntheticAttention/alpha")
    if alpha is None:
      assert attention["encoder/0"].alpha is None
    else:
      np.testing.assert_allclose(
          attention["encoder/0"].alpha, reference.softmax(alpha), atol=1e-6)


@pytest.mark.slow
def test_rows_sum_to_1_and_decoders_look_back_only_in_recomputed_layers_too():
  model = build("R+V", "LayerStack.recompute_grads = True", examples=TEXTS, length=12)
  load(model)
  for attention in (model.attend(list(model.layers), i) for i in range(2)):
    assert list(attention) == ["encoder/0", "encoder/1", "decoder/0", "decoder/1"]
    for name, layer in attention.items():
      np.testing.assert_allclose(layer.weights.sum(-1), 1, atol=1e-5)
      later = np.triu(np.ones(layer.mask.shape, bool), 1)
      assert layer.mask[later].all() == (name[0] == "e")
      assert (layer.weights[:, later].max() == 0) == (name[0] == "d")


def test_layers_that_ignore_tokens_need_no_text():
  model = build("FR", "num_layers = 1", length=9)
  variables = load(model)
  layers = model.attend(["encoder/0", "decoder/0"])
  for stack in ("encoder", "decoder"):
    np.testing.assert_allclose(
        layers[f"{stack}/0"].weights,
        expected_weights("FR", variables, stack, [2] * 9), atol=2e-5)


def test_layers_that_depend_on_tokens_ask_for_text_and_a_decoder_reads_the_one_before():
  model = build("R+V", examples=[{"inputs": "a bird"}, TEXTS[0]], length=9)
  model.session.initialize()
  model.attend(["encoder/1"], 0)
  with pytest.raises(ValueError, match=(
      "^decoder/0 is R.V, whose attention depends on the tokens; give a text with "
      "--target")):
    model.attend(["decoder/0"], 0)
  layers = model.attend(["encoder/0", "decoder/0"], 1)
  assert layers["encoder/0"].tokens == list("a bird") + ["</s>"]
  assert layers["decoder/0"].tokens == ["<start>"] + list("zwei")


@pytest.mark.parametrize("model_type, text", [
    ("lm", {"targets": "zwei"}),
    ("delimited_lm", {"inputs": "a", "targets": "zwei"}),
    ("aligned", {"inputs": "a bird"})])
def test_models_of_one_stack(model_type, text):
  model = build("D+V", f"utils.run.model_type = '{model_type}'", examples=[text],
                length=12)
  load(model)
  attention = model.attend(["transformer/1"])["transformer/1"]
  tokens = {"lm": "zwei", "delimited_lm": "a zwei", "aligned": "a bird"}
  assert len(attention.tokens) == len(tokens[model_type]) + 1
  assert attention.weights.shape == (2,) + (len(attention.tokens),) * 2
  np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)
  assert attention.mask.all() == (model_type == "aligned")


def test_statistics_of_a_local_window():
  length = 9
  near = np.abs(np.subtract.outer(range(length), range(length))) <= 1
  gathered = statistics.Statistics()
  gathered.add(statistics.uniform(near), np.ones((length, length), bool))
  summary = gathered.summary([0, 1, 2])
  # Each of the 7 inner queries has 3 keys, the outer ones 2.
  np.testing.assert_allclose(
      summary["window_mass"], [[(7 / 3 + 2 / 2) / length, 1, 1]])
  np.testing.assert_allclose(summary["distance"], [(7 * 2 / 3 + 2 / 2) / length])
  np.testing.assert_allclose(
      summary["entropy"], [(7 * np.log(3) + 2 * np.log(2)) / length])
  np.testing.assert_array_equal(summary["half_mass_window"], [1])
  weights = statistics.uniform(near)
  np.testing.assert_allclose(summary["stddev"], [weights.std()])
  np.testing.assert_allclose(summary["max"], [0.5])
  np.testing.assert_allclose(summary["share_below_0.1"], [(81 - 25) / 81])
  np.testing.assert_allclose(summary["share_above_0.2"], [25 / 81])
  np.testing.assert_allclose(summary["histogram"].sum(), 1)


def test_statistics_of_two_examples_are_means_over_their_queries():
  generator = np.random.RandomState(0)
  gathered = statistics.Statistics()
  distance = rows = 0
  for length in (4, 7):
    weights = reference.softmax(generator.randn(2, length, length))
    gathered.add(weights, np.ones((length, length), bool))
    distance += np.einsum("hij,ij->h", weights, np.abs(
        np.subtract.outer(range(length), range(length))))
    rows += length
  np.testing.assert_allclose(gathered.summary([1])["distance"], distance / rows)


def test_weights_that_are_forced_count_in_no_histogram():
  mask = np.tril(np.ones((5, 5), bool))
  gathered = statistics.Statistics()
  gathered.add(statistics.uniform(mask), mask)
  np.testing.assert_allclose(gathered.summary([1])["max"], [0.5])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentencepiece_model):
  """A folder that the trainer wrote, with a model of R+V and R at steps 0 and 5."""
  folder = tmp_path_factory.mktemp("trained")
  config = bindings(
      "R+V", sentencepiece_model,
      "decoder/synthesizer_stack.attention = ['R', 'R+V']",
      "utils.run.sequence_length = {'inputs': 16, 'targets': 10}",
      "RandomLogits.max_length = 16")
  (folder / "operative_config.gin").write_text("\n".join(
      ["import synthesizer_mtf", "import t5.models.mesh_transformer", *config]))
  models.parse_gin([str(folder / "operative_config.gin")])
  model = reader.Model()
  for step in (0, 5):
    load(model, step)
    model.session.save(str(folder / f"model.ckpt-{step}"))
  gin.clear_config()
  return folder


def copy_model(trained, folder, checkpoints):
  for path in [*trained.glob(checkpoints), trained / "operative_config.gin"]:
    shutil.copy(path, folder)


def stopped(*flags):
  """Returns the one sentence with which the command ends."""
  with pytest.raises(SystemExit) as stop:
    plot_attention.main(list(flags))
  assert str(stop.value).startswith("plot_attention: ")
  return str(stop.value)


PICTURES = ["contact_sheet", "histograms", "alpha", "windows_encoder",
            "windows_decoder", "encoder_0", "encoder_1", "decoder_0", "decoder_1"]
DRAWN = {"inputs": "names and values", "targets": "values $ and </b> names"}


@pytest.fixture(scope="module", name="made")
def fixture_made(trained, tmp_path_factory):
  """What one call of the command makes: its folder, its words and its figures."""
  folder, figures, output = tmp_path_factory.mktemp("made"), {}, io.StringIO()
  write_summaries(trained)
  with contextlib.redirect_stdout(output), pytest.MonkeyPatch.context() as patch:
    save = figure_files.save

    def keep(figure, path, name):
      figures[name] = figure
      return save(figure, path, name) if name == "alpha" else []

    patch.setattr(figure_files, "save", keep)
    plot_attention.main([
        f"--model_dir={trained}", f"--output={folder}/pictures", "--window=2",
        f"--json={folder}/rows.jsonl", f"--html={folder}/page.html",
        f"--input={DRAWN['inputs']}", f"--target={DRAWN['targets']}",
        "--input=statements", "--target=a name"])
  return folder, output.getvalue(), figures


@pytest.fixture(scope="module", name="expected")
def fixture_expected(trained):
  """The attention of the first text, before and after training."""
  models.parse_gin([str(trained / "operative_config.gin")])
  model, states = reader.Model([DRAWN]), {}
  for state, step in (("initial", 0), ("trained", 5)):
    model.session.restore(f"{trained}/model.ckpt-{step}")
    states[state] = model.attend(list(model.layers))
  gin.clear_config()
  return states


@pytest.mark.slow
def test_the_command_writes_its_files_and_says_what_it_read(made):
  folder, printed, figures = made
  assert list(figures) == PICTURES[:2] + PICTURES[5:] + PICTURES[3:5] + ["alpha"]
  assert sorted(path.name for path in folder.iterdir()) == [
      "page.html", "pictures", "rows.jsonl"]
  assert (folder / "pictures" / "alpha.png").read_bytes().startswith(b"\x89PNG")
  assert "<svg" in (folder / "pictures" / "alpha.svg").read_text()[:2000]
  check_rows([json.loads(line) for line in
              (folder / "rows.jsonl").read_text().splitlines()])
  assert "trained: step 5; initial: step 0; 2 examples." in printed
  assert "heads that lean on it" in printed and "Wrote 2 pictures" in printed
  assert f"Wrote {folder}/page.html, " in printed


def assert_shown(pixels, attention, weights):
  """An image has weights where the mask allows a key, and nothing elsewhere."""
  np.testing.assert_allclose(np.ma.filled(pixels, np.nan),
                             np.where(attention.mask, weights, np.nan), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["encoder/1", "decoder/0"])
def test_the_picture_of_a_layer_has_each_heads_weights_and_tokens(
    made, expected, layer):
  figure = made[2][layer.replace("/", "_")]
  attention = expected["trained"][layer]
  tokens = [token.replace("$", r"\$") for token in attention.tokens]
  for head, axis in enumerate(figure.axes[:2]):
    assert_shown(axis.images[0].get_array(), attention, attention.weights[head])
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
      assert [label.get_text() for label in labels] == tokens
    alpha = attention.alpha if attention.alpha is None else attention.alpha[head]
    assert axis.get_title() == f"head {head}" + (
        "" if alpha is None else f" (R {alpha[0]:.2f}, V {alpha[1]:.2f})")
  assert len(figure.axes) == 3  # With the scale of the colours.


@pytest.mark.slow
def test_the_sheet_has_a_tile_for_each_head_of_each_layer(made, expected):
  axes = made[2]["contact_sheet"].axes[:4]
  cases = [(stack, state) for stack in ("encoder", "decoder")
           for state in ("initial", "trained")]
  for (stack, state), axis in zip(cases, axes):
    layers = [expected[state][f"{stack}/{i}"] for i in (0, 1)]
    size = len(layers[0].mask)
    border = (len(axis.images[0].get_array()) // 2 - size) // 2
    for i, attention in enumerate(layers):
      for head, weights in enumerate(attention.weights):
        row, column = (border + at * (size + 2 * border) for at in (i, head))
        assert_shown(axis.images[0].get_array()[
            row:row + size, column:column + size], attention, weights)
  assert [axis.get_title() for axis in axes] == [
      f"{stack}, {state} (step {step})" for stack in ("encoder", "decoder")
      for state, step in (("initial", 0), ("trained", 5))]


@pytest.mark.slow
def test_the_windows_show_the_mean_of_the_heads_and_the_borders(made, expected):
  figure, attention = made[2]["windows_encoder"], expected["trained"]["encoder/1"]
  above = figure.axes[1]
  assert above.get_title() == "encoder/1: R+V"
  assert_shown(above.images[0].get_array(), attention, attention.weights.mean(0))
  assert [(line.get_xy1(), line.get_slope()) for line in above.lines] == [
      ((0, -2), 1), ((0, 2), 1)]


@pytest.mark.slow
def test_alpha_and_histograms_are_drawn_as_the_rows_have_them(made, expected):
  folder, _, figures = made
  rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
  mixtures = {name: a for name, a in expected["trained"].items() if a.alpha is not None}
  for axis, (name, attention) in zip(figures["alpha"].axes, mixtures.items()):
    assert axis.get_title() == f"{name}: R+V"
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches],
                               attention.alpha.T.ravel(), atol=1e-6)
  for axis, name in zip(figures["histograms"].axes, expected["trained"]):
    for state, steps in zip(("trained", "initial"), axis.patches):
      np.testing.assert_allclose(steps.get_data().values, np.mean(
          [row[state]["histogram"] for row in rows if row["layer"] == name], 0))


def check_rows(rows):
  assert [(r["layer"], r["head"]) for r in rows] == [
      (f"{stack}/{i}", head) for stack in ("encoder", "decoder")
      for i in (0, 1) for head in (0, 1)]
  for row in rows:
    assert row["attention"] == ("R" if row["layer"] == "decoder/0" else "R+V")
    assert ("alpha" in row) == (row["attention"] == "R+V")
    if "alpha" in row:
      assert abs(sum(row["alpha"].values()) - 1) < 1e-5
      assert row["alpha"] != row["initial_alpha"]
    assert row["trained"]["distance"] != row["initial"]["distance"]
    for state in ("trained", "initial", "uniform"):
      assert len(row[state]["window_mass"]) == len(row["windows"])
      assert len(row[state]["histogram"]) == len(row["bins"]) - 1
      assert abs(sum(row[state]["histogram"]) - 1) < 1e-6


def write_summaries(folder):
  """Writes summaries like those of a killed training with attention_summaries.gin."""
  with tf.Graph().as_default(), tf.summary.FileWriter(str(folder)) as writer:
    for step, alpha in ((1, .5), (3, .75)):
      writer.add_summary(tf.Summary(value=[
          tf.Summary.Value(tag=tag, simple_value=alpha) for tag in (
              "attention/encoder/block_001/alpha/V", "loss")]), step)
  path, = folder.glob("events.out.tfevents.*")
  with path.open("ab") as f:
    f.write(b"half a record")


def test_a_page_holds_the_weights_of_the_layers(trained, made, expected):
  page = pages.data(made[0] / "page.html")
  layers = {layer["name"]: layer for layer in page["layers"]}
  assert list(layers) == list(expected["trained"])
  for state, of_layers in expected.items():
    for name, attention in of_layers.items():
      assert layers[name]["tokens"] == attention.tokens
      np.testing.assert_allclose(
          pages.weights(page, name, state),
          np.where(attention.mask, attention.weights, np.nan), atol=1.1e-5)
  check_alpha(layers, trained)


def check_alpha(layers, folder):
  """Compares the course of alpha with the variables of the checkpoints."""
  assert "alpha" not in layers["decoder/0"]
  for name in ("encoder/0", "encoder/1", "decoder/1"):
    stack, block = name.split("/")
    course = layers[name]["course"]
    assert course["steps"] == [0, 5]
    for state, step, alpha in zip(
        ("initial", "trained"), course["steps"], course["alpha"]):
      variable = tf.train.load_variable(
          str(folder / f"model.ckpt-{step}"),
          f"{stack}/block_00{block}/layer_000/SyntheticAttention/alpha")
      np.testing.assert_allclose(
          alpha, reference.softmax(variable.astype(float)), atol=1e-4)
      assert layers[name]["alpha"][state] == alpha
    assert course["means"] == [
        [[], []], [[1, 3], [.5, .75]] if name == "encoder/1" else [[], []]]


@pytest.mark.slow
def test_a_page_without_step_0_begins_with_new_values(trained, tmp_path):
  copy_model(trained, tmp_path, "model.ckpt-5*")
  plot_attention.main([
      f"--model_dir={tmp_path}", f"--html={tmp_path / 'page.html'}",
      "--layers=decoder/0", "--length=7"])
  page = pages.data(tmp_path / "page.html")
  layer, = page["layers"]
  assert page["about"]["initial"] == "new initial values"
  assert layer["tokens"] == [None] * 7
  assert layer["weights"]["initial"] != layer["weights"]["trained"]
  r = tf.train.load_variable(str(tmp_path / "model.ckpt-5"),
                             "decoder/block_000/layer_000/SyntheticAttention/R")
  np.testing.assert_allclose(
      np.nan_to_num(pages.weights(page, "decoder/0", "trained")), reference.softmax(
          np.where(np.tril(np.ones((7, 7))), r[:, :7, :7], -1e30)), atol=1.1e-5)


@pytest.mark.slow
def test_a_damaged_checkpoint_on_the_way_is_named_and_no_page_written(
    trained, tmp_path):
  copy_model(trained, tmp_path, "model.ckpt-*")
  (tmp_path / "model.ckpt-3.index").write_text("half")
  assert "plot_attention: model.ckpt-3 in " in stopped(
      f"--model_dir={tmp_path}", f"--html={tmp_path / 'page.html'}",
      "--layers=encoder/0", "--input=names")
  assert not list(tmp_path.glob("page*"))


@pytest.mark.parametrize("flags, message", [
    ([], "encoder/0 is R+V, whose attention depends on the tokens; give a text "
     "with --input"),
    (["--layers=encoder/2"], "--layers names 'encoder/2', but the model has "
     "encoder/0, encoder/1, decoder/0, decoder/1; choose"),
    (["--step=3"], "--step is 3 but"),
    (["--input=a", "--input=b", "--target=c"], "there are 2 inputs but 1 targets"),
    (["--input=a", "--example=1"], "--example is 1 but there are 1 examples"),
    (["--layers=decoder/0", "--length=17"],
     "`RandomLogits.max_length` is 16 but the sequence has length 17"),
    (["--gin_param=d_model = 12"], "`d_model` is 12, but 10 there"),
    (["--input_file=blank"], "line 2 is blank"),
    (["--html=blank"], "--html is 'blank' but must end in .html"),
])
def test_a_mistake_ends_in_one_sentence(
    trained, tmp_path, flags, message, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "blank").write_text("one\n\ntwo\n")
  assert message in stopped(f"--model_dir={trained}", "--output=out", *flags)


def test_a_folder_without_checkpoint_or_gin_is_named(trained, tmp_path):
  flags = f"--model_dir={tmp_path}", "--output=out"
  assert "holds no checkpoint" in stopped(*flags)
  copy_model(trained, tmp_path, "model.ckpt-5*")
  (tmp_path / "operative_config.gin").unlink()
  assert "holds no operative_config.gin" in stopped(*flags)
