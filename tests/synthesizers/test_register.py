"""A user's own synthesizing function, registered from a module outside the package.

The module is the one in docs/add_a_variant.md.
"""

import importlib.util
import sys
import types

import gin
import numpy as np
import pytest
from support import cases
from support import checkpoint_files
from support import decoding
from support import examples
from support import harness
from support import in_process
from support import launching
from support import models
from support import mtf_models
from support import own_attention
from support import reference
import synthesizer_mtf
from synthesizer_mtf import gin_internals
from synthesizer_mtf import gin_names
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.benchmark import __main__ as benchmark
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import measuring
from synthesizer_mtf.tools.benchmark import memory
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.hugging_face import __main__ as hugging_face
from synthesizer_mtf.tools.inspect_task import __main__ as inspect_task
from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plot_attention import __main__ as plot_attention
from synthesizer_mtf.trainer.checkpoints import warm_start_plan
import tensorflow.compat.v1 as tf

IMPORT = f"--module_import={own_attention.MODULE}"
CHOICE = "synthesizer_stack.attention = '{}'"


@pytest.fixture(autouse=True)
def outside(tmp_path):
  """The module lies in a folder of Python's path; nothing has imported it."""
  with own_attention.in_folder(tmp_path):
    yield


@pytest.fixture
def registered():
  return importlib.import_module(own_attention.MODULE)


def logits(p, call):
  """-s |j - i|: [heads, length, length]."""
  position = np.arange(call.x.shape[1])
  return -p["slope"][:, None, None] * abs(position[:, None] - position)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("decoder", [False, True])
def test_a_mixture_with_v_is_that_of_the_formula_in_packed_rows(decoder):
  ids = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 0, 0]])
  x = examples.tokens()
  layer = synthesizer_mtf.attention_layer(
      "ALiBi+V", num_heads=cases.HEADS, key_value_size=cases.D_KV, last=3)
  y, graph = harness.forward(layer, x, decoder, ids, packed=True)
  p = {name: value.astype(np.float64) for name, value in graph.variables.items()}
  alpha = reference.softmax(p["alpha"])[:, :, None, None]
  call = cases.Call(x, ids, cases.HEADS, decoder)
  mixed = alpha[:, 0] * logits(p, call) + alpha[:, 1] * cases.dot_product(p, call)
  expected = reference.output(mixed, p, x, reference.mask(ids, decoder), cases.HEADS)
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


@pytest.mark.usefixtures("registered")
def test_decoding_gives_the_argmax_of_the_logits_of_training():
  models.parse_gin([], [*models.TINY, CHOICE.format("ALiBi+V"), "num_layers = 1",
                        "Unitransformer.shared_embedding_and_softmax_weights = False"])
  decoding.check_greedy_decoding()


@pytest.mark.slow
@pytest.mark.usefixtures("parsed_flags")
def test_the_command_trains_from_a_warm_start_and_exports(
    tmp_path, sentencepiece_model):
  (tmp_path / "old").mkdir()
  slope = "{}/block_000/layer_000/SyntheticAttention/slope"
  checkpoint_files.save(tmp_path / "old", 5, shapes={slope.format("encoder"): [2]})
  old = mtf_models.variables(tmp_path / "old")
  command = in_process.Command(tmp_path, sentencepiece_model)

  def run(*bindings, files=()):
    return command.run("new", *mtf_models.FILES, *files, bindings=[
        CHOICE.format("V+ALiBi"), "utils.run.learning_rate_schedule = 0.1",
        launching.ADAFACTOR, *bindings], module_import=[own_attention.MODULE])

  assert run("ALiBiLogits.last = 4", "Mixture.initial_weights = {'ALiBi': 0.75}",
             f"warm_start.checkpoint = '{tmp_path}/old'",
             "warm_start.fresh = '(?<!/slope)$|^decoder'") == ""
  new, trained = (mtf_models.variables(tmp_path / "new", step) for step in (0, 1))
  np.testing.assert_allclose(  # In bfloat16.
      new[slope.format("encoder")], old[slope.format("encoder")], rtol=4e-3)
  np.testing.assert_allclose(new[slope.format("decoder")], [2.0 ** -2, 2.0 ** -4])
  alpha = new[slope.format("decoder").replace("slope", "alpha")]
  np.testing.assert_allclose(reference.softmax(alpha), [[0.25, 0.75]] * 2, atol=1e-2)
  for name in map(slope.format, ("encoder", "decoder")):
    assert (trained[name] != new[name]).all()
  assert run(f"export_path = '{tmp_path}/exported'",
             files=["infer.gin", "export.gin"]) == ""
  path, = tmp_path.glob("exported/*/variables")
  exported = tf.train.load_checkpoint(str(path / "variables"))
  np.testing.assert_array_equal(exported.get_tensor(name), trained[name])


def test_the_benchmark_has_a_row_for_the_function(capsys):
  tiny = ["--inputs=5", "--targets=4", "--batch=2", "--num_layers=1", "--d_model=6",
          "--num_heads=2", "--d_kv=3", "--d_ff=7", "--vocabulary=128"]
  benchmark.main([IMPORT, "--rows=ALiBi", "--reference=ALiBi", "--skip_train",
                  "--skip_decode", "--steps=1", "--warmup=1", *tiny])
  assert "| ALiBi" in capsys.readouterr().out

@pytest.mark.parametrize("tool, words", [
    (plan_pod, ["--topology=wrong"]),
    (plot_attention, ["--model_dir=missing", "--output=plots"]),
    (hugging_face, ["export", "missing", "--output=there"]),
    (inspect_task, ["missing"]),
    (reproduce, ["--table=4", "--scale=paper", "--rows=wrong"])])
def test_a_tool_imports_the_module_first(tool, words):
  with pytest.raises(SystemExit, match="missing|wrong"):
    tool.main([*words, IMPORT])
  assert "ALiBi" in functions.SYNTHESIZING_FUNCTIONS


def test_reproduce_hands_the_module_on_to_its_commands(capsys):
  reproduce.main(["--table=4", "--scale=paper", "--rows=R", IMPORT])
  _, *commands = capsys.readouterr().out.split("\nsynthesizer_mesh_transformer ")
  assert len(commands) > 1
  assert all(IMPORT in command for command in commands)


def test_the_processes_that_measure_memory_import_the_module(monkeypatch):
  commands = []

  def run(command, **kwargs):
    commands.append(command)
    return types.SimpleNamespace(returncode=0, stdout="1.0")

  monkeypatch.setattr(measuring.subprocess, "run", run)
  measuring.measure_memory([attentions.ROWS["V"]], model.Configuration(), 1,
                           lambda *_: None, modules=[own_attention.MODULE])
  (*_, name, configuration, module), = commands
  assert name == "V"
  with pytest.raises(ValueError, match="unknown row 'nothing'"):
    memory.main(["nothing", configuration, module])
  assert "ALiBi" in functions.SYNTHESIZING_FUNCTIONS


def test_modules_of_the_working_folder_are_found_but_hide_no_installed_ones(
    tmp_path, monkeypatch):
  for name in ("in_folder", "antigravity"):  # The second is one of Python's, too.
    (tmp_path / f"{name}.py").write_text("")
  monkeypatch.setattr(sys, "path", list(sys.path))
  monkeypatch.chdir(tmp_path)
  gin_names.import_modules(["in_folder"])
  assert sys.modules.pop("in_folder").__file__ == str(tmp_path / "in_folder.py")
  installed = importlib.util.find_spec("antigravity").origin
  assert not installed.startswith(str(tmp_path))


class _Base(synthesizer_mtf.SynthesizingFunction):

  def __init__(self, size=1):
    self.size = size

  def logits(self, inputs):
    return []


def define(name="Own", module="notebook", **attributes):
  """Makes a class as a module or a notebook's cell does."""
  return type(name, (_Base,), {"__module__": module, **attributes})


def test_a_cell_that_runs_again_replaces_the_class_also_in_gin():
  for size in (2, 3):
    cls = define()
    synthesizer_mtf.register("Own", cls)
    gin.bind_parameter("Own.size", size)
    gin.finalize()
    assert functions.SYNTHESIZING_FUNCTIONS["Own"] is cls
    assert functions.part_name(cls()) == "Own"
    layer = synthesizer_mtf.attention_layer("R+Own", num_heads=2, key_value_size=3,
                                            dropout_rate=0.0)
    assert type(layer.mixture.synthesizers[1]) is cls
    assert layer.mixture.synthesizers[1].size == size
    gin.clear_config()


def test_a_gin_configurable_keeps_its_name():
  cls = gin.configurable(define("Named"), module="theirs")
  synthesizer_mtf.register("Named", cls)
  assert [name for name, known in gin_internals.registry().items()
          if known.wrapped is cls] == ["theirs.Named"]


def test_names_that_are_taken_are_refused():
  taken = {*functions.SYNTHESIZING_FUNCTIONS, *notation.LAYERS, "all",
           *(row for row in attentions.ROWS if row.isidentifier())}
  for name in taken:
    with pytest.raises(ValueError, match=f"the name '{name}', which .* has; choose"):
      synthesizer_mtf.register(name, define())
  synthesizer_mtf.register("Own", define())
  with pytest.raises(ValueError, match="'Own', which notebook.Own has; choose"):
    synthesizer_mtf.register("Own", define(module="other"))


@pytest.mark.parametrize("name, cls, message", [
    ("A+B", define(), "'A[+]B', which the notation cannot read; use letters"),
    ("", define(), "cannot read"), ("é", define(), "cannot read"),
    (None, define(), "name None, which the notation cannot read"),
    ("A", define()(), "which is not a class of synthesizing functions; derive"),
    ("A", dict, "<class 'dict'> for the name 'A', which is not a class"),
    ("A", synthesizer_mtf.LengthTables, "has no method `logits`; define it"),
    ("A", define(variables={"R": synthesizer_mtf.Axes()}),
     "`Own.variables`.*'A', has 'R', which means something else in RandomLogits; give"),
    ("A", define(variables={"v": synthesizer_mtf.Axes()}), "in the attention layer"),
])
def test_what_cannot_be_registered_is_refused(name, cls, message):
  with pytest.raises(ValueError, match=message) as caught:
    synthesizer_mtf.register(name, cls)
  assert "\n" not in str(caught.value)
  assert "A" not in functions.SYNTHESIZING_FUNCTIONS


def test_an_attribute_of_an_earlier_name_is_refused():
  with pytest.raises(ValueError, match="Old has .* `tells_order`.* `encodes_order`"):
    type("Old", (synthesizer_mtf.SynthesizingFunction,), {"tells_order": True})


@pytest.mark.usefixtures("registered")
def test_an_unknown_notation_names_what_is_registered():
  with pytest.raises(ValueError, match="'Alibi' is not an attention; .*Pattern, ALiBi"):
    synthesizer_mtf.attention_layer("Alibi+V")


def test_a_warm_start_knows_the_axes_of_own_variables_and_of_layers():
  axes = synthesizer_mtf.Axes(positions=(-1,))
  synthesizer_mtf.register("Own", define(variables={"E": axes}))
  scopes = {"SyntheticAttention": [5, 7], "Linformer": [7, 5]}
  for scope, longer in scopes.items():
    name = f"encoder/block_000/layer_000/{scope}/E"
    plan = warm_start_plan.make_plan("", {name: longer}, {name: [5, 5]})
    assert plan.resized == [name]
