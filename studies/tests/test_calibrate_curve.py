"""`studies.calibration.worth`: what the attention of a model is worth."""

import json

import gin
import numpy as np
import pytest
from studies.calibration import budget
from studies.calibration import drawing
from studies.calibration import graphs
from studies.calibration import heads
from studies.calibration import held_out
from studies.calibration import interpolation
from studies.calibration import speed
from studies.calibration import trained_order
from studies.calibration import worth
from support import models
from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tasks import vocabulary
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.tools.calibrate import attention_bindings
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import fitting
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import reading
import tensorflow.compat.v1 as tf

pytestmark = pytest.mark.slow

TEXTS = ["a bird\tein Tier", "the cat\teine Katze", "no\tnein", "yes I do\tja doch",
         "to be\tsein"]
UNIFORM = ("encoder/0", 1)  # A head whose queries are 0.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """The folder of a tiny model with random variables, and a task of `TEXTS`."""
  folder = tmp_path_factory.mktemp("model")
  (folder / "texts.tsv").write_text("".join(f"{text}\n" for text in TEXTS))
  lines = [
      *models.TINY, "num_layers = 1", "synthesizer_stack.attention = 'V'",
      "Unitransformer.positional_embedding = True",
      "get_vocabulary.mixture_or_task_name = 'synth_text_pairs'",
      "MIXTURE_NAME = 'synth_text_pairs'",
      f"{vocabulary.PARAMETER} = '{vocabulary.BYTES}'",
      f"synthesizer_mtf.tasks.pairs.train = '{folder}/texts.tsv'",
      f"synthesizer_mtf.tasks.pairs.validation = '{folder}/texts.tsv'",
      "utils.run.sequence_length = {'inputs': 13, 'targets': 11}",
      "utils.get_variable_dtype.master_dtype = 'float32'",
      "mesh_train_dataset_fn.pack = False"]
  gin_files.parse([], lines)
  shapes = graphs.Graph(reading.Data(None, "train", 2).spec).shapes
  generator = np.random.RandomState(0)
  values = {name: np.float32(0.5 * generator.randn(*shape))
            for name, shape in shapes.items()}
  queries = values["encoder/block_000/layer_000/SyntheticAttention/q"]
  queries.reshape(10, 2, 6)[:, UNIFORM[1]] = 0
  values["global_step"] = np.int64(7)
  checkpoint_writer.write(str(folder), "model.ckpt-7", values.items())
  (folder / "operative_config.gin").write_text("\n".join(lines) + "\n")
  return str(folder)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
  """The rows, output and folder of a run whose budget allows everything."""
  folder = tmp_path_factory.mktemp("run")
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(speed, "table", lambda rows, sizes, bias: f"{rows} {sizes} {bias}")
    worth.main([f"--model_dir={model}", "--to=R,D", f"--curve={folder}/curve",
                    "--orders=cost,divergence,trained", "--order_steps=4",
                    f"--json={folder}/found.jsonl", "--budget=1e9",
                    f"--output={folder}/model", "--batches=9", "--batch_size=2"])
  lines = (folder / "found.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines], folder


def of(rows, kind, **fields):
  return [row for row in rows if row["kind"] == kind and all(
      row[name] == value for name, value in fields.items())]


def log_perplexity(model_dir):
  """That of the second half of the held-out text."""
  gin_files.parse([f"{model_dir}/operative_config.gin"])
  data = graphs.Data(None, "validation", 2)
  graph = graphs.Graph(data.spec)
  graph.restore(tf.train.latest_checkpoint(model_dir))
  batches = list(data.batches(9))
  assert len(batches) == 3  # The last one has a row of padding.
  loss, tokens = graph.losses(batches[1])
  return float(np.sum(loss, dtype=np.float64) / tokens.sum())


def test_with_no_head_replaced_the_log_perplexity_is_that_of_v(model, run):
  rows, _ = run
  points = of(rows, "curve", share=0)
  assert len(points) == 2 * 3 * 3  # Words, stacks and both, orders.
  assert {row["log_perplexity"] for row in points} == {log_perplexity(model)}
  assert {row["cost"] for row in points} == {0}


def test_with_all_heads_replaced_it_is_that_of_the_model_that_is_written(run):
  rows, folder = run
  chosen, = of(rows, "budget")
  assert len(chosen["layers"]) == 2
  np.testing.assert_allclose(
      chosen["log_perplexity"], log_perplexity(str(folder / "model")), rtol=1e-6)
  gin_files.parse([str(folder / "model" / "operative_config.gin")])
  assert gin.query_parameter("decoder/synthesizer_stack.attention") == [
      chosen["layers"]["decoder/0"]]
  for word in "RD":
    ends = of(rows, "curve", to=word, stack="both", share=1)
    assert len({end["log_perplexity"] for end in ends}) == 1
    assert ends[0]["replaced"] == 4 and ends[0]["cost"] != 0


def test_a_head_with_uniform_attention_is_replaced_at_no_cost(run):
  rows, _ = run
  layer, head = UNIFORM
  for row in of(rows, "head"):
    is_uniform = (row["layer"], row["head"]) == UNIFORM
    assert (abs(row["cost"]) < 1e-6) == is_uniform
    assert (row["divergence"] < 1e-6) == is_uniform
    assert row["constant_entropy"] == pytest.approx(
        row["entropy"], abs=1e-5) or not is_uniform
  cheapest = of(rows, "curve", to="R", stack="encoder", order="divergence", replaced=1)
  assert {abs(row["cost"]) < 1e-6 for row in cheapest} == {True}


def test_in_training_only_a_head_with_uniform_attention_keeps_its_weight(run):
  rows, _ = run
  for row in of(rows, "head"):
    is_uniform = (row["layer"], row["head"]) == UNIFORM
    assert (abs(row["weight"] - 0.5) < 0.005) == is_uniform


def test_the_trained_order_is_that_of_the_weights(run):
  rows, _ = run
  for word in "RD":
    first = min(of(rows, "head", to=word), key=lambda row: row["weight"])
    points = [row for stack in (first["layer"].split("/")[0], "both") for row in of(
        rows, "curve", to=word, stack=stack, order="trained", replaced=1)]
    assert {row["stack"] for row in points} > {"both"}
    assert len({row["cost"] for row in points} - {0}) == 1


OUTPUT = "encoder/block_000/layer_000/SyntheticAttention/o"


@pytest.fixture(scope="module")
def mixed(model):
  """(graph, layers, mixtures, batches) of the mixtures R+D+V, all heads V."""
  gin_files.parse([f"{model}/operative_config.gin"])
  path = tf.train.latest_checkpoint(model)
  data = reading.Data(None, "train", 2)
  v = graphs.Graph(data.spec)
  v.restore(path)
  chosen = [blocks.choose(word, v.layers) for word in "RD"]
  mixtures = held_out.parts(chosen)
  attention_bindings.choose(blocks.entries(v.layers, {
      name: interpolation.Notation("+".join(parts))
      for name, parts in mixtures.items()}),
                  blocks.lengths(v.layers), True)
  graph = graphs.Graph(data.spec, False, [
      *trained_order.variables(v.layers, mixtures), OUTPUT])
  batches = list(data.batches(3))
  held_out.HeldOut(graph, v.layers, mixtures, batches).restore(path, [
      fitting.variables(fitting.fit(v, lambda: batches, each, graph.shapes))
      for each in chosen])
  return graph, v.layers, mixtures, batches


def test_gradients_of_the_weights_are_those_of_finite_differences(mixed):
  graph, _, _, (batch, *_) = mixed
  generator = np.random.RandomState(3)
  alphas = {name: generator.randn(*shape) for name, shape in graph.shapes.items()
            if name.endswith("alpha")}
  assert {array.shape for array in alphas.values()} == {(2, 3)} and len(alphas) == 2

  def log_perplexity(name, index, step):
    moved = alphas[name].copy()
    moved[index] += step
    graph.session.assign({**alphas, name: moved})
    loss, tokens = graph.losses(batch)
    return loss.sum(dtype=np.float64) / tokens.sum()

  graph.session.assign(alphas)
  gradients = graph.gradients(batch)
  for name in alphas:
    expected = [[(log_perplexity(name, (head, part), 0.05) - log_perplexity(
        name, (head, part), -0.05)) / 0.1 for part in range(3)] for head in range(2)]
    np.testing.assert_allclose(gradients[name], expected, atol=1e-4, rtol=0.02)
    assert np.abs(expected).max() > 1e-3


def test_the_encoder_is_computed_once_while_none_of_its_heads_is_replaced(
    mixed, monkeypatch):
  graph, layers, mixtures, batches = mixed
  text = held_out.HeldOut(graph, layers, mixtures, batches)
  encoded, compute = [], graph.encoded
  monkeypatch.setattr(
      graph, "encoded", lambda batch: encoded.append(compute(batch)) or encoded[-1])
  for replaced in ({}, {("decoder/0", 1): "R"}, {("encoder/0", 0): "R"}):
    found = text.losses(replaced, range(3))  # Leaves the variables as they are.
    expected = map(np.concatenate, zip(*map(graph.losses, batches)))
    for each, wanted in zip(found, expected):
      np.testing.assert_array_equal(each, wanted)
  assert [each.shape for each in encoded] == [(2, 13, 10)] * 3
  assert not np.array_equal(graph.losses(batches[0], 0 * encoded[0]),
                            graph.losses(batches[0]))


def test_training_the_order_changes_no_variable_but_the_weights(mixed):
  graph, layers, mixtures, batches = mixed
  alphas = trained_order.variables(layers, mixtures)
  before = {name: graph.variable(name) for name in graph.shapes}
  first, second = (trained_order.train(
      graph, layers, mixtures, dict.fromkeys(mixtures, "D"), batches)
                   for _ in range(2))
  for name, value in before.items():
    assert np.array_equal(graph.variable(name), value) == (name not in alphas)
  for name in alphas:  # R, the other word, keeps out.
    alpha = graph.variable(name)
    assert (alpha[:, 0] < -60).all() and (np.abs(alpha[:, 1:]) < 0.2).all()
  assert sorted(first, key=first.get) == sorted(second, key=second.get)
  assert second == pytest.approx(first, abs=1e-6)


def test_a_constant_head_is_replaced_before_one_that_looks_at_tokens(mixed):
  """The output of the latter is first trained, so that looking at tokens pays."""
  graph, layers, mixtures, batches = mixed
  layer, constant = UNIFORM
  held_out.HeldOut(graph, layers, mixtures, batches).losses({}, [0])  # V, all of it.
  before = graph.variable(OUTPUT)
  value = before.copy()
  for step in range(30):
    gradient = graph.gradients(batches[step % 3])[OUTPUT]
    gradient.reshape(2, 6, 10)[constant] = 0
    value -= 0.1 * gradient / np.abs(gradient).max()
    graph.session.assign({OUTPUT: value})
  found = trained_order.train(graph, layers, mixtures, {layer: "R"}, batches * 10)
  graph.session.assign({OUTPUT: before})
  assert found[layer, constant] == pytest.approx(0.5, abs=0.01)
  assert found[layer, 1 - constant] > 0.65


def test_the_picture_is_written_twice(run):
  _, folder = run
  assert (folder / "curve" / "curve.png").stat().st_size > 10000
  assert (folder / "curve" / "curve.svg").stat().st_size > 10000


def test_each_held_out_text_comes_once(model):
  gin_files.parse([f"{model}/operative_config.gin"])
  batches = list(graphs.Data(None, "validation", 2).batches(9))
  rows = np.concatenate([batch["inputs"] for batch in batches])
  assert len(rows) == 6 and len({tuple(row) for row in rows}) == 6
  assert (rows.sum(-1) == 0).sum() == 1


def test_entropy_and_divergence_of_a_constant_attention_are_those_of_its_rows():
  generator = np.random.RandomState(1)
  logits = generator.randn(2, 5, 5)
  found = means.Means(2, 5)
  entropies, divergences = [], []
  for length in (5, 3, 1, 3):
    for query in range(length):
      weights = generator.dirichlet(np.ones(length), 2)
      entropy = -(weights * np.log(weights)).sum(-1)
      found.weights[:, query, :length] += weights
      found.pairs[query, :length] += 1
      found.entropies[:, query] += entropy
      constant = np.exp(logits[:, query, :length])
      constant /= constant.sum(-1, keepdims=True)
      entropies.append(-(constant * np.log(constant)).sum(-1))
      divergences.append((weights * np.log(weights / constant)).sum(-1))
  np.testing.assert_allclose(found.constant_entropy(logits), np.mean(entropies, 0))
  np.testing.assert_allclose(found.divergence(logits), np.mean(divergences, 0))


class Additive:
  """Held-out text for which each replaced head or layer costs something."""

  first, second = "first", "second"

  def __init__(self, costs):
    self.costs = costs

  def heads(self, chosen):
    return {(name, head): target for name, target in chosen.items() for head in (0, 1)}

  def cost(self, replaced, half):
    cost = sum(self.costs[(half, *head, target)] for head, target in replaced.items())
    return held_out.Cost(2 * (1 + cost), cost, 0.0)


def layer_costs(**costs):
  return Additive({("first", name, head, target): cost / 2
                   for name, of_layer in costs.items()
                   for target, cost in of_layer.items() for head in (0, 1)})


def test_a_budget_chooses_the_cheapest_layers_with_their_cheapest_targets():
  text = layer_costs(a={"R": 0.5, "T": 0.25}, b={"R": -0.25}, c={"R": 0.75}, d={"R": 4})
  words = [{"a": "R", "b": "R", "c": "R", "d": "R"}, {"a": "T"}]
  assert budget.choose(text, words, 0.0) == {"a": "T", "b": "R"}
  assert budget.choose(text, words, 0.75) == {"a": "T", "b": "R", "c": "R"}
  assert budget.choose(text, words[:1], 0.0) == {"b": "R"}


def test_a_budget_of_0_keeps_v_where_every_replacement_costs():
  assert budget.choose(layer_costs(a={"R": 0.5}, b={"R": 1e-6}), [
      {"a": "R", "b": "R"}], 0.0) == {}


def test_the_curve_replaces_the_cheapest_heads_first_and_reports_on_other_text():
  numbers = {("enc/0", 0): 3, ("enc/0", 1): 1, ("dec/0", 0): 0, ("dec/0", 1): 2}
  text = Additive({(half, *head, "R"): factor * cost for head, cost in numbers.items()
                   for half, factor in (("first", 1), ("second", 10))})
  found = [heads.Head(*head, 0, 0, -cost, {"R": text.cost({head: "R"}, "first")},
                      {"R": (cost - 1.5) ** 2 + 0.1 * cost})
           for head, cost in numbers.items()]
  points = heads.curve(text, found, {"R": {"enc/0": "R", "dec/0": "R"}},
                       ["cost", "divergence", "trained"])
  costs = {(each.stack, each.order, each.replaced): each.cost.cost for each in points}
  assert [costs["both", "cost", n] for n in range(5)] == [0, 0, 10, 30, 60]
  assert [costs["both", "divergence", n] for n in range(5)] == [0, 30, 50, 60, 60]
  assert [costs["both", "trained", n] for n in range(5)] == [0, 10, 30, 30, 60]
  assert [costs["enc", "cost", n] for n in range(3)] == [0, 10, 40]
  figure = drawing.draw(found, points, ["R"])
  above, below = figure.subfigs
  assert [axis.get_title() for axis in below.axes] == ["enc", "dec", "both"]
  assert np.ma.getdata(above.axes[1].images[0].get_array()).tolist() == [
      [300, 100], [0, 200]]
  assert "| R  | both  | cost" in heads.curve_table(points)


def test_the_standard_error_is_that_of_a_ratio_of_sums():
  generator = np.random.RandomState(2)
  before = generator.uniform(1, 4, 90)
  after = 1.1 * before + generator.randn(90)

  class Graph:
    replaced = False

    @property
    def session(self):
      return self

    def assign(self, values):
      self.replaced = values["p/alpha"][0, 0] > 0

    def encoded(self, batch):
      return None

    def losses(self, batch, encoded):
      loss = (after if self.replaced else before)[batch]
      return np.append(loss, 0), np.append(2 * np.ones(len(loss)), 0)

  layer = moments.Layer("a", "p/", "", "V", 1, 4, True)
  text = held_out.HeldOut(Graph(), {"a": layer}, {"a": ["R", "V"]},
                          [np.arange(0, 90, 2), np.arange(1, 90, 2)])
  cost = text.cost({("a", 0): "R"}, [*text.first, *text.second])
  assert cost.log_perplexity == pytest.approx(after.mean() / 2)
  assert cost.cost == pytest.approx(after.sum() / before.sum() - 1)
  without = (after.sum() - after) / (before.sum() - before)  # The jackknife.
  assert cost.error == pytest.approx(
      np.sqrt(89 / 90 * np.sum((without - without.mean()) ** 2)), rel=0.05)


def test_a_choice_of_layers_is_a_word_of_the_benchmark(model):
  gin_files.parse([f"{model}/operative_config.gin"])
  layers = {f"{stack}/{block}": moments.Layer(
      f"{stack}/{block}", "", stack, "V", 2, 13, True)
            for stack in ("encoder", "decoder") for block in range(2)}
  assert speed.word(layers, {"encoder/1": "R"}) == "[V,R]/V"
  assert speed.word(layers, dict.fromkeys(layers, "T")) == "T/T"
  assert speed.gin_lines(layers, {"decoder/0": "R"}) == [
      "decoder/synthesizer_stack.attention = ['R', 'V']"]
  sizes = speed.sizes(layers)
  assert (sizes["num_layers"], sizes["inputs"], sizes["d_ff"]) == (2, 13, 14)
  del layers["decoder/1"]
  assert speed.sizes(layers) is None


@pytest.mark.parametrize("flags, said", [
    (["--to=R"], "worth writes nothing; give --output"),
    (["--to=R,T", "--output={}/new"], "--output holds one model, but --to is 'R,T'"),
    (["--to=R", "--curve={}", "--heads=0"], "--heads is for a model in --output"),
    (["--to=R", "--output={}/new", "--json={}/x"], "--json holds what --curve"),
    (["--to=R", "--curve={}", "--json={}/none/x"], "there is no folder"),
    (["--to=R", "--curve={}", "--split=dev"], "`--split` is 'dev', but"),
    (["--to=R", "--curve={}", "--task=synth_text_pairs",
      "--gin_param=mesh_train_dataset_fn.use_cached = True"], "which `--task` names"),
    (["--to=R", "--curve={}", "--gin_param=mesh_train_dataset_fn.use_cached = True"],
     "which `MIXTURE_NAME` names"),
    (["--to=R", "--curve={}", "--orders=cost,costs"],
     "'costs' is not an order; name some of cost, divergence, trained"),
    (["--to=R", "--curve={}", "--orders=trained", "--order_steps=0"],
     "0 is not at least 1"),
    (["--to=R", "--curve={}", "--order_steps=9"],
     "--order_steps is 9, but no order is trained"),
    (["--to=R", "--budget=1", "--orders=trained"], "--orders and --order_steps are"),
    (["--to=R,Fix", "--curve={}"], "--to names R and Fix for encoder/0"),
    (["--to=R,Q", "--curve={}"], "--to names 'Q'"),
    (["--to=R", "--curve={}/checkpoint"], "which is a file"),
    (["--to=R", "--budget=-0.1"], "-0.1 is not at least 0"),
    (["--to=R", "--budget=much"], "'much' is not a number"),
    (["--to=R", "--curve={}", "--held_out=1"], "1 is not at least 2")])
def test_bad_input_is_said_before_anything_is_read(
    flags, said, model, monkeypatch, capsys):
  def read(*args):
    raise AssertionError("a batch was read")

  monkeypatch.setattr(reading.Data, "batches", read)
  with pytest.raises(SystemExit) as error:
    worth.main([f"--model_dir={model}", *(flag.format(model) for flag in flags)])
  assert said in f"{error.value}{capsys.readouterr().err}"


def test_text_that_fills_one_batch_is_too_little(model):
  with pytest.raises(checks.Error, match="fills 1 batch of --batch_size rows"):
    held_out.HeldOut(None, {}, {}, [{}])
