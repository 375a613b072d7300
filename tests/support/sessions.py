"""Sessions for graphs that run once or a few times."""

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

# To optimize so small a graph takes longer than to run it.
_NOT_OPTIMIZED = tf.GraphOptions(
    rewrite_options=rewriter_config_pb2.RewriterConfig(
        disable_meta_optimizer=True))


def start():
  """A `tf.Session` that runs graphs as they are.

  Few calls of its `run`, for each that fetches something else costs more than
  all that a layer computes.
  """
  return tf.Session(config=tf.ConfigProto(graph_options=_NOT_OPTIMIZED))


def assign(session, variables, values):
  """Gives variables their values, both by name, in one call."""
  session.run([v.initializer for v in variables.values()], {
      v.initializer.inputs[1]: values[name] for name, v in variables.items()})
