"""Helpers that several test files share."""

import pytest
import synthesizer_mtf  # noqa: F401  # Makes TensorFlow ready for mesh_tensorflow.
from tensorflow.python.training import training_util

# pytest must rewrite these modules before their import. Otherwise a failed assert does
# not show its values.
pytest.register_assert_rewrite("support.classifiers", "support.decoding")

# A training writes its graph as text, which no test reads. It would take a tenth of the
# time of a tiny training, here and in the forks that run commands.
training_util.write_graph = lambda *_, **__: None
