"""Starts sessions for graphs that run once or a few times."""

import contextlib
import functools

import pytest
from synthesizer_mtf.trainer.model import session
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2


def config():
  """A configuration that runs graphs as they are.

  Optimizing a small graph takes longer than running it.
  """
  return tf.ConfigProto(graph_options=tf.GraphOptions(
      rewrite_options=rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)))


def start():
  """Returns a `tf.Session` that runs graphs without optimizing them.

  Tests should call its `run` rarely. Each call that fetches other tensors costs more
  than the computation of a whole layer.
  """
  return tf.Session(config=config())


def assign(session, variables, values):
  """Assigns values to variables in one call. Both are dicts by name."""
  session.run([v.initializer for v in variables.values()], {
      v.initializer.inputs[1]: values[name] for name, v in variables.items()})


@contextlib.contextmanager
def unoptimized():
  """Lets the sessions of `session.Lowered` models run graphs as they are."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session, "Lowered", functools.partial(
        session.Lowered, config=config()))
    yield
