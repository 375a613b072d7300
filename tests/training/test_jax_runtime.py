"""A model trains, evaluates and decodes through JAX as it does through TensorFlow."""

import gc
import importlib.metadata
import json
import pydoc_data.topics
import re
import runpy
import shutil
import sys
import types
import weakref

from absl import flags
import gin
import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import documents
from support import in_process
from support import launching
from support import reference
from support import stacks
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.fast import mixed_precision
from synthesizer_mtf.runtime import arrays
from synthesizer_mtf.runtime import mesh
from synthesizer_mtf.runtime import processes
from synthesizer_mtf.runtime import program
from synthesizer_mtf.trainer.model import estimators
from synthesizer_mtf.trainer.model import jax_runtime
from synthesizer_mtf.trainer.model import pipeline
from synthesizer_mtf.trainer.watching import progress
import tensorflow.compat.v1 as tf

JAX = ["synthesizer_mtf.runtime = 'jax'", "utils.run.mesh_devices = None",
       "utils.run.mesh_shape = 'model:2,batch:2'"]
FOUR = ["utils.run.mesh_shape = 'model:2,batch:2'",
        "utils.run.mesh_devices = ['cpu:0', 'cpu:0', 'cpu:0', 'cpu:0']"]
MODEL = ("dataset.gin", "models/laptop.gin", "attention/r+v.gin",
         "learning_rate_schedules/constant_0_001.gin")


@pytest.fixture(scope="module")
def command(tmp_path_factory, sentencepiece_model):
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  return in_process.Command(tmp_path_factory.mktemp("jax"), sentencepiece_model)


@pytest.fixture(scope="module")
def trained(command):
  """The folder of a model after a step through TensorFlow."""
  train(command, "trained", 1, launching.ADAFACTOR)
  return command.folder / "trained"


@pytest.fixture(scope="module")
def plain(command):
  """Three steps through JAX without dropout, and what they tell.

  `known` has what each step knows of a loss, `own` its own loss, `final` what the
  training returns, and `told` what was said about precision.
  """
  seen = types.SimpleNamespace(known=[], own=[], final=[], told=[])
  train_model = estimators.CarefulEstimator._train_model

  class Progress(progress.Progress):
    def on_step(self, training):
      seen.known.append(training.known_loss)
      seen.own.append(training.loss)

  def keep(self, *args):
    seen.final.append(train_model(self, *args))
    return seen.final[-1]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(progress, "Progress", Progress)
    patch.setattr(estimators.CarefulEstimator, "_train_model", keep)
    patch.setattr(mixed_precision, "_once", lambda log, text: seen.told.append(text))
    train(command, "plain", 3, *JAX, launching.ONE_STACK, launching.ADAFACTOR,
          "dropout_rate = 0.")
  return seen


@pytest.fixture
def losses(monkeypatch):
  """The losses of all steps of a test, as the progress reads them."""
  seen = []

  class Progress(progress.Progress):
    def on_step(self, training):
      seen.append(float(training.loss))

    def on_end(self, training):
      del training

  monkeypatch.setattr(progress, "Progress", Progress)
  return seen


@pytest.fixture
def examples(monkeypatch):
  """The batches of all steps of a test, each the bytes of its features."""
  seen, around = [], pipeline.around

  def note(*features):
    seen.append(b"".join(feature.tobytes() for feature in features))
    return np.int32(0)

  def noting(model_fn, steps):
    def noted(features, *args, **kwargs):
      read = tf.numpy_function(note, [*features.values()], tf.int32)
      with tf.control_dependencies([read]):
        return model_fn(tf.nest.map_structure(tf.identity, features), *args, **kwargs)
    return around(noted, steps)

  monkeypatch.setattr(pipeline, "around", noting)
  return seen


def train(command, name, steps, *bindings):
  assert command.run(name, *MODEL, bindings=[
      "utils.run.train_model_fn = @synthesizer_mtf.train_with_seed",
      "mesh_train_dataset_fn.seed = 1", "dropout_rate = 0.1",
      f"utils.run.train_steps = {steps}", *bindings]) == ""


@stacks.only_new
@pytest.mark.slow
def test_a_training_goes_on_with_either_runtime_on_several_devices(
    command, losses, examples):
  text = command.folder / "text.txt"
  text.write_text("\n\n".join(pydoc_data.topics.topics.values()))
  more = ["MIXTURE_NAME = 'synth_own_mixture'", "synthesizer_mtf.tasks.mixture.rates = "
          "{'synth_text_pairs': 1.0, 'synth_text_span_corruption': 2.0}",
          f"synthesizer_mtf.tasks.text.train = '{text}'",
          "utils.get_variable_dtype.master_dtype = 'float32'", launching.ADAFACTOR]
  train(command, "whole", 6, *more, "utils.run.save_checkpoints_steps = 3")
  parts = shutil.copytree(command.folder / "whole", command.folder / "parts")
  for path in parts.glob("*.ckpt-6.*"):
    path.unlink()
  train(command, "parts", 5, *more, *JAX)
  train(command, "parts", 6, *more)
  np.testing.assert_allclose(losses[6:], losses[3:6], atol=1e-4)
  assert examples[6:] == examples[3:6] and len(set(examples)) == 6
  ours, theirs = [tf.train.load_checkpoint(str(command.folder / name / "model.ckpt-6"))
                  for name in ("parts", "whole")]
  names = ours.get_variable_to_shape_map()
  assert names == theirs.get_variable_to_shape_map() and len(names) > 40
  for name in names:
    value, expected = [
        np.array(model.get_tensor(name), np.float32) for model in (ours, theirs)]
    # Single numbers without a gradient differ more: Adafactor enlarges rounding errors.
    norm = max(1, np.linalg.norm(expected))
    assert np.linalg.norm(value - expected) < 1e-3 * norm, name


@stacks.only_new
@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_decoding_on_several_devices_gives_the_same_texts(command):
  words = command.folder / "words"
  words.write_text("\n".join(command.words) + "\n")

  def texts(name, *bindings):
    output = command.folder / name
    assert command.run("trained", *MODEL, "infer.gin", bindings=[
        f"input_filename = '{words}'", f"output_filename = '{output}'",
        "infer_checkpoint_step = 1", *bindings]) == ""
    return (command.folder / f"{name}-1").read_text()

  assert texts("through jax", *JAX) == texts("through tensorflow")
  for how in (["Bitransformer.decode.beam_size = 4", "synthesizer_answers.number = 3"],
              ["synthesizer_answers.number = 1"]):
    ours, theirs = [[*map(json.loads, text.splitlines())] for text in (
        texts("answers of jax", *JAX, *how),
        texts("answers of tensorflow", *FOUR, *how))]
    assert len(ours) == len(command.words)
    for line, expected in zip(ours, theirs, strict=True):
      np.testing.assert_allclose(
          line.pop("scores"), expected.pop("scores"), atol=1e-4)
      assert line == expected


@stacks.only_new
@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_sampling_draws_other_numbers_in_each_step_and_batch(command):
  words = command.folder / "same words"
  words.write_text("\n".join(command.words[:1] * 16) + "\n")
  output = command.folder / "drawn"
  assert command.run("trained", *MODEL, "infer.gin", bindings=[
      f"input_filename = '{words}'", f"output_filename = '{output}'",
      "infer_checkpoint_step = 1", "utils.run.batch_size = 8",
      "Bitransformer.decode.temperature = 5.", *JAX]) == ""
  texts = (command.folder / "drawn-1").read_text().splitlines()
  assert len(texts) == 16 and texts[:8] != texts[8:]
  # A text may end by chance after a piece or two, and be as another.
  assert len(set(texts)) > 8
  assert sum(len({text[i:i + 3] for i in range(0, len(text), 3)}) > 2
             for text in texts) > 8


@stacks.only_new
@pytest.mark.slow
def test_microbatches_have_the_dropout_of_tensorflow(command, losses):
  # Loops as the command makes them, whose names give dropout its numbers.
  tf.disable_control_flow_v2()
  more = [launching.ONE_STACK,
          "utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = 16"]
  train(command, "in tensorflow", 3, *more)
  train(command, "in jax", 3, *more, *JAX, "utils.run.mesh_devices = ['cpu:1']",
        "utils.run.mesh_shape = 'model:1,batch:1'")
  np.testing.assert_allclose(losses[3:], losses[:3], atol=1e-3)


@stacks.only_new
@pytest.mark.slow
def test_a_step_waits_for_the_loss_of_the_one_before_and_logs_its_own(command, plain):
  own = plain.own
  assert plain.known == [own[0], *own[:-1]] and len(set(own)) == 3
  assert plain.final == own[-1:]
  path, = (command.folder / "plain").glob("events*")
  assert [value.simple_value for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value if value.tag == "loss"] == own[:1]


@stacks.only_new
@pytest.mark.slow
def test_mixed_precision_has_bfloat16_activations(command, plain, losses, monkeypatch):
  told = []
  monkeypatch.setattr(mixed_precision, "_once", lambda log, text: told.append(text))
  assert not plain.told
  train(command, "mixed", 2, *JAX, launching.ONE_STACK, launching.ADAFACTOR,
        "dropout_rate = 0.",  # bfloat16 draws others.
        "synthesizer_precision.products = 'bfloat16'")
  assert told == ["Activations and products are in bfloat16."]
  record = (command.folder / "mixed" / "operative_config.gin").read_text()
  assert "synthesizer_precision.products = 'bfloat16'" in record
  variables = tf.train.load_checkpoint(str(command.folder / "mixed" / "model.ckpt-2"))
  assert tf.float32 in variables.get_variable_to_dtype_map().values()
  np.testing.assert_allclose(losses, plain.own[:2], atol=.05)
  assert (np.array(losses) != plain.own[:2]).all()


@stacks.only_new
@pytest.mark.slow
def test_the_attention_is_summarized_in_training(command):
  assert command.run("summarized", *MODEL, bindings=[
      *JAX, "utils.run.train_model_fn = @train_with_attention_summaries"]) == ""
  path, = (command.folder / "summarized").glob("events*")
  values = {value.tag: value for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value}
  entropies = [value.simple_value for tag, value in values.items()
               if tag.endswith("/entropy")]
  assert len(entropies) == 2 and all(0 < e < np.log(16) for e in entropies)
  assert sum(value.image.height > 0 for value in values.values()) == 2


@stacks.only_new
@pytest.mark.slow
def test_an_exported_step_gives_the_loss_of_the_trainers_next_step(
    command, trained, losses, monkeypatch):
  one = [*JAX, "utils.run.mesh_shape = 'model:1,batch:1'", "dropout_rate = 0.",
         "utils.run.mesh_devices = ['cpu:0']", launching.ADAFACTOR]
  folder, inputs, run = command.folder / "step", [], arrays.Arrays.run
  shutil.copytree(trained, command.folder / "exported")
  before = sorted((command.folder / "exported").glob("model.ckpt*"))
  assert command.run("exported", *MODEL, "export_step.gin", bindings=[
      f"synthesizer_export_step.folder = '{folder}'", "utils.run.train_steps = 2",
      *one]) == ""
  assert sorted((command.folder / "exported").glob("model.ckpt*")) == before
  monkeypatch.setattr(
      arrays.Arrays, "run",
      lambda self, values: inputs.append(values) or run(self, values))
  train(command, "exported", 2, *one)
  monkeypatch.setattr(sys, "argv", ["read_step.py", str(folder)])
  read = runpy.run_path(documents.ROOT / "docs" / "read_step.py")
  about, saved = read["about"], read["saved"]
  assert saved["global_step"] == 1 and set(about["changed"]) <= set(about["state"])
  loss, *_ = read["run"](
      [np.asarray(value, dtype)
       for value, (_, _, dtype) in zip(inputs[0], about["inputs"], strict=True)],
      [saved[name] for name in about["state"]])
  np.testing.assert_allclose(loss, *losses, atol=1e-5)


@stacks.only_new
@pytest.mark.slow
def test_a_table_grows_between_its_old_entries_in_a_warm_start(command, trained):
  sizes = {"trained": 512, "grown": 600}
  train(command, "grown", 1, *JAX, f"warm_start.checkpoint = '{trained}'",
        f"RandomLogits.max_length = {sizes['grown']}", "warm_start.interpolate = True",
        "learning_rate_schedules.constant_learning_rate.learning_rate = 0.")
  old, new = [tf.train.load_checkpoint(str(command.folder / name / "model.ckpt-1"))
              for name in sizes]
  names = [name for name in new.get_variable_to_shape_map() if name.endswith("/R")]
  assert len(names) == 2
  for name in names:
    table, expected = [np.array(c.get_tensor(name), np.float32) for c in (new, old)]
    assert expected.shape[1:] == 2 * (sizes["trained"],)
    for axis in (1, 2):
      expected = reference.stretched(expected, axis, sizes["grown"])
    np.testing.assert_allclose(table, expected, atol=.02)  # Saved in bfloat16.


@pytest.mark.skipif(stacks.IS_NEW, reason="there JAX works")
def test_an_older_python_is_said_in_one_sentence(command):
  assert command.run("old", *MODEL, bindings=JAX) == (
      '`synthesizer_mtf.runtime` is "jax", which needs Python 3.12 or 3.13, but this '
      f"is Python {sys.version_info.major}.{sys.version_info.minor}: install this "
      "package there, or leave out --gin_file=jax.gin.")


@stacks.only_new
@pytest.mark.parametrize("bindings, message", [
    (["synthesizer_mtf.runtime = 'gpu'"],
     '`synthesizer_mtf.runtime` is \'gpu\' but must be "tensorflow" or "jax", which '
     'runs on CPUs, GPUs and TPUs; write synthesizer_mtf.runtime = "jax"'),
    (["synthesizer_mtf.runtme = 'jax'"], "'runtme'. Did you mean runtime?"),
    (["utils.run.mesh_shape = 'all:3'"],
     "`utils.run.mesh_shape` is 'all:3', of 3 devices, but there are 4"),
    (["utils.run.mesh_devices = ['cpu:0', 'cpu:1', 'cpu:2', 'cpu:7']"],
     "`utils.run.mesh_devices` names 'cpu:7', but JAX has cpu:0"),
    (["utils.run.mesh_devices = ['gpu:0']", "utils.run.mesh_shape = 'all:1'"],
     "`utils.run.mesh_devices` names 'gpu:0', but JAX has cpu:0"),
    (["utils.run.mesh_devices = ['cpu:0', 'cpu:0']", "utils.run.mesh_shape = 'all:2'"],
     "`utils.run.mesh_devices` is ['cpu:0', 'cpu:0'], which names a device twice"),
    (["utils.run.batch_size = 3"], "batch"),
    (["utils.run.mesh_shape = 'model:0,batch:4'"],
     "is 'model:0,batch:4', but each size must be at least 1"),
    (["utils.run.layout_rules = 'batch:batch,length:batch'"],
     "`utils.run.layout_rules` splits two dimensions of a tensor, Shape[outer_batch=1, "
     "batch=4, length="),
])
def test_what_jax_cannot_do_is_one_sentence(command, bindings, message):
  assert message in command.run("wrong", *MODEL, bindings=[*JAX, *bindings])


PLACE = {"coordinator_address": "host:1234", "num_processes": 2, "process_id": 0}


@pytest.mark.parametrize("bound, variables, needed", [
    ({"coordinator_address": 5}, {}, "be the machine of process 0"),
    ({"coordinator_address": ""}, {}, "be the machine of process 0"),
    ({"coordinator_address": "host"}, {}, "be the machine of process 0"),
    ({"coordinator_address": "host:99999"}, {}, "be the machine of process 0"),
    ({"coordinator_address": None}, {}, "be the machine of process 0"),
    ({"num_processes": 0}, {}, "be a positive integer"),
    ({"num_processes": 2.5}, {}, "be a positive integer"),
    ({"num_processes": None}, {}, "be a positive integer"),
    ({"num_processes": None}, {"JAX_NUM_PROCESSES": "two"}, "be a positive integer"),
    ({"process_id": 2}, {}, "be an integer from 0 to 1, another one in each process"),
    ({"process_id": None}, {"JAX_PROCESS_ID": "-1"}, "be an integer from 0 to 1"),
    ({"timeout_seconds": 0}, {}, "be a positive number of seconds, at most 1,000,000"),
    ({"timeout_seconds": float("inf")}, {}, "be a positive number of seconds"),
])
def test_a_wrong_place_among_processes_is_named(
    monkeypatch, bound, variables, needed):
  gin.bind_parameter("synthesizer_mtf.runtime", "jax")
  for name, value in {**PLACE, **bound}.items():
    gin.bind_parameter(f"synthesizer_processes.{name}", value)
  for name, text in variables.items():
    monkeypatch.setenv(name, text)
  (name, value), = bound.items()
  shown = repr(next(iter(variables.values()), value))
  with pytest.raises(ValueError, match=re.escape(
      f"`synthesizer_processes.{name}` is {shown} but must {needed}")):
    jax_runtime.place()


def test_a_place_is_that_of_gin_and_else_that_of_jax_s_variables(monkeypatch):
  monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "other:1")
  monkeypatch.setenv("JAX_NUM_PROCESSES", "3")
  monkeypatch.setenv("JAX_PROCESS_ID", "2")
  assert jax_runtime.place() is None  # TensorFlow has one process.
  gin.bind_parameter("synthesizer_mtf.runtime", "jax")
  gin.bind_parameter("synthesizer_processes.process_id", 1)
  assert jax_runtime.place() == processes.Place("other:1", 3, 1, 300)


@stacks.only_new
@pytest.mark.parametrize("error, why", [
    (AssertionError(), ""), (RuntimeError("Unable to initialize backend.\nMore"),
                             r" \(Unable to initialize backend\)")])
def test_a_jax_without_devices_is_one_sentence(monkeypatch, error, why):
  def no_devices():
    raise error

  monkeypatch.setattr("jax.devices", no_devices)
  with pytest.raises(ValueError, match=(
      f"^JAX finds no devices{why}: install .*, or change the environment variable "
      r"JAX_PLATFORMS, which is .*\.$")):
    arrays.Arrays("all:1")


@stacks.only_new
@pytest.mark.parametrize("version, what", [("0.7.2", "JAX 0.7.2"), (None, "none")])
def test_another_jax_is_said_in_one_sentence(command, monkeypatch, version, what):
  def installed(name, real=importlib.metadata.version):
    if name == "jax" and version is None:
      raise importlib.metadata.PackageNotFoundError(name)
    return version if name == "jax" else real(name)

  monkeypatch.setattr(importlib.metadata, "version", installed)
  assert command.run("other", *MODEL, bindings=JAX) == (
      f'`synthesizer_mtf.runtime` is "jax", which needs JAX 0.12, but {what} is '
      "installed: pip install 'synthesizer-mtf[cuda]' for NVIDIA's GPUs, [tpu] for "
      "TPUs, or 'jax==0.12.*' for CPUs.")


@stacks.only_new
@pytest.mark.slow
def test_too_little_memory_is_said_with_the_tensors_and_the_remedies(
    command, monkeypatch):
  def run(self, values):
    from jax import errors
    raise errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.\nMore")

  monkeypatch.setattr(arrays.Arrays, "run", run)
  said = command.run("memory", *MODEL, bindings=[*JAX, launching.ONE_STACK])
  assert re.match(
      r"the devices have not enough memory \(RESOURCE_EXHAUSTED: Out of memory "
      r"allocating 70368744177664 bytes\)\. The largest tensors of the program are "
      r"\w+\[[\d, ]+\] of [\d.]+ [KM]iB, .*; its variables are [\d.]+ [KM]iB, "
      r"'\S+' the largest\. Lower `utils\.run\.batch_size`, .*`\.$", said)


@stacks.only_new
def test_uniform_numbers_are_those_of_tensorflow():
  def drawn(make):
    with tf.Graph().as_default():
      tf.set_random_seed(3)
      graph = mtf.Graph()
      mesh = mtf.Mesh(graph, "mesh")
      numbers = mtf.random_uniform(
          mesh, mtf.Shape([mtf.Dimension("rows", 9)]), minval=2., maxval=5.)
      with jax_runtime.seed.random_by_name():
        lowering = mtf.Lowering(graph, {mesh: make()})
      with tf.Session() as session:
        session.run(lowering.copy_masters_to_slices())
        return session.run(lowering.tensors[numbers].all_slices[0])

  of_jax = drawn(lambda: jax_runtime.mesh.JaxMeshImpl(
      "all:1", "", ["cpu:0"], jax_runtime.seed.numbers_of_names))
  of_tensorflow = drawn(lambda: mtf.placement_mesh_impl.PlacementMeshImpl(
      "", "", ["cpu:0"]))
  np.testing.assert_array_equal(of_jax, of_tensorflow)
  assert len(set(of_jax)) == 9 and (of_jax >= 2).all() and (of_jax < 5).all()


@stacks.only_new
@pytest.mark.parametrize("mesh_shape", ["batch:4", "batch:2,model:2", "model:4"])
def test_each_device_computes_and_keeps_its_share(mesh_shape):
  batch, d_in, d_out = (mtf.Dimension(*sized) for sized in (
      ("batch", 64), ("d_in", 32), ("d_out", 16)))
  graph = mtf.Graph()
  on = mtf.Mesh(graph, "mesh")
  with tf.Graph().as_default():
    x = mtf.import_fully_replicated(
        on, tf.placeholder(tf.float32, [64, 32]), mtf.Shape([batch, d_in]), name="x")
    w = mtf.get_variable(on, "w", mtf.Shape([d_in, d_out]))
    loss = mtf.reduce_sum(mtf.square(mtf.einsum([x, w], reduced_dims=[d_in])))
    mtf.optimize.SgdOptimizer(.1).apply_grads(
        mtf.gradients([loss], [w]), graph.trainable_variables)
    mesh_impl = mesh.JaxMeshImpl(mesh_shape, "batch:batch,d_out:model")
    mtf.Lowering(graph, {on: mesh_impl}, autostack=False).export_to_tf_tensor(loss)
    mesh_impl.compile()
    compiled = mesh_impl.arrays.lower().compile()
  products = 2 * 2 * 64 * 32 * 16  # Forward, and for the gradient of w.
  assert products / 4 < compiled.cost_analysis()["flops"] < 1.5 * products / 4
  parts = {dim.name: dim.size for dim in mtf.convert_to_shape(mesh_shape).dims}
  kept = 4 * (64 * 32 / parts.get("batch", 1) + 32 * 16 / parts.get("model", 1))
  assert kept <= compiled.memory_analysis().argument_size_in_bytes < kept + 64


@stacks.only_new
def test_a_captured_tensor_leaves_the_program_whole():
  with tf.Graph().as_default():
    graph = mtf.Graph()
    on = mtf.Mesh(graph, "mesh")
    rows = mtf.Dimension("rows", 3)
    x = mtf.import_tf_tensor(on, tf.constant([1., 2., 3.]) + tf.random.uniform(
        [], minval=1, maxval=1.001), mtf.Shape([rows]))
    kept = mtf.get_variable(
        on, "kept", mtf.Shape([rows]), initializer=tf.zeros_initializer())
    captured = []
    intermediates.CaptureOperation(
        [kept + x], lambda tensor, is_tpu: captured.append(tensor))
    total = mtf.reduce_sum(mtf.import_tf_tensor(on, tf.fill([3], 4.), x.shape))
    update = mtf.assign_add(kept, 2 * x)
    mesh_impl = mesh.JaxMeshImpl("all:1", "", ["cpu:0"])
    lowering = mtf.Lowering(graph, {on: mesh_impl})
    loss = lowering.export_to_tf_tensor(total)
    lowering.lowered_operation(update)
    mesh_impl.compile()
    start = mesh_impl.variables["kept"].assign(tf.zeros([3]))
    with tf.Session() as session:
      session.run(start)
      values = [session.run([*captured, loss]) for _ in range(2)]
    np.testing.assert_allclose(values[0][0], [2, 3, 4], atol=.01)
    np.testing.assert_allclose(values[1][0], [6, 9, 12], atol=.01)
    assert [loss for _, loss in values] == [12, 12]


@stacks.only_new
def test_a_program_does_not_keep_the_graph_of_its_model():
  with tf.Graph().as_default() as graph:
    x = tf.placeholder(tf.float32, [3])
    made = program.make([program.Input(x, ())], {}, [x + 1])
  kept = weakref.ref(graph)
  del graph, x
  gc.collect()
  assert made.module and kept() is None


@stacks.only_new
def test_an_operation_that_xla_lacks_is_named_with_its_layer():
  with tf.Graph().as_default():
    graph = mtf.Graph()
    on, rows = mtf.Mesh(graph, "mesh"), mtf.Dimension("rows", 3)
    x = mtf.import_tf_tensor(on, tf.placeholder(tf.float32, [3]), mtf.Shape([rows]))
    with tf.variable_scope("encoder/block_000/layer_001"):
      copied = mtf.slicewise(
          lambda x: tf.raw_ops.DeepCopy(x=x), [x], splittable_dims=[rows])
    mesh_impl = mesh.JaxMeshImpl("all:1", "", ["cpu:0"])
    mtf.Lowering(graph, {on: mesh_impl}).export_to_tf_tensor(copied)
    with pytest.raises(ValueError, match=(
        "^XLA cannot compile DeepCopy of encoder/block_000/layer_001/slicewise/DeepCopy"
        "; write this layer with other operations, or leave out --gin_file=jax.gin.$")):
      mesh_impl.compile()
