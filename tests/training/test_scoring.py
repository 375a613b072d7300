"""Files of scores count the tokens that a score sums over, and name texts without any.

What the numbers are is tested in tests/gin_files/test_t5_gin_files.py, and in
tests/decoding/test_answers.py against NumPy.
"""

import numpy as np
import pytest
from support import in_process
from synthesizer_mtf.trainer import scoring
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
    spec = scoring.with_scored_ids(model_fn, model_type)(
        {name: tf.constant(features[name]) for name in names}, None, "infer")
    found = session.run(spec.predictions)
  return [dict(zip(found, row)) for row in zip(*found.values())]


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
  found = [*scoring.checked(rows[:3])]
  assert [found[0].keys()] == [{"targets", "scores"}]
  assert "Text 3 of the targets, and maybe others, fills all 7 tokens" in caplog.text
  caplog.clear()
  assert len([*scoring.checked([rows[0], rows[4], rows[5]])]) == 3
  assert [*scoring.checked([{"outputs": 1}])] == [{"outputs": 1}]
  assert not caplog.text
  with pytest.raises(ValueError, match="text 2 of the targets has no token to score, "
                     "as its input fills all 7 tokens of `utils.run.sequence_length`"):
    [*scoring.checked(predicted("lm", ["targets"])[2:])]


@pytest.mark.slow
@pytest.mark.usefixtures("parsed_flags")
def test_a_language_model_scores_what_follows_its_input(tmp_path, sentencepiece_model):
  command = in_process.Command(tmp_path, sentencepiece_model)
  model = ["MIXTURE_NAME = 'synth_text_lm'", "utils.run.model_type = 'lm'"]
  files = ["dataset.gin", "models/lm_v1.gin"]
  (tmp_path / "text").write_text("the naming of names\nof scopes\n")
  assert not command.run(
      "lm", *files, "learning_rate_schedules/constant_0_001.gin", bindings=[
          *model, *(f"synthesizer_mtf.tasks.text.{split} = '{tmp_path}/text'"
                    for split in ("train", "validation"))])
  texts = {"inputs": "the name\nof\n", "rest": "is\na name\n",
           "whole": "the name\nof\nthe name is\nof a name\n"}
  for name, text in texts.items():
    (tmp_path / name).write_text(text)
  found = {}
  for name, more in (("whole", "None"), ("rest", f"'{tmp_path}/inputs'")):
    assert not command.run("lm", *files, "score_from_file.gin", bindings=[
        *model, f"score_from_strings.inputs = {more}",
        f"targets_filename = '{tmp_path}/{name}'",
        f"scores_filename = '{tmp_path}/{name}'"])
    found[name] = np.stack([np.loadtxt(tmp_path / f"{name}.{kind}")
                            for kind in ("scores", "lengths")])
  whole = found["whole"]
  np.testing.assert_allclose(found["rest"], whole[:, 2:] - whole[:, :2], atol=1e-3)
