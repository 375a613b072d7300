"""T5's and Mesh TensorFlow's own gin files, with and without an attention of ours."""

import gin
import numpy as np
import pytest
from support import in_process
from support.launching import decoded
import t5.models
import tensorflow.compat.v1 as tf

# The models in subfolders, by the gin files that choose their attention.
ATTENTIONS = {"stock": [], "r+v": ["attention/r+v.gin"]}
LENGTHS = {"inputs": 16, "targets": 12}

each_attention = pytest.mark.parametrize("attention", ATTENTIONS)
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
    assert not command.run(attention, *model(attention),
                           "learning_rate_schedules/constant_0_001.gin")
  return folder


def model(attention):
  return ["dataset.gin", "models/t5.1.1.small.gin", *ATTENTIONS[attention]]


@each_attention
def test_files_are_scored(command, trained, attention):
  folder, output = command.folder, trained / "scored"
  assert not command.run(attention, *model(attention), "score_from_file.gin", bindings=[
      f"inputs_filename = '{folder}/inputs'", f"targets_filename = '{folder}/targets'",
      f"scores_filename = '{output}'"])
  scores, targets, lengths = (
      decoded(output.with_name(f"scored.{name}"))
      for name in ("scores", "targets", "lengths"))
  assert targets == [word[::-1] for word in command.words[:3]]
  assert len(scores) == 3 and all(0 < int(each) <= 12 for each in lengths)
  gin.clear_config()
  python = t5.models.MtfModel(
      model_dir=str(trained), tpu=None, batch_size=4, sequence_length=LENGTHS,
      mesh_shape="model:1,batch:1", mesh_devices=["cpu:0"])
  command_data(command)
  found = python.score(
      str(folder / "inputs"), str(folder / "targets"),
      vocabulary=t5.models.mesh_transformer.get_vocabulary("synth_text_pairs"))
  np.testing.assert_allclose(found[0], list(map(float, scores)), rtol=1e-4)
  assert found[1] == targets


def command_data(command):
  """Binds only the data in gin, as a notebook does before it loads a model."""
  gin.parse_config([b for b in command.bindings() if "synthesizer_mtf.tasks" in b])


@each_attention
def test_a_task_is_scored(command, trained, attention):
  output = trained / "task"
  assert not command.run(attention, *model(attention), "score_from_task.gin", bindings=[
      f"scores_filename = '{output}'", "utils.run.dataset_split = 'validation'"])
  targets = decoded(output.with_name("task.targets"))
  assert targets == [word[::-1] for word in command.words]
  assert len(decoded(output.with_name("task.scores"))) == len(targets)


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
