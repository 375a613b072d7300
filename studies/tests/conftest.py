"""Registers the controls for the tests of studies only: others read all notations."""

from unittest import mock

import pytest
from studies import controls
import synthesizer_mtf
from synthesizer_mtf.attention import functions

for _name in controls.CONTROLS:  # Tests outside studies/ are collected, too.
  del functions.SYNTHESIZING_FUNCTIONS[_name]


@pytest.fixture(autouse=True)
def registered():
  with mock.patch.dict(functions.SYNTHESIZING_FUNCTIONS):
    for name, cls in controls.CONTROLS.items():
      synthesizer_mtf.register(name, cls)
    yield
