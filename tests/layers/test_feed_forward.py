"""The fast feed-forward layer, beside what test_fast_equals_plain.py compares."""

from unittest import mock

import gin
from mesh_tensorflow.transformer import transformer_layers
import numpy as np
import pytest
from support import harness
from support import lookalikes
from support import models
from support.reference import check_same
from synthesizer_mtf.fast import feed_forward
from synthesizer_mtf.fast import mixed_precision

BATCH, LENGTH, D_FF, RATE = 3, 5, 7, 0.25
X = np.random.RandomState(1).randn(BATCH, LENGTH, harness.D_MODEL)


@pytest.fixture(autouse=True)
def no_gin():
  models.parse_gin()


def stock(rate=RATE, **kwargs):
  return transformer_layers.DenseReluDense(
      hidden_size=D_FF, dropout_rate=rate, **kwargs)


def run(layer, mode="train", **kwargs):
  return harness.forward(layer, X, False, gradients=True, mode=mode, **kwargs)


def test_in_mixed_precision_output_and_gradients_equal_those_of_stock(monkeypatch):
  expected, stocks, expected_grads = run(stock())
  monkeypatch.setattr(mixed_precision, "is_marked", lambda: True)
  y, graph, grads = run(feed_forward.for_layer(stock()))
  assert graph.variables.keys() == stocks.variables.keys() == grads.keys()
  np.testing.assert_allclose(y, expected, atol=1e-5)
  check_same(grads, expected_grads, atol=1e-5)


def test_on_tpus_stock_is_called():
  fast = feed_forward.for_layer(stock())
  with mock.patch.object(transformer_layers.DenseReluDense, "call",
                         side_effect=transformer_layers.DenseReluDense.call,
                         autospec=True) as call:
    run(fast, tpu=True)
    assert call.call_count == 1
    run(fast)
    assert call.call_count == 1


@pytest.mark.parametrize("bindings, scope", [
    (["DenseReluDense.activation = 'gelu'", "wide/DenseReluDense.activation = 'relu'",
      "DenseReluDense.use_bias = True", "wide/DenseReluDense.use_bias = False"],
     "wide"),
    (["decoder/DenseReluDense.activation = 'gelu'",
      "decoder/DenseReluDense.use_bias = True"], ""),
    (["DenseReluDense.activation = 'gelu'", "wide/DenseReluDense.activation = 'relu'",
      "decoder/DenseReluDense.activation = 'swish'"], "wide"),
], ids=["of its own scope", "before the decoder's", "among three"])
def test_a_layer_keeps_what_gin_gave_it_in_another_scope(bindings, scope):
  models.parse_gin([], bindings)
  with gin.config_scope(scope):
    layer = stock(rate=0.0)
  with gin.config_scope("decoder"):
    fast = feed_forward.for_layer(layer)
  assert type(fast) is feed_forward.DenseReluDense
  assert vars(fast) == vars(layer)
  trained, expected, evaluated = [
      run(case, mode)[0] for case, mode in (
          (fast, "train"), (layer, "train"), (fast, "eval"))]
  np.testing.assert_allclose(trained, expected, atol=1e-5)
  np.testing.assert_allclose(evaluated, expected, atol=1e-5)


def test_other_layers_stay():
  lookalikes.check_stay(
      feed_forward.for_layer, transformer_layers.DenseReluDense, "call",
      lambda cls: cls(hidden_size=D_FF))
  for other in ({"activation": "gelu"}, {"activation": ["gelu", "linear"]},
                {"use_bias": True}, {"rate": 1.0}):
    layer = stock(**other)
    assert feed_forward.for_layer(layer) is layer
