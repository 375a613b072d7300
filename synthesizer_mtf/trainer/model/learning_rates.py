"""A learning rate factor that Mesh TensorFlow lacks."""

import math

import gin
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
def cosine_decay(step: tf.Tensor, total_train_steps: int,
                 start_step: int = 0) -> tf.Tensor:
  """Half a cosine, from 1 to 0 (arXiv:1608.03983), for `product_learning_rate`.

  Args:
    step: <int32>[]
    total_train_steps: the step at which the factor reaches 0, if `start_step` is 0. As
      in Long Range Arena's code, a later start also moves the end.
    start_step: the step up to which the factor is 1.

  Returns:
    <float32>[]
  """
  done = (tf.cast(step, tf.float32) - start_step) / total_train_steps
  return 0.5 * (1 + tf.cos(math.pi * tf.clip_by_value(done, 0.0, 1.0)))
