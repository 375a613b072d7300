"""The planner counts the work of a TPU core, and says why a layout fails."""

import contextlib
import io
import json

import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
from mesh_tensorflow import simd_mesh_impl
import pytest
from support import documents
from support import plans
from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plan_pod import counting
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import plot
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.tools.plan_pod import roofline
import tensorflow.compat.v1 as tf

TWO_BY_TWO = pods.parse_topology("2x2")
CHIP = pods.CHIPS["v3"]


# Topologies.


TOPOLOGIES = [
    ("2x2", 8, [2, 2, 1, 2], "2x2", "v3:2x2"),
    ("v2-8", 8, [2, 2, 1, 2], "v2-8", "v2:2x2"),
    ("v3-2048", 2048, [32, 32, 1, 2], "v3-2048", "v3:32x32"),
    ("v4:2x2x4", 32, [2, 2, 4, 2], "2x2x4", "v4:2x2x4"),
    ("v5e:4x8", 32, [4, 8, 1, 1], "4x8", "v5e:4x8"),
    ("v5p:2x2x1", 4, [2, 2, 1, 1], "2x2x1", "v5p:2x2x1")]


def test_a_topology_has_cores_and_the_names_of_mesh_and_of_the_compiler():
  for name, cores, shape, mesh_name, compiler_name in TOPOLOGIES:
    topology = pods.parse_topology(name)
    assert (topology.cores, topology.physical_shape) == (cores, shape), name
    assert (topology.mesh_name, topology.compiler_name) == (mesh_name, compiler_name)
    assert topology.device_assignment().num_replicas == cores


def test_an_unknown_topology_is_an_error_that_names_those_known():
  for name in ("v2-1024", "v3-12", "v9-8", "2x0", "x2", "big"):
    with pytest.raises(ValueError, match="unknown topology") as error:
      pods.parse_topology(name)
    assert repr(name) in str(error.value) and "v3-2048" in str(error.value)


def test_the_published_peak_gives_the_published_clock():
  for chip, megahertz in (
      ("v2", 700), ("v3", 940), ("v4", 1050), ("v5e", 1500), ("v5p", 1750)):
    assert pods.CHIPS[chip].clock == pytest.approx(1e6 * megahertz, rel=0.01), chip


# Counts, compared with counts by hand.

BATCH, D_IN, D_OUT = 16, 12, 20


def linear_step(mesh_impl_of, layout="batch:batch,d_out:model", loop=1):
  """Loss sum((x w)^2), lowered with its gradient and SGD."""
  graph = mtf.Graph()
  mesh = mtf.Mesh(graph, "mesh")
  batch, d_in, d_out = [
      mtf.Dimension(n, s) for n, s in (
          ("batch", BATCH), ("d_in", D_IN), ("d_out", D_OUT))]
  x = mtf.import_fully_replicated(
      mesh, tf.placeholder(tf.float32, [BATCH, D_IN]), mtf.Shape([batch, d_in]),
      name="x")

  def model(features):
    w = mtf.get_variable(mesh, "w", mtf.Shape([d_in, d_out]))
    y = mtf.einsum([features["x"], w], reduced_dims=[d_in])
    return {"loss": mtf.reduce_sum(mtf.square(y))}

  if loop > 1:
    grads, _ = mtf.serialize_training_step({"x": x}, model, batch, loop)
  else:
    grads = mtf.gradients(
        [model({"x": x})["loss"]], [graph.trainable_variables[0].outputs[0]])
  updates = optimize.SgdOptimizer(0.1).apply_grads(
      grads, graph.trainable_variables)
  mesh_impl = mesh_impl_of(mtf.convert_to_shape("batch:4,model:2"),
                           mtf.convert_to_layout_rules(layout))
  lowering = mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
  fetches = [lowering.lowered_operation(op) for op in updates]
  return fetches, graph, mesh_impl, lowering


def one_core(shape, layout):
  return lowering.OneCoreMeshImpl(shape, layout, TWO_BY_TWO)


def linear_counts(**kwargs):
  with tf.Graph().as_default(), lowering.control_flow_v2(False):
    fetches, graph, mesh_impl, _ = linear_step(one_core, **kwargs)
    counts = counting.count(
        fetches, mesh_impl.collectives, kwargs.get("loop", 1))
    return counts, graph, mesh_impl


@pytest.mark.parametrize("loop", [1, 2])
def test_a_core_multiplies_slices_and_reduces_the_gradient_once(loop):
  counts, graph, mesh_impl = linear_counts(loop=loop)
  # x w and x^T dy: a core has a quarter of the batch and half of d_out. Nothing
  # needs the gradient of x.
  assert counts.multiply_adds == 2 * (BATCH // 4) * D_IN * (D_OUT // 2)
  assert counts.allreduce_bytes() == {"batch": 4 * D_IN * (D_OUT // 2)}
  (collective,) = counts.collectives
  assert (collective.cores, collective.kind) == (4, "allreduce")
  assert counting.variable_bytes(graph, mesh_impl) == {
      "parameters": 4 * D_IN * D_OUT // 2, "optimizer": 0, "constants": 0}


def test_a_split_contraction_is_reduced_over_the_model_dimension():
  counts, _, _ = linear_counts(layout="batch:batch,d_in:model")
  assert counts.allreduce_bytes() == {
      "batch": 4 * (D_IN // 2) * D_OUT, "model": 4 * (BATCH // 4) * D_OUT}


def test_a_result_is_kept_unless_its_only_user_is_fused_with_it():
  with tf.Graph().as_default():
    a = tf.placeholder(tf.float32, [3, 5])
    product = tf.einsum("ij,jk->ik", a, tf.placeholder(tf.float32, [5, 7]))
    shifted = product + tf.placeholder(tf.float32, [7])
    total = tf.reduce_sum(tf.square(shifted) * 2)  # The factors are not kept.
    counts = counting.count([total.op, tf.exp(shifted).op], {})
  assert counts.multiply_adds == 3 * 5 * 7
  assert counts.activation_bytes == 2 * 4 * 21  # Two of four at once.
  assert counts.largest_activation[1] == 4 * 21


def test_the_counts_equal_those_of_mesh_tensorflows_own_implementation():
  lowered = []
  for make in (one_core, lambda shape, layout: simd_mesh_impl.SimdMeshImpl(
      shape, layout, None, TWO_BY_TWO.device_assignment())):
    with tf.Graph().as_default():
      lowered.append(linear_step(make)[3].counters)
  assert lowered[0] == lowered[1]
  assert sum(n for key, n in lowered[0] if key.startswith("allreduce/[0]")) == (
      8 * D_IN * D_OUT // 2)


@pytest.mark.parametrize("name, args", [
    ("allreduce", ([0, 1], "SUM")), ("alltoall", (1, 1, 0)),
    ("receive", (1, [None, 0, 1, 2]))])
def test_cores_communicate_as_in_mesh_tensorflows_own_implementation(name, args):
  for dtype in (tf.float32, tf.bfloat16, tf.int32):
    shape, layout = mtf.convert_to_shape("batch:8,model:4"), mtf.LayoutRules([])
    ours = lowering.OneCoreMeshImpl(shape, layout, pods.parse_topology("4x4"))
    theirs = simd_mesh_impl.SimdMeshImpl(
        shape, layout, logical_to_physical=[*map(ours.l2p, range(32))])
    with tf.Graph().as_default():
      x = tf.placeholder(dtype, [16, 24])
      y, z = (getattr(impl, name)(impl.LaidOutTensor([x]), *args).one_slice
              for impl in (ours, theirs))
    assert (y.shape, y.dtype) == (z.shape, z.dtype)
    y, z = (t.op.inputs[0].op if t.op.type == "Cast" else t.op for t in (y, z))
    assert y.inputs[0].dtype == z.inputs[0].dtype
    config = json.loads(y.get_attr("backend_config"))
    assert config["pairs" if name == "receive" else "groups"] == (
        tf.get_static_value(z.inputs[1]).tolist())
    chips = 16 if name == "allreduce" else 2
    assert ours.collectives[y.name] == counting.Collective(
        name, ("batch", "model") if chips == 16 else ("model",), 2 * chips, chips)


def test_variables_that_the_model_dimension_should_split_are_found():
  _, graph, mesh_impl = linear_counts(layout="batch:batch")
  (found,) = counting.replicated_variables(graph, mesh_impl, 1)
  assert found == {
      "variable": "w", "shape": f"[d_in={D_IN}, d_out={D_OUT}]",
      "mesh_dimension": "model", "count": 1, "bytes_per_core": 4 * D_IN * D_OUT,
      "could_split": ["d_in", "d_out"]}
  assert not counting.replicated_variables(graph, mesh_impl, 2**20)
  _, graph, mesh_impl = linear_counts()
  assert not counting.replicated_variables(graph, mesh_impl, 1)


# The roofline.


def test_products_and_communication_take_the_published_time():
  chip = CHIP._replace(tflops=2., link_gbps=8.)  # 1 TFLOPS for each core.
  ring = counting.Collective("allreduce", ("batch",), 8, 4)
  counts = counting.Counts(3 * 10**12, {ring: 10**9}, {}, 0, 0, ("", 0))
  seconds = roofline.estimate(counts, chip)
  assert seconds["matmul"] == pytest.approx(6)
  # 3/2 of 10^9 bytes, over two links of 10^9 bytes per second.
  assert seconds["communication"] == pytest.approx(0.75)
  assert seconds["step"] == pytest.approx(6.75)


def test_groups_that_share_chips_share_their_links():
  whole = counting.Collective("allreduce", ("batch",), 8, 4)
  half = counting.Collective("allreduce", ("batch",), 4, 4)
  on_chip = counting.Collective("allreduce", ("model",), 2, 1)
  times = [roofline.communication_seconds(c, 1000, CHIP)
           for c in (whole, half, on_chip)]
  assert times[1] == pytest.approx(2 * times[0])
  assert times[2] == pytest.approx(2 * 1000 / (CHIP.hbm_gbps * 1e9 / 2))


# Layouts.


@pytest.mark.parametrize("params, texts, fits", [
    (["num_heads = 3", "utils.tpu_mesh_shape.model_parallelism = 4",
      "synthesizer_stack.attention = 'R'"],
     ["heads = 3 of variable encoder/block_*/layer_000/",
      "does not divide by mesh dimension model = 4",
      "mesh shapes for 8 cores that fit: batch:8."], ["batch:8"]),
    (["d_ff = 10", "utils.tpu_mesh_shape.model_parallelism = 4"],
     ["d_ff = 10 of variable encoder/block_*/"], ["batch:8", "batch:4,model:2"]),
    (["utils.run.batch_size = 6"],
     ["batch = 6 of tensor", "does not divide by mesh dimension batch = 4"],
     ["batch:2,model:4"])], ids=["heads", "feed-forward layer", "batch"])
def test_a_size_that_does_not_divide_is_named_with_mesh_shapes_that_fit(
    params, texts, fits):
  result = plans.plan(*params)
  assert (result["status"], result["mesh_shapes_that_fit"]) == ("invalid", fits)
  assert all(text in result["reason"] for text in texts)


def test_two_dimensions_on_one_mesh_dimension_are_named():
  shape = mtf.Shape([mtf.Dimension("heads", 4), mtf.Dimension("length", 8)])
  (problem,) = layouts.find_problems(
      [("x/block_003/R", shape, True)], mtf.convert_to_shape("model:2"),
      mtf.convert_to_layout_rules("heads:model,length:model"))
  assert str(problem) == (
      "length and heads of variable x/block_*/R [heads=4, length=8] are both "
      "split over mesh dimension model")


def test_a_mesh_of_another_size_than_the_topology_is_an_error():
  with pytest.raises(ValueError) as error:
    plans.plan("utils.run.mesh_shape = 'batch:4'")
  assert "`utils.run.mesh_shape` is 'batch:4', of 4 cores" in str(error.value)
  assert "the topology 2x2 has 8" in str(error.value)
  assert "batch:8, batch:4,model:2" in str(error.value)


# Whole plans.


def test_parameters_per_core_follow_the_layout():
  result = plans.plan("synthesizer_stack.attention = 'R'")
  # By hand: R, v and o in both stacks, cross-attention, feed-forward layers
  # with the split dimensions halved. Variables with d_model alone are whole.
  table, d, heads, d_kv, d_ff = 4 * 12 * 12, 16, 4, 6, 24
  projection = d * heads * d_kv
  padded_vocabulary = 128  # As Mesh pads the 32 tokens.
  split = (padded_vocabulary * d + 2 * (table + 2 * projection + 2 * d * d_ff) +
           4 * projection)
  whole = d * (2 + 1) + d * (3 + 1)
  assert result["parameters"] == split + whole
  assert result["per_core"]["parameter_bytes"] == 4 * (split // 2 + whole)
  assert result["mesh_shape"] == "batch:4,model:2"


@pytest.mark.slow
def test_the_graph_does_not_grow_with_the_cores():
  small, large = [
      plans.plan("utils.run.batch_size = ('sequences_per_replica', 2)",
                 "utils.tpu_mesh_shape.model_parallelism = 4", topology=name)
      for name in ("v3-128", "v3-512")]
  assert small["operations"] == large["operations"]
  assert small["per_core"] == large["per_core"]


@pytest.mark.slow
def test_microbatches_equal_those_of_the_trainer():
  bind = "utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = "
  whole, split = [plans.plan(bind + tokens) for tokens in ("None", "12")]
  assert (whole["microbatches"], split["microbatches"]) == (1, 2)
  assert (split["per_core"]["activation_bytes"] <
          whole["per_core"]["activation_bytes"])
  # Gradients are reduced once for both microbatches; other sums, in each of them.
  for axis, size in whole["per_core"]["allreduce_bytes"].items():
    assert size <= split["per_core"]["allreduce_bytes"][axis] < 1.5 * size
  largest = split["largest_allreduces"]
  assert {e["times_per_step"] for e in largest} <= {1, 2}
  # The sum over heads after the output projection, in float32 or bfloat16.
  assert ["model"] in [
      e["mesh_dimensions"] for e in largest if e["times_per_step"] == 2]
  sizes = [e["bytes_per_core"] for e in largest]
  assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:1x1"])
def test_a_step_is_planned_for_chips_with_one_core_and_with_two(topology):
  parallelism = min(2, pods.parse_topology(topology).cores)
  found = plans.plan(f"utils.tpu_mesh_shape.model_parallelism = {parallelism}",
                     topology=topology)
  assert found["status"] == "ok" and found["hbm_bytes"] == 16 * 2**30


@pytest.mark.slow
def test_the_rows_of_stock_and_of_the_authors_can_be_asked_for():
  found = [plans.plan(attention=name, mode="eval")["per_core"]["multiply_adds"]
           for name in ("SelfAttention", "Synthesizer:random", "R")]
  assert len(set(found)) == 3


def test_memory_fits_if_even_the_upper_estimate_does():
  for variables, total, answer in ((3, 10, "yes"), (3, 11, "perhaps"), (11, 12, "no")):
    assert plan_pod._fits(variables, total, 10) == answer


def test_the_table_4_models_are_those_with_gin_files():
  rows = {v.paper: v.files for v in plan_pod.table_4()}
  assert rows["R+V"] == ["models/table4/r+v.gin"]
  assert {"Transformer", "D", "R", "R+V", "D+V"} <= set(rows)


# The command.


@pytest.fixture(scope="module", name="written")
def fixture_written(tmp_path_factory):
  """The streams, JSON lines and figure of a sweep of two attentions."""
  folder, figures = tmp_path_factory.mktemp("plans"), []
  out, err = io.StringIO(), io.StringIO()
  with (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch):
    patch.setattr(plot.plt, "close", figures.append)
    plan_pod.main([
        "--gin_file=models/bi_v1.gin", *(f"--gin_param={p}" for p in plans.TINY),
        "--attention=V,R", "--topology=2x2,v3-32", "--vocabulary_size=32",
        "--link_gbps=100", f"--json={folder}/a.json", f"--png={folder}/a.png"])
  lines = (folder / "a.json").read_text().splitlines()
  assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
  return out.getvalue(), err.getvalue(), [json.loads(line) for line in lines], figures


@pytest.mark.slow
def test_the_command_compares_sweeps_and_writes_files(written):
  out, err, rows, _ = written
  assert [(p["name"], p["topology"], p["status"]) for p in rows] == [
      ("V", "2x2", "ok"), ("R", "2x2", "ok"),
      ("V", "v3-32", "invalid"), ("R", "v3-32", "invalid")]
  assert "R on v3-32 is not possible: batch = 8" in out
  assert "| V    | 2x2      | batch:4,model:2 |" in out
  assert "plan: 100%" in err and "Path not found" not in err


@pytest.mark.slow
def test_the_fields_of_a_plan_agree_with_each_other(written):
  result = written[2][0]
  assert result["rates"] == {
      "tflops": 123, "hbm_gbps": 900, "hbm_gib": 32, "link_gbps": 100}
  core, seconds = result["per_core"], result["seconds"]
  assert core["total_bytes"] == sum(core[f"{k}_bytes"] for k in (
      "parameter", "optimizer", "constant", "activation"))
  assert core["optimizer_bytes"] > 0 and core["activation_bytes"] > 0
  assert set(core["allreduce_bytes"]) >= {"batch", "model"}
  assert result["fits"] == "yes" and result["hbm_bytes"] == 16 * 2**30
  assert seconds["step"] == pytest.approx(
      seconds["matmul"] + seconds["communication"])
  assert result["steps_per_second"] == pytest.approx(1 / seconds["step"])
  assert result["tokens_per_second"] == pytest.approx(
      8 * 12 * result["steps_per_second"])
  assert result["versions"]["tensorflow"]


@pytest.mark.slow
def test_the_picture_stacks_the_parts_of_a_step_and_of_the_memory(written):
  _, _, rows, (figure,) = written
  times, memory = figure.axes
  parts = "matmul", "communication"
  assert [bar.get_width() for bar in times.patches] == pytest.approx(
      [1e3 * plan["seconds"][part] for part in parts for plan in rows[:2]])
  assert [t.get_text() for t in times.get_legend().get_texts()] == [*parts]
  assert [t.get_text() for t in times.get_yticklabels()] == ["V", "R"]
  assert [bar.get_width() for bar in memory.patches] == pytest.approx(
      [plan["per_core"][f"{part}_bytes"] / 2**30
       for part in ("parameter", "optimizer", "activation") for plan in rows[:2]])
  assert [list(line.get_xdata()) for line in memory.lines] == [[16, 16]]  # The limit.


@pytest.mark.slow
def test_a_picture_of_several_topologies_has_a_line_for_each_attention(
    written, tmp_path, monkeypatch):
  figures = []
  monkeypatch.setattr(plot.plt, "close", figures.append)
  small = written[2][:2]
  large = [{**plan, "topology": "4x4", "cores": 32, "tokens_per_second": 3.0}
           for plan in small]
  assert plot.plot(small + large, tmp_path / "a.png")
  speed, memory = figures[0].axes
  assert [(line.get_label(), [*line.get_xdata()], [*line.get_ydata()])
          for line in speed.lines] == [
              (plan["name"], [8, 32], [plan["tokens_per_second"], 3]) for plan in small]
  assert [*memory.lines[0].get_ydata()] == pytest.approx(
      2 * [small[0]["per_core"]["total_bytes"] / 2**30])
  assert not plot.plot(written[2][2:], tmp_path / "none.png")
  assert not (tmp_path / "none.png").exists()


def test_every_recipe_for_pods_is_planned_with_the_model_of_its_first_command():
  found = {v.name: v for v in plan_pod.recipes()}
  assert len(found) == 13
  assert found["c4"].files == ["models/table4/r+v.gin", "recipes/pod/c4.gin"]
  assert found["ag_news"].params == [
      "SyntheticAttention.relative_attention_type = 'bias_shared'"]
  for recipe in found.values():
    recipe.parse(["num_layers = 1"])
    run = lowering.read_run(TWO_BY_TWO, vocabulary_size=32)
    assert run.mesh_shape.size == TWO_BY_TWO.cores


@pytest.mark.slow
def test_recipes_are_planned_with_the_bindings_of_their_first_command(
    tmp_path, monkeypatch):
  some = [r for r in plan_pod.recipes() if r.name in ("ag_news", "wmt14_ende")]
  monkeypatch.setattr(plan_pod, "recipes", lambda: some)
  path = tmp_path / "plans.jsonl"
  bindings = ["utils.run.batch_size = 3", "num_layers = 1"]
  with pytest.raises(SystemExit, match="batch"):  # A batch that no mesh can split.
    plan_pod.main(["--recipes", f"--json={path}",
                   *(f"--gin_param={param}" for param in bindings)])
  plans = {p["name"]: p for p in map(json.loads, path.read_text().splitlines())}
  assert {name: plan["gin_params"] for name, plan in plans.items()} == {
      recipe.name: [*recipe.params, *bindings] for recipe in some}


def test_all_stands_for_every_attention_with_a_gin_file():
  names = [name for name, _, _ in plan_pod.every_attention()]
  assert names[0] == "SelfAttention" and {"r+v", "linformer", "mixer"} <= set(names)


def test_the_page_has_a_line_for_every_recipe_of_pods_and_every_attention():
  lines = documents.read("docs/plan_a_pod_tables.md").splitlines()
  shown = {line.split("`")[1] for line in lines if line.startswith("| `")}
  assert {recipe.name for recipe in plan_pod.recipes()} <= shown
  assert {name for name, _, _ in plan_pod.every_attention()} <= shown
