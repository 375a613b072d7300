"""The planner compiles what each core runs, and says why a layout fails."""

import contextlib
import io
import json
import os

import mesh_tensorflow as mtf
import pytest
from support import plans
from support import stacks
from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import layouts
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import modules
from synthesizer_mtf.tools.plan_pod import planning
from synthesizer_mtf.tools.plan_pod import plot
from synthesizer_mtf.tools.plan_pod import pods
from synthesizer_mtf.tools.plan_pod import report
import tensorflow.compat.v1 as tf

TWO_BY_TWO = pods.parse_topology("2x2")
FLOAT32 = "utils.get_variable_dtype.activation_dtype = 'float32'"
ONE_STACK = "utils.run.model_type = 'lm'", "utils.run.sequence_length = {'targets': 8}"


def test_a_topology_has_cores_and_the_names_of_mesh_and_of_the_compiler():
  for name, cores, mesh_name, compiler_name in (
      ("2x2", 8, "2x2", "v3:2x2"), ("v2-8", 8, "v2-8", "v2:2x2"),
      ("v3-2048", 2048, "v3-2048", "v3:32x32"), ("v5e:4x8", 32, "4x8", "v5e:4x8"),
      ("v4:2x2x4", 32, "2x2x4", "v4:2x2x4"), ("v5p:2x2x1", 4, "2x2x1", "v5p:2x2x1")):
    topology = pods.parse_topology(name)
    assert (topology.cores, topology.mesh_name) == (cores, mesh_name)
    assert topology.compiler_name == compiler_name
  assert pods.parse_topology("h100:8").cores == 8
  assert pods.parse_topology("4", "l4") == pods.Topology("4", "l4", (4, 1, 1))


def test_an_unknown_topology_is_an_error_that_names_those_known():
  for name in ("v2-1024", "v3-12", "v9-8", "2x0", "x2", "big", "v5e:4", "h100:2x2"):
    with pytest.raises(ValueError, match="unknown topology") as error:
      pods.parse_topology(name)
    assert repr(name) in str(error.value) and "v3-2048" in str(error.value)


MODULE = """\
HloModule jit, is_scheduled=true

%body.1 (p: (f32[3,5])) -> (f32[3,5]) {
  %p = (f32[3,5]{1,0}) parameter(0)
  %x.1 = f32[3,5]{1,0:T(8,128)} add(%a, %b), backend_config={"estimated_cycles":"70"}
  ROOT %t = (f32[3,5]{1,0}) tuple(%x.1), backend_config={"estimated_cycles":"900"}
}

%few.4 (q: f32[50]) -> f32[6,4] {
  ROOT %h = f32[6,4] add(%q, %q), backend_config={"estimated_cycles":"3"}
}

%many.5 (q: f32[50]) -> f32[6,4] {
  %i = f32[2,4]{1,0} all-reduce(%q), replica_groups={{0,1}}, to_apply=%s
  ROOT %j = f32[6,4] add(%i, %q), backend_config={"estimated_cycles":"500"}
}

%fused.2 (q: f32[50]) -> f32[6,4] {
  %s = (f32[6,4], f32[12,4]) all-gather-start(%q), dimensions={0}
  ROOT %g = f32[12,4]{1,0} all-gather-done(%s)
}

ENTRY %main.3 (a: f32[3,5]) -> f32[3,5] {
  %f = f32[6,4] fusion(%a), calls=%fused.2, backend_config={"estimated_cycles":"20"}
  %w = (f32[3,5]{1,0}) while(%f), condition=%cond, body=%body.1
  %c = f32[6,4] conditional(%p, %f, %f), branch_computations={%many.5, %few.4}
  %r = bf16[7,4]{1,0:T(8,128)(2,1)} all-reduce(%f), replica_groups={{0,1}}, to_apply=%s
  ROOT %u = f32[9] copy(%r), backend_config={"estimated_cycles":"9223372036854775807"}
}
"""


def test_a_module_gives_cycles_and_collectives():
  assert modules.summarized(MODULE) == {
      "cycles": 23, "loop_cycles": 70, "most_cycles": 520, "most_loop_cycles": 70,
      "loop_collectives": {},
      "collectives": {"all-reduce": [1, 56], "all-gather": [1, 192]}}


@stacks.only_new
@pytest.mark.parametrize("params, texts, fits", [
    (["num_heads = 3", "utils.tpu_mesh_shape.model_parallelism = 4",
      "synthesizer_stack.attention = 'R'"],
     ["heads = 3", "mesh shapes for 8 cores that fit: batch:8."], ["batch:8"]),
    (["d_ff = 10", "utils.tpu_mesh_shape.model_parallelism = 4"],
     ["d_ff = 10 of [d_model=16, d_ff=10] does not divide by mesh dimension model = 4"],
     ["batch:8", "batch:4,model:2"]),
    (["utils.run.batch_size = 6"], ["batch = 6", "by mesh dimension batch = 4"],
     ["batch:2,model:4"]),
    (["utils.run.mesh_shape = 'batch:4'"],
     ["`utils.run.mesh_shape` is 'batch:4', of 4 cores", "the topology 2x2 has 8"],
     ["batch:8", "batch:4,model:2", "batch:2,model:4", "model:8"])],
    ids=["heads", "feed-forward layer", "batch", "size"])
def test_what_does_not_fit_is_named_with_mesh_shapes_that_fit(
    params, texts, fits):
  result = plans.plan(*params, topology="2x2")
  assert (result["status"], result["mesh_shapes_that_fit"]) == ("invalid", fits)
  assert all(text in result["reason"] for text in texts), result["reason"]


def test_two_dimensions_on_one_mesh_dimension_are_named():
  shape = mtf.Shape([mtf.Dimension("heads", 4), mtf.Dimension("length", 8)])
  for rules, problem in (("heads:model", None), ("heads:model,length:model", (
      "length and heads of [heads=4, length=8] are both split over mesh dimension "
      "model"))):
    assert problem == layouts.problem([shape], mtf.convert_to_shape("model:2"),
                                      mtf.convert_to_layout_rules(rules))


def test_variables_that_the_model_dimension_should_split_are_found():
  graph = mtf.Graph()
  with tf.Graph().as_default():
    mtf.get_variable(mtf.Mesh(graph, "mesh"), "block_003/w", mtf.Shape(
        [mtf.Dimension("d_in", 12), mtf.Dimension("d_out", 20)]))
  for layout, size in (("batch:batch", 4 * 12 * 20),
                       ("batch:batch,d_out:model", 4 * 12 * 20 // 2)):
    shapes = (mtf.convert_to_shape("batch:4,model:2"),
              mtf.convert_to_layout_rules(layout))
    assert layouts.slice_bytes(graph.all_variables[0], *shapes) == size
    assert [*layouts.replicated(graph.all_variables, *shapes, least_bytes=1)] == (
        [] if "model" in layout else [
            "block_*/w [d_in=12, d_out=20], 0.0 MiB per core: model should split it, "
            "and divides d_in or d_out"])
    assert not [*layouts.replicated(graph.all_variables, *shapes, least_bytes=2**20)]


@stacks.only_new
@pytest.mark.slow
def test_a_core_has_its_share_of_variables_work_and_rows():
  result = plans.plan("synthesizer_stack.attention = 'R'", FLOAT32)
  # By hand: R, v and o in both stacks, cross-attention, feed-forward layers
  # with the split dimensions halved. Variables with d_model alone are whole.
  table, d, heads, d_kv, d_ff = 4 * 12 * 12, 16, 4, 6, 24
  projection = d * heads * d_kv
  padded_vocabulary = 128  # As Mesh pads the 32 tokens.
  split = (padded_vocabulary * d + 2 * (table + 2 * projection + 2 * d * d_ff) +
           4 * projection)
  whole = d * (2 + 1) + d * (3 + 1)
  assert result["status"] == "ok" and result["mesh_shape"] == "batch:2,model:2"
  assert result["parameters"] == split + whole
  core = result["per_core"]
  assert core["parameter_bytes"] == 4 * (split // 2 + whole)
  rows = 4 * 3 * 4 * (12 + 8)  # Ids, segments and positions of half of 8 rows.
  kept = core["parameter_bytes"] + core["optimizer_bytes"] + rows
  assert kept <= core["argument_bytes"] < kept + 256  # Scalars.
  assert core["total_bytes"] == sum(core[f"{name}_bytes"] for name in (
      "argument", "temporary", "output", "code"))
  assert result["fits"] == "yes" and result["hbm_bytes"] == 16 * 2**30
  assert core["collectives"]["all-reduce"][1] > core["parameter_bytes"]
  alone = plans.plan("synthesizer_stack.attention = 'R'", FLOAT32,
                     "utils.tpu_mesh_shape.model_parallelism = 1", topology="v5e:1x1")
  assert alone["per_core"]["collectives"] == {}
  assert .2 < core["operations"] / alone["per_core"]["operations"] < .4


@stacks.only_new
@pytest.mark.slow
def test_a_plan_of_two_depths_is_extended_to_all_blocks_of_a_gpu():
  model = "synthesizer_stack.attention = 'V'", "num_layers = 3", *ONE_STACK
  whole, extended = (plans.plan(*model, topology="h200:4", layers=layers)
                     for layers in ((), (1, 2)))
  for name in ("parameters", "batch_size", "mesh_shape", "hbm_bytes"):
    assert extended[name] == whole[name], name
  for name in ("parameter", "optimizer", "argument"):
    assert extended["per_core"][f"{name}_bytes"] == whole["per_core"][f"{name}_bytes"]
  assert extended["per_core"]["operations"] == pytest.approx(
      whole["per_core"]["operations"], rel=.01)
  assert extended["hbm_bytes"] == 141 * 2**30 and extended["compiler"] == "host"
  assert "No time is estimated" in report.table([extended])
  assert "`num_layers` of 1 and 2" in report.table([extended])


@stacks.only_new
@pytest.mark.slow
def test_microbatches_keep_less_and_reduce_gradients_once():
  bind = "utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = "
  whole, split = [plans.plan(
      bind + tokens, "utils.run.batch_size = 32", *ONE_STACK,
      "utils.tpu_mesh_shape.model_parallelism = 1") for tokens in ("None", "24")]
  assert (whole["microbatches"], split["microbatches"]) == (1, 4)
  assert (split["per_core"]["temporary_bytes"] <
          whole["per_core"]["temporary_bytes"])
  assert whole["per_core"]["loop_collectives"] == {}


def test_the_line_through_two_depths_never_has_less_memory_than_either(monkeypatch):
  kept = {2: 900, 4: 700}  # As libtpu keeps for R: less in the deeper model.

  def compiled(variant, topology, options, number):
    layers = int(number.removeprefix("num_layers = "))
    return {"status": "ok", "batch_size": 8, "per_core": {
        "operations": 10 + 3 * layers, "temporary_bytes": kept[layers],
        "compiling_seconds": 5}}

  monkeypatch.setattr(planning, "_compiled", compiled)
  variant = planning.Variant("R", ["models/bi_v1.gin"], ["num_layers = 12"])
  extended = planning._extended(variant, TWO_BY_TWO, planning.Options(layers=(2, 4)))
  assert extended["per_core"] == {
      "operations": 46, "temporary_bytes": 900, "compiling_seconds": 10}
  assert (extended["layers"], extended["batch_size"]) == (12, 8)


def test_memory_is_surely_too_small_by_libtpu_or_for_the_arguments_alone():
  for compiler, arguments, total, answer in (
      ("tpu", 3, 10, "yes"), ("host", 3, 10, "yes"), ("tpu", 3, 11, "no"),
      ("host", 3, 11, "perhaps"), ("host", 11, 12, "no")):
    assert planning._fits({"argument_bytes": arguments, "total_bytes": total}, {
        "compiler": compiler, "hbm_bytes": 10}) == answer


def test_a_python_or_a_compiler_that_is_missing_is_one_sentence(monkeypatch):
  monkeypatch.setattr(
      compiling.importlib.util, "find_spec", lambda name: name == "jax" or None)
  if stacks.IS_NEW:
    assert compiling.choose(None, TWO_BY_TWO) == "host"
    with pytest.raises(ValueError, match="--compiler=tpu needs libtpu, .*mtf.tpu.'"):
      compiling.choose("tpu", TWO_BY_TWO)
    with pytest.raises(ValueError, match="h100:8, which are GPUs; leave out"):
      compiling.choose("tpu", pods.parse_topology("h100:8"))
  monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match="which needs Python 3.12 or 3.13 and JAX"):
    compiling.choose(None, TWO_BY_TWO)


def test_refusals_are_one_sentence():
  for said, sentence in (
      ('UNIMPLEMENTED: no %op, metadata={op_name="encoder/block_000/R"}',
       "at encoder/block_000/R: UNIMPLEMENTED: no %op"),
      ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory for HLO "
       "temporaries (45.11G) exceeds available HBM (15.75G). HLO",
       "it needs 45.11 GiB of a core's memory, and there are 15.75: 29.36 GiB too")):
    assert compiling._sentence(said).startswith(sentence)


def test_a_compiler_that_ends_its_process_does_not_end_the_command():
  with compiling.Worker(1) as worker:
    assert worker.call(os._exit, 1) is None
    number = worker.call(os.getpid)
    assert number != os.getpid()
  with pytest.raises(ProcessLookupError):
    os.kill(number, 0)


@stacks.only_new
@pytest.mark.slow
def test_the_command_compares_sweeps_and_writes_files(tmp_path, monkeypatch):
  figures, out, err = [], io.StringIO(), io.StringIO()
  monkeypatch.setattr(plot.plt, "close", figures.append)
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    plan_pod.main([
        "--gin_file=models/bi_v1.gin", *(f"--gin_param={p}" for p in plans.TINY),
        "--attention=V,R", "--topology=v5e:2x2,v3-32", "--vocabulary_size=32",
        "--mode=eval", "--hbm_gib=8", "--compiler=host", f"--hlo={tmp_path}/hlo",
        f"--json={tmp_path}/a.json", f"--png={tmp_path}/a.png"])
  rows = [*map(json.loads, (tmp_path / "a.json").read_text().splitlines())]
  assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
  assert "stablehlo" in (tmp_path / "hlo/V_v5e_2x2_eval.mlir").read_text()
  assert "ENTRY" in (tmp_path / "hlo/V_v5e_2x2_eval.txt").read_text()
  assert [(p["name"], p["topology"], p["status"]) for p in rows] == [
      ("V", "v5e:2x2", "ok"), ("R", "v5e:2x2", "ok"),
      ("V", "v3-32", "invalid"), ("R", "v3-32", "invalid")]
  assert "R on v3-32 is not possible: batch = 8" in out.getvalue()
  assert "| V, eval | v5e:2x2  | batch:2,model:2 |" in out.getvalue()
  assert "plan: 100%" in err.getvalue() and "Path not found" not in err.getvalue()
  assert rows[0]["versions"]["jax"] and rows[0]["hbm_bytes"] == 8 * 2**30
  work, memory = figures[0].axes
  assert [t.get_text() for t in work.get_yticklabels()] == ["V, v5e:2x2", "R, v5e:2x2"]
  assert [bar.get_width() for bar in memory.patches] == pytest.approx(
      [plan["per_core"][f"{part}_bytes"] / 2**30
       for part in ("parameter", "optimizer", "temporary") for plan in rows[:2]])
  assert [list(line.get_xdata()) for line in memory.lines] == [[8, 8]]  # The limit.
  timed = [{**plan, "seconds": seconds, "most_seconds": most, "compiler": "tpu"}
           for plan, seconds, most in zip(rows, (.004, .002), (.004, .003))]
  line, = [line for line in report.table(timed).splitlines() if line.startswith("| R")]
  assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["2.0 to 3.0", "0.50"]
  assert plot.plot(timed, tmp_path / "b.png")
  time, _ = figures[1].axes
  assert [bar.get_width() for bar in time.patches] == [4, 2]
  assert [segment[1][0] for segment in time.collections[0].get_segments()] == [4, 3]
  assert not plot.plot(rows[2:], tmp_path / "none.png")


def test_every_recipe_for_pods_is_planned_with_the_model_of_its_first_command():
  recipes = {v.name: v for v in plan_pod._variants(plan_pod._parser().parse_args(
      ["--recipes", "--gin_param=d_ff = 8"]))}
  assert len(recipes) == 13
  assert recipes["c4"].files == ["models/table4/r+v.gin", "recipes/pod/c4.gin"]
  assert recipes["ag_news"].params == [
      "SyntheticAttention.relative_attention_type = 'bias_shared'", "d_ff = 8"]
  for recipe in recipes.values():
    recipe.parse(["num_layers = 1"])
    run = lowering.read_run(TWO_BY_TWO, vocabulary_size=32)
    assert run.mesh_shape.size == TWO_BY_TWO.cores


def test_table_4_and_all_stand_for_every_model_with_a_gin_file():
  rows = {v.paper: v.files for v in plan_pod.table_4()}
  assert rows["R+V"] == ["models/table4/r+v.gin"]
  assert {"Transformer", "D", "R", "R+V", "D+V"} <= set(rows)
  names = [name for name, _, _ in plan_pod.every_attention()]
  assert names[0] == "SelfAttention" and {"r+v", "linformer", "mixer"} <= set(names)
