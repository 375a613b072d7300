"""The two stacks of the package, by Python's version."""

import sys

import pytest

IS_NEW = sys.version_info >= (3, 12)
only_new = pytest.mark.skipif(not IS_NEW, reason="JAX's call_tf needs TensorFlow 2.21")
