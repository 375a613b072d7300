"""Attentions that are mixed after their softmax, as in PAPA."""

import numpy as np
import pytest
from studies.calibration import interpolation
from support import cases
from support import harness
from support import reference

IDS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize("decoder", [False, True])
def test_attentions_are_mixed_after_their_softmax(decoder):
  layer = interpolation.Notation("R+V")(
      num_heads=cases.HEADS, key_value_size=cases.D_KV, dropout_rate=0.0,
      relative_attention_type="bias", max_length=12)
  x = np.random.RandomState(1).randn(*IDS.shape, harness.D_MODEL)
  found, graph = harness.forward(layer, x, decoder, IDS, packed=True)
  p, call = graph.variables, cases.Call(x, IDS, cases.HEADS, decoder)
  assert p["alpha"].shape == (cases.HEADS, 2)
  bias = reference.relative_bias(p["relative_attention_bias"], x.shape[1], decoder)
  expected = 0
  for logits, share in zip((cases.random(p, call), cases.dot_product(p, call)),
                           reference.softmax(p["alpha"]).T):
    output = np.repeat(share, cases.D_KV)[:, None] * p["o"]  # The means are linear.
    expected += reference.output(logits + bias, {**p, "o": output}, x,
                                 reference.mask(IDS, decoder), cases.HEADS)
  seen = IDS > 0
  np.testing.assert_allclose(found[seen], expected[seen], atol=1e-5)
