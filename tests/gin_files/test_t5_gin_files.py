"""All gin files that T5 and Mesh TensorFlow install, with and without our attention.

Each file trains, evaluates, decodes or scores a tiny model, or the row says why it
cannot and what a user reads. The models of many files differ in sizes only.
"""

import pathlib
import re

import gin
import mesh_tensorflow as mtf
import numpy as np
import pytest
import seqio
from support import in_process
from support import launching
from support import models
from support.launching import decoded
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.model import estimators
from t5.data import mixtures  # noqa: F401
from t5.data import preprocessors
import t5.models
import tensorflow.compat.v1 as tf

# The models in subfolders, by the gin files that choose their attention.
ATTENTIONS = {"stock": [], "r+v": ["attention/r+v.gin"]}
LENGTHS = {"inputs": 16, "targets": 12}

pytestmark = pytest.mark.usefixtures("parsed_flags")


@pytest.fixture(scope="module")
def command(tmp_path_factory, sentencepiece_model):
  folder = tmp_path_factory.mktemp("t5")
  command = in_process.Command(folder, sentencepiece_model)
  (folder / "inputs").write_text("\n".join(command.words[:3]) + "\n")
  (folder / "targets").write_text("".join(f"{w[::-1]}\n" for w in command.words[:3]))
  return command


@pytest.fixture(name="trained")
def fixture_trained(command, attention):
  """Trains the model once for all tests; returns its folder."""
  folder = command.folder / attention
  if not list(folder.glob("model.ckpt-1.index")):
    assert not command.run(attention, *model(attention), LEARNING_RATE,
                           bindings=[launching.ADAFACTOR])
  return folder


def model(attention):
  return ["dataset.gin", "models/t5.1.1.small.gin", *ATTENTIONS[attention]]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_files_are_scored(command, trained, attention):
  folder, output = command.folder, trained / "scored"
  assert not command.run(attention, *model(attention), "score_from_file.gin", bindings=[
      f"inputs_filename = '{folder}/inputs'", f"targets_filename = '{folder}/targets'",
      f"scores_filename = '{output}'"])
  scores, targets, lengths = (
      decoded(output.with_name(f"scored.{name}"))
      for name in ("scores", "targets", "lengths"))
  assert targets == [word[::-1] for word in command.words[:3]]
  assert len(scores) == 3 and all(0 < int(length) <= 12 for length in lengths)
  gin.clear_config()
  python = t5.models.MtfModel(
      model_dir=str(trained), tpu=None, batch_size=4, sequence_length=LENGTHS,
      mesh_shape="model:1,batch:1", mesh_devices=["cpu:0"])
  command.bind_data()
  scored = python.score(
      str(folder / "inputs"), str(folder / "targets"),
      vocabulary=t5.models.mesh_transformer.get_vocabulary("synth_text_pairs"))
  np.testing.assert_allclose(scored[0], list(map(float, scores)), rtol=1e-4)
  assert scored[1] == targets


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["r+v"])
def test_a_task_is_scored(command, trained, attention):
  output = trained / "task"
  assert not command.run(attention, *model(attention), "score_from_task.gin", bindings=[
      f"scores_filename = '{output}'", "utils.run.dataset_split = 'validation'"])
  targets = decoded(output.with_name("task.targets"))
  assert targets == [word[::-1] for word in command.words]
  assert len(decoded(output.with_name("task.scores"))) == len(targets)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["r+v"])
def test_an_exported_score_still_has_text(command, trained, attention):
  """T5's own export_score hands out the targets as text."""
  path = trained / "exported"
  assert not command.run(attention, *model(attention), "export.gin", bindings=[
      "utils.run.mode = 'export_score'", f"export_path = '{path}'"])
  saved, = path.iterdir()
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ["serve"], str(saved))
    signature, = loaded.signature_def.values()
  assert signature.outputs["targets"].dtype == tf.string.as_datatype_enum


@pytest.mark.parametrize("attention", ["stock"])
def test_only_one_checkpoint_is_scored(command, trained, attention):
  assert "scores with one checkpoint" in command.run(
      attention, *model(attention), "score_from_file.gin", bindings=[
          "utils.run.eval_checkpoint_step = [0, 1]",
          f"inputs_filename = '{command.folder}/inputs'",
          f"targets_filename = '{command.folder}/targets'",
          f"scores_filename = '{trained}/no'"])


T5 = pathlib.Path(t5.models.__file__).parent / "gin"
MESH = pathlib.Path(mtf.__file__).parent / "transformer" / "gin"
LEARNING_RATE = "learning_rate_schedules/constant_0_001.gin"


def installed(folder):
  """The gin files below a folder of T5, relative to its gin files."""
  return sorted(str(path.relative_to(T5)) for path in (T5 / folder).rglob("*.gin"))


MODELS, OBJECTIVES, LENGTHS_OF_TASKS = map(
    installed, ("models", "objectives", "sequence_lengths"))

# Files that follow a model's file in a training.
TRAINING = ["learning_rate_schedules/rsqrt_no_ramp_down.gin", "task_adapter.gin",
            str(MESH / "transparent_attention.gin")]
# What an evaluation writes.
EVALUATIONS = {"eval.gin": "eval/synth_text_pairs/bleu",
               "perplexity_eval.gin": "neg_log_perplexity",
               "score_eval.gin": "eval/pairs_with_scores/mean_score"}
DECODERS = ["greedy_decode.gin"]
# docs/t5_recipes.md, whose commands test_t5_recipes.py runs, has these with R+V.
ON_THE_PAGE = ["beam_search.gin", "sample_decode.gin"]
SCORES = ["score_from_file.gin", "score_from_task.gin"]
# Files that the other tests use, or that Mesh reads in each of them.
EVERYWHERE = ["dataset.gin", LEARNING_RATE, "infer.gin", str(MESH / "defaults.gin")]

# What a user reads, and why it cannot work.
CANNOT = {
    # It names a function that Mesh TensorFlow lacks.
    "infer_multi_file.gin": "decode each file by a command of its own",
    # Mesh decodes tasks with language models only.
    "infer_from_task.gin": "Mesh TensorFlow decodes tasks with 'lm' only",
    # It has the 128 cores of a slice of TPUs, and follows cpu.gin here.
    str(MESH / "8x8_dp_r4.gin"): "needs 128; name one for each part of the mesh",
}


def test_every_installed_file_has_its_test():
  assert {*installed("."), *map(str, MESH.glob("*.gin"))} == {
      *MODELS, *OBJECTIVES, *LENGTHS_OF_TASKS, *TRAINING, *EVALUATIONS, *DECODERS,
      *ON_THE_PAGE, *SCORES, *EVERYWHERE, *CANNOT}


@pytest.fixture(scope="module", name="known")
def fixture_known():
  """The names of the variables of the models that were built, by their kind."""
  return {}


@pytest.fixture(name="built")
def fixture_built(monkeypatch, known):
  """Lets training end once its model is built; the names of the variables."""
  names = []

  def build(self, input_fn, *args, **kwargs):
    del self, input_fn, args, kwargs
    config = re.sub(r"[\d.]+", "", gin.config_str())  # Sizes aside.
    if config not in known:
      step = models.training_step(gin.query_parameter("utils.run.model_type"))
      known[config] = [v.name for v in step.graph.trainable_variables]
    names.extend(known[config])

  monkeypatch.setattr(estimators.CarefulEstimator, "train", build)
  return names


def with_stock(files):
  """Each file with our attention, and the first one with stock attention, too."""
  files = list(files)
  return [(files[0], "stock"), *((file, "r+v") for file in files)]


def assert_chosen(attention, names):
  """Checks that all self-attention is the chosen one, in each stack."""
  layers = {tuple(name.split("/")[::3]) for name in names if name.count("/") > 3}
  stacks = {stack for stack, _ in layers}
  ours = {stack for stack, layer in layers if layer == "SyntheticAttention"}
  theirs = {layer for _, layer in layers if layer.endswith("SelfAttention")}
  assert stacks
  assert (ours, theirs) == (stacks, set()) if ATTENTIONS[attention] else (
      not ours and theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    name for name in [*MODELS, *TRAINING] if "n4w10" not in name])
def test_a_file_of_a_model_or_beside_one_reaches_a_training_step(name, command, built):
  more = []
  if name.startswith("models/lm"):
    more = ["MIXTURE_NAME = 'synth_text_lm'",
            "utils.run.sequence_length = {'targets': 12}",
            f"synthesizer_mtf.tasks.text.train = '{command.folder}/inputs'"]
  if "transparent" in name:
    more = ["make_layer_stack.num_layers = 2",  # In place of six blocks of layers.
            "TransparentEncDecAttention.encoder_num_modules = 2",
            "TransparentEncDecAttention.decoder_num_modules = 2"]
  if name == "task_adapter.gin":
    more = ["utils.run.variable_filter = None"]
  for attention, files in ATTENTIONS.items():
    built.clear()
    chosen = ["dataset.gin", name, LEARNING_RATE, *files] if name in MODELS else [
        *model(attention), LEARNING_RATE, name]
    assert not command.run(f"new_{attention}", *chosen, bindings=more)
    assert_chosen(attention, built)


@pytest.mark.parametrize("name", [name for name in MODELS if "n4w10" in name])
def test_a_model_of_deep_blocks_has_the_attention(name, command):
  """Its blocks have 24 layers each."""
  for attention, files in ATTENTIONS.items():
    gin.clear_config()
    gin_files.parse(["dataset.gin", name, *files, "cpu.gin"], command.bindings())
    model = models.build(vocabulary=500)
    for part in (model.encoder, model.decoder):
      names = {type(layer).__name__ for layer in part.layer_stack.layers}
      assert ("SyntheticAttention" in names, "SelfAttention" in names) == (
          (True, False) if ATTENTIONS[attention] else (False, True))


@pytest.mark.slow
@pytest.mark.parametrize("name, attention", with_stock(DECODERS))
def test_a_model_decodes(name, attention, command, trained):
  output = trained / name
  assert not command.run(attention, *model(attention), "infer.gin", name, bindings=[
      f"input_filename = '{command.folder}/inputs'", f"output_filename = '{output}'"])
  assert len(decoded(output.with_name(f"{name}-1"))) == 3


@pytest.fixture(scope="module")
def task_of_scores():
  """The name of a task of pairs whose metric takes scores."""
  pairs, name = seqio.TaskRegistry.get("synth_text_pairs"), "pairs_with_scores"
  seqio.TaskRegistry.add(
      name, source=pairs.source, preprocessors=pairs.preprocessors,
      output_features=pairs.output_features, metric_fns=[mean_score])
  yield name
  seqio.TaskRegistry.remove(name)


def mean_score(targets, scores):
  assert len(targets) == len(scores)
  return {"mean_score": np.mean(scores)}


@pytest.mark.slow
@pytest.mark.parametrize("name, attention", with_stock(EVALUATIONS))
def test_a_model_is_evaluated(name, attention, command, trained, task_of_scores):
  task = task_of_scores if name == "score_eval.gin" else "synth_text_pairs"
  assert not command.run(attention, *model(attention), name, bindings=[
      "utils.run.batch_size = 4", "utils.run.dataset_split = 'validation'",
      "utils.run.perplexity_eval_steps = 1", "eval_checkpoint_step = -1",
      f"MIXTURE_NAME = '{task}'", "utils.run.eval_dir_suffix = 'of'"])
  tags = {value.tag for path in trained.glob("*eval*_of/events*")
          for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value}
  assert EVALUATIONS[name] in tags


@pytest.mark.parametrize("attention", ["r+v"])
@pytest.mark.parametrize("name", CANNOT)
def test_a_file_that_cannot_work_ends_in_one_sentence(
    name, attention, command, trained):
  said = command.run(attention, *model(attention), "cpu.gin", name, bindings=[
      "infer_checkpoint_step = 1"] if name.startswith("infer") else [
          "utils.run.mesh_shape = 'outer:4,inner:32'"])
  assert CANNOT[name] in said and "its traceback" not in said


@pytest.mark.slow
def test_an_objective_makes_examples_of_text(sentencepiece_model):
  """Objectives know no attention."""
  lengths = {"inputs": 32, "targets": 32}
  feature = seqio.Feature(seqio.SentencePieceVocabulary(sentencepiece_model, 100))
  for name in OBJECTIVES:
    gin_files.parse(
        ["dataset.gin", "models/t5.1.1.small.gin", name, "attention/r+v.gin"],
        ["inputs_length = 32", "MIXTURE_NAME = 'synth_text_pairs'",
         f"utils.run.sequence_length = {lengths}"])
    texts = tf.compat.v2.data.Dataset.from_tensors({"targets": tf.range(10, 310)})
    with seqio.map_seed_manager(initial_seed=1):  # A short chunk can lack targets.
      example, *_ = preprocessors.unsupervised(
          texts.repeat(4), output_features=dict.fromkeys(lengths, feature),
          sequence_length=lengths).as_numpy_iterator()
    assert all(0 < len(ids) <= 32 for ids in example.values()), name
    assert set(example) == (
        {"targets"} if name == "objectives/lm.gin" else set(lengths))


def test_lengths_are_those_of_a_task():
  for name in LENGTHS_OF_TASKS:
    gin_files.parse(
        ["dataset.gin", "models/t5.1.1.small.gin", "attention/r+v.gin", name],
        ["MIXTURE_NAME = 'synth_text_pairs'"])
    lengths = gin.query_parameter("utils.run.sequence_length")
    task = pathlib.Path(name).stem
    task = "synth_text_pairs" if task == "default" else task
    features = seqio.get_mixture_or_task(task).output_features
    data_checks.check_lengths(lengths, task, features)
    assert set(lengths) == set(features)
