"""Files of scores count the tokens that a score sums over, and name texts without any.

What the numbers are is tested in tests/gin_files/test_t5_gin_files.py, and in
tests/decoding/test_answers.py against NumPy.
"""

import functools

from absl import flags
import gin
import numpy as np
import pytest
from support import in_process
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.model import padding
from synthesizer_mtf.trainer.model import pipeline
from synthesizer_mtf.trainer.model import prediction
from synthesizer_mtf.trainer.model import scoring
from t5.models import mesh_transformer
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

TARGETS = [[-7, -8, 5, 1, 0, 0, 0], [5, 1, 6, 1, 0, 0, 0], [5, 6, 7, 8, 9, 5, 6],
           [-5, -6, -7, -8, -9, -5, -6], [0] * 7, [5, 6, 7, 8, 9, 5, 1]]
INPUTS = [[11, 12, 0], [11, 0, 0], [11, 12, 13], [11, 0, 0], [0] * 3, [11, 0, 0]]


def predicted(model_type, names=("inputs", "targets"), exports=False):
  """The predictions of a model that scores these rows, as Mesh's model returns them."""
  def model_fn(features, labels, mode, params, config):
    del labels, params, config
    return tpu_estimator.TPUEstimatorSpec(mode, predictions={
        "targets": features["targets"][:, :2], "scores": tf.zeros(len(TARGETS))})

  features = {"inputs": INPUTS, "targets": TARGETS}
  with tf.Graph().as_default(), tf.Session() as session:
    spec = pipeline.around(
        model_fn, [functools.partial(scoring.scored_ids, model_type=model_type)])(
        {name: tf.constant(features[name]) for name in names}, None, "infer")
    predictions = session.run(spec.predictions)
  return [dict(zip(predictions, row)) for row in zip(*predictions.values())]


def test_the_ids_of_a_score_are_those_that_it_sums_over():
  ids = [[5, 1, 0, 0, 0, 0, 0], [5, 1, 6, 1, 0, 0, 0], TARGETS[2], [0] * 7, [0] * 7,
         TARGETS[5]]
  for kind, names in (("lm", ["targets"]), ("delimited_lm", ["inputs", "targets"]),
                      ("bitransformer", ["inputs", "targets"])):
    assert [row["targets"].tolist() for row in predicted(kind, names)] == ids
  # Mesh TensorFlow also scores the inputs of a task of a language model.
  first = predicted("lm")[0]["targets"]
  np.testing.assert_array_equal(first, [11, 12, 5, 1, 0, 0, 0, 0, 0, 0])


def test_texts_that_fill_the_length_are_named_and_those_without_a_token_are_an_error(
    caplog):
  rows = predicted("lm", ["targets"])
  examples = [*scoring.checked(rows[:3])]
  assert [examples[0].keys()] == [{"targets", "scores"}]
  assert "Text 3 of the targets, and maybe others, fills all 7 tokens" in caplog.text
  caplog.clear()
  assert len([*scoring.checked([rows[0], rows[4], rows[5]])]) == 3
  assert [*scoring.checked([{"outputs": 1}])] == [{"outputs": 1}]
  assert not caplog.text
  with pytest.raises(ValueError, match="text 2 of the targets has no token to score, "
                     "as its input fills all 7 tokens of `utils.run.sequence_length`"):
    [*scoring.checked(predicted("lm", ["targets"])[2:])]


MODEL = ["MIXTURE_NAME = 'synth_text_lm'", "utils.run.model_type = 'lm'",
         "utils.run.sequence_length = {'targets': 12}", "RandomLogits.max_length = 12"]
FILES = ["dataset.gin", "models/lm_v1.gin", "attention/r+v.gin"]


@pytest.fixture(name="command", scope="module")
def fixture_command(tmp_path_factory, sentencepiece_model):
  """The command, with a language model in lm/ that has the length of targets alone."""
  folder = tmp_path_factory.mktemp("lm")
  command = in_process.Command(folder, sentencepiece_model)
  (folder / "text").write_text("the naming of names\nof scopes\n")
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  data = [f"synthesizer_mtf.tasks.text.{split} = '{folder}/text'"
          for split in ("train", "validation")]
  assert not command.run("lm", *FILES, "learning_rate_schedules/constant_0_001.gin",
                         bindings=[*MODEL, *data])

  def run(*files, bindings=()):
    return command.run("lm", *FILES, *files, bindings=[*MODEL, *data, *bindings])

  run.folder = folder
  run.bindings = [*command.bindings(), *MODEL, *data]
  return run


@pytest.mark.slow
def test_a_language_model_scores_what_follows_its_input(command):
  folder = command.folder
  texts = {"inputs": "the name\nof\n", "rest": "is\na name\n",
           "whole": "the name\nof\nthe name is\nof a name\n"}
  for name, text in texts.items():
    (folder / name).write_text(text)
  scores = {}
  for name, more in (("whole", "None"), ("rest", f"'{folder}/inputs'")):
    assert not command("score_from_file.gin", bindings=[
        f"score_from_strings.inputs = {more}",
        f"targets_filename = '{folder}/{name}'",
        f"scores_filename = '{folder}/{name}'"])
    scores[name] = np.stack([np.loadtxt(folder / f"{name}.{kind}")
                            for kind in ("scores", "lengths")])
  whole = scores["whole"]
  np.testing.assert_allclose(scores["rest"], whole[:, 2:] - whole[:, :2], atol=1e-3)


@pytest.mark.slow
def test_a_language_model_with_the_length_of_targets_alone_decodes_within_it(
    command, log, capfd, monkeypatch):
  monkeypatch.setattr(prediction, "_UNSEEN", 0)
  folder = command.folder
  (folder / "words").write_text("the name\nof\nthe name of the names of a\n")
  assert not command("infer.gin", bindings=[
      "infer_checkpoint_step = -1", f"input_filename = '{folder}/words'",
      f"output_filename = '{folder}/decoded'",
      "sample_autoregressive.never_end = True"])
  assert "at most 12 tokens together, the length of the targets" in log.text
  assert "3 of 3 outputs ended at the limit" in log.text
  assert "3/3" in capfd.readouterr().err  # And one row of padding.
  first = (folder / "decoded-1").read_text()
  assert not command("infer_from_task.gin", bindings=[
      "infer_checkpoint_step = -1", f"output_filename = '{folder}/of_task'",
      "decode_from_dataset.dataset_split = 'validation'", "num_priming_tokens = 4"])
  assert (folder / "of_task" / "synth_text_lm_1_predictions").exists()
  assert not command(bindings=["utils.run.mode = 'export_infer'",
                               f"utils.run.export_path = '{folder}/exported'"])
  exported, = (folder / "exported").iterdir()
  gin_files.parse(FILES, [*command.bindings,
                          "sample_autoregressive.never_end = True"])
  model = synthesizer_mtf.MtfModel(
      model_dir=str(folder / "lm"), tpu=None, model_type="lm", batch_size=4,
      sequence_length={"targets": 12})
  vocabulary = mesh_transformer.get_vocabulary("synth_text_lm")
  path = model.predict(str(folder / "words"), str(folder / "again"), temperature=0,
                       vocabulary=vocabulary)
  with open(path) as again:
    assert again.read() == first
  with tf.Graph().as_default(), tf.Session() as session:
    signature = tf.saved_model.load(session, ["serve"], str(exported)).signature_def[
        "serving_default"]
    given, = signature.inputs.values()
    served = session.run(
        signature.outputs["outputs"].name, {given.name: ["the name"]})
  assert len(served) == 1
  assert model._sequence_length == {"targets": 12}


def test_padding_is_told_from_texts_by_what_gin_binds(tmp_path):
  (tmp_path / "two").write_text("one\ntwo\n")
  two = f"'{tmp_path}/two'"
  for lines, number in (
      (["run.mode = 'infer'", f"decode_from_file.input_filename = {two}"], 2),
      (["run.mode = 'infer'", f"decode_from_file.input_filename = {two}",
        "decode_from_file.repeats = 3", "synthesizer_answers.number = 2",
        "infer_model.decode_fn = @synthesizer_answers"], 6),
      (["run.mode = 'infer'", "infer_model.decode_fn = @decode_from_dataset"], None),
      (["run.mode = 'score_from_strings'", f"score_from_strings.inputs = {two}",
        "score_from_strings.targets = ['a', 'b', 'c', 'd']"], 4),
      (["run.mode = 'eval'"], None), ([], None)):
    gin.clear_config()
    gin.parse_config([f"utils.{line}" if line.startswith("run") else line
                      for line in lines])
    assert padding.texts_in_command() == number
