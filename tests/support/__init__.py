"""Helpers that several test files share."""

import functools
import types

# Comes first, because it makes TensorFlow ready for mesh_tensorflow.
import synthesizer_mtf  # noqa: F401, I001  # isort: skip

import pytest
from support import sessions
from tensorflow.python.framework import ops
from tensorflow.python.training import basic_session_run_hooks
from tensorflow_estimator.python.estimator import estimator
from tensorflow_estimator.python.estimator import run_config

# pytest must rewrite these modules before their import. Otherwise a failed assert does
# not show its values.
pytest.register_assert_rewrite("support.classifiers", "support.decoding")


def _first_save(self, session, coord):
  """Saves step 0, without the graph as text and in the events, which no test reads."""
  del coord
  step = session.run(self._global_step_tensor)
  self._save(session, step)
  self._timer.update_last_triggered_step(step)


# TensorFlow keeps the calls that made each operation, for messages that no test reads.
ops._create_c_op = functools.partial(ops._create_c_op, extract_traceback=False)

# A third of the time of a tiny training, here and in the forks that run commands.
basic_session_run_hooks.CheckpointSaverHook.after_create_session = _first_save
estimator.run_config = types.SimpleNamespace(**{
    **vars(run_config), "get_default_session_config": sessions.config})
