"""What exported models read, and what their export says."""

from synthesizer_mtf.trainer.model import exporting
import tensorflow.compat.v1 as tf


def test_only_an_end_of_sequence_that_ends_a_row_is_dropped():
  rows = [[7, 1, 8, 1, 0], [7, 8, 9, 5, 1], [7, 8, 9, 5, 6], [1, 0, 0, 0, 0], [0] * 5]
  with tf.Graph().as_default(), tf.Session() as session:
    size = tf.constant(5)
    receiver = tf.estimator.export.ServingInputReceiver(
        {"inputs": tf.constant(rows), "predict_batch_size": size},
        tf.placeholder_with_default("text", []))
    features = exporting.continuing(lambda: receiver)().features
    assert features["predict_batch_size"] is size
    assert session.run(features["inputs"]).tolist() == [
        [7, 1, 8, 0, 0], [7, 8, 9, 5, 0], [7, 8, 9, 5, 6], [0] * 5, [0] * 5]


def test_inputs_that_are_scored_stay():
  with tf.Graph().as_default():
    scored = tf.constant([[7, 1]])
    receiver = tf.estimator.export.ServingInputReceiver(
        {"targets": scored}, tf.placeholder_with_default("text", []))
    assert exporting.continuing(lambda: receiver)().features == {"targets": scored}


def test_an_export_drops_one_complaint_of_tensorflow_and_no_other(caplog, monkeypatch):
  monkeypatch.setattr(tf.get_logger(), "propagate", True)
  with exporting.without_unused():
    for name in ("assert_less_equal/Assert", "other/Assert"):
      tf.logging.error("Object was never used: <tf.Operation '%s'>", name)
  assert "assert_less_equal" not in caplog.text
  assert "other/Assert" in caplog.text
