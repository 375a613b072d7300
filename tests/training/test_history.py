"""The history of a training: what `MtfModel.train` returns."""

import json

import numpy as np
import pytest
from support import small_training
from synthesizer_mtf.trainer.watching import history
import tensorflow.compat.v1 as tf


@pytest.fixture(name="train")
def fixture_train(tmp_path):
  """Trains in one folder up to a step; returns the history."""
  def input_fn(params):
    del params
    return tf.data.Dataset.from_tensors({"x": [1]}).repeat()

  def train(steps):
    estimator = small_training.make(str(tmp_path), save_steps=100)
    estimator.history = history.History(str(tmp_path))
    with tf.Graph().as_default():
      estimator.train(input_fn, max_steps=steps)
    return estimator.history

  return train


def test_a_history_has_the_losses_of_all_calls_and_the_evaluations(
    train, tmp_path, monkeypatch):
  monkeypatch.setattr(history, "_PERIOD", -1)  # Each step is noted.
  first = train(4).frame
  assert [*first.index] == [1, 2, 3, 4]
  np.testing.assert_array_equal(first[history.LOSS], [1, 2, 3, 4])
  assert (first[history.SPEED].dropna() > 0).all() and first[history.SPEED].count() == 2
  (tmp_path / "validation.json").write_text(json.dumps({
      "metric": "bleu", "evaluations": [
          {"step": 6, "value": 3.0, "results": {"mine/bleu": 3.0}}]}))
  again = train(6)
  assert [*again.frame.index] == [1, 5, 6]  # Event files have each hundredth step.
  assert again.frame["mine/bleu"].dropna().to_dict() == {6: 3.0}
  assert "mine/bleu" in repr(again) and "mine/bleu" in again._repr_html_()
  nothing = train(6)
  assert [*nothing.frame.index] == [1, 5, 6]


def test_a_history_draws_the_loss(train, tmp_path):
  axes = train(3).plot()
  assert [axis.get_title("left") for axis in axes] == ["loss"]
  line, = axes[0].lines
  assert line.get_xydata().tolist()[-1] == [3, 3]
  assert repr(history.History(str(tmp_path / "empty"))) == "Nothing has been trained."
