"""Trainings of one variable, with hooks, saver and session as Mesh TensorFlow's."""

import numpy as np
from synthesizer_mtf.trainer.model import estimators
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_config
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

SIZE = 1000


def make(folder, nan_at=-1, save_steps=2, variable="weights"):
  """Makes an estimator, whose features are `x`.

  Args:
    folder: the model directory, a string.
    nan_at: the step in which the weights become NaN; -1 for never.
    save_steps: how often to save a checkpoint.
    variable: the name of the weights [`SIZE`], to which each step adds 1.
  """
  def model_fn(features, labels, mode, params):
    del labels, params
    tf.add_to_collection("examples", features["x"])
    weights = tf.get_variable(variable, [SIZE], initializer=tf.ones_initializer())
    x = tf.cast(features["x"], tf.float32)
    loss = tf.reduce_mean(weights) * tf.reduce_mean(x)
    if mode == "infer":
      return tpu_estimator.TPUEstimatorSpec(mode, predictions={"y": weights[:1] * x})
    if mode == "eval":
      return tpu_estimator.TPUEstimatorSpec(mode, loss=loss)
    step = tf.train.get_global_step()
    with tf.control_dependencies([loss]):
      broken = tf.equal(step + 1, nan_at)
      update = weights.assign(weights + tf.where(broken, np.nan, 1.))
      with tf.control_dependencies([update]):
        train_op = tf.assign_add(step, 1)
    saver = tf.train.Saver(sharded=True, save_relative_paths=True)
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=tf.group(train_op), training_chief_hooks=[
            tf.train.CheckpointSaverHook(folder, save_steps=save_steps, saver=saver)])

  return estimators.CarefulEstimator(
      model_fn, config=tpu_config.RunConfig(model_dir=folder), use_tpu=False,
      train_batch_size=1, eval_batch_size=1, predict_batch_size=1, params={},
      export_to_tpu=False)
