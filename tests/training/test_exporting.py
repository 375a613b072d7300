"""What exported models read, and what their export says."""

from synthesizer_mtf.trainer.model import exporting
import tensorflow.compat.v1 as tf


def test_only_an_end_of_sequence_that_ends_a_row_of_inputs_is_dropped():
  rows = [[7, 1, 8, 1, 0], [7, 8, 9, 5, 1], [7, 8, 9, 5, 6], [1, 0, 0, 0, 0], [0] * 5]
  with tf.Graph().as_default(), tf.Session() as session:
    others = {"predict_batch_size": tf.constant(5), "targets": tf.constant([[7, 1]])}
    receiver = tf.estimator.export.ServingInputReceiver(
        {"inputs": tf.constant(rows), **others},
        tf.placeholder_with_default("text", []))
    features = exporting.continuing(lambda: receiver)().features
    assert all(features[name] is tensor for name, tensor in others.items())
    assert session.run(features["inputs"]).tolist() == [
        [7, 1, 8, 0, 0], [7, 8, 9, 5, 0], [7, 8, 9, 5, 6], [0] * 5, [0] * 5]
