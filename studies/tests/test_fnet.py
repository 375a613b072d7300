"""FNet's mixing, beside NumPy's Fourier transform."""

import numpy as np
import pytest
from studies import fnet
from support import harness
from support.examples import tokens


def test_fnet_is_the_real_part_of_a_unitary_transform_over_tokens_and_channels():
  x = tokens()
  y, graph = harness.forward(fnet.FNet(), x, False)
  assert not graph.variables
  np.testing.assert_allclose(y, np.fft.fft2(x, norm="ortho").real, atol=1e-5)


def test_fnet_is_for_encoders():
  with pytest.raises(ValueError, match="encoder/synthesizer_stack.attention"):
    harness.forward(fnet.FNet(), tokens(), True)
