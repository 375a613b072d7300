"""Registers the controls for the tests of studies only: others read all notations."""

import sys
from unittest import mock

import pytest
from studies import controls
from studies import jax_speed
import synthesizer_mtf
from synthesizer_mtf.attention import functions

sys.modules["jax_speed"] = jax_speed  # Which gpu_runs.py has beside itself.
for _name in controls.CONTROLS:  # Tests outside studies/ are collected, too.
  del functions.SYNTHESIZING_FUNCTIONS[_name]


@pytest.fixture(autouse=True)
def registered():
  with mock.patch.dict(functions.SYNTHESIZING_FUNCTIONS):
    for name, cls in controls.CONTROLS.items():
      synthesizer_mtf.register(name, cls)
    yield
