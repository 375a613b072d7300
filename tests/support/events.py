"""Writes and reads event files like those of training and evaluation."""

import tensorflow.compat.v1 as tf


def write_events(folder, tag, values):
  """Writes an event file with the scalar `tag`; `values` is {step: value}."""
  with tf.Graph().as_default():
    writer = tf.summary.FileWriter(str(folder))
    for step, value in values.items():
      writer.add_summary(tf.Summary(
          value=[tf.Summary.Value(tag=tag, simple_value=value)]), step)
    writer.close()


def scalars(folder):
  """The last value of each scalar in the event files of a folder."""
  values = {}
  for path in sorted(folder.glob("events*")):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        values[value.tag] = value.simple_value
  return values
