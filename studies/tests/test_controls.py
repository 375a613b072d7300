"""Frozen-QK and MixiT, beside their formulas in NumPy."""

import numpy as np
import pytest
from support import decoding
from support import harness
from support import models
from support.examples import PADDED
from support.examples import tokens
import synthesizer_mtf


def layer(notation, **kwargs):
  return synthesizer_mtf.attention_layer(
      notation, num_heads=3, key_value_size=4, dropout_rate=0.0, **kwargs)


def heads(product):
  """[batch, length, heads * d_kv] -> [batch, heads, length, d_kv]."""
  return product.reshape(*product.shape[:2], 3, 4).transpose(0, 2, 1, 3)


def output(weights, x, p):
  mean = np.einsum("bhlm,bhmd->blhd", weights, heads(x @ p["v"]))
  return mean.reshape(*x.shape[:2], 12) @ p["o"]


@pytest.mark.parametrize("decoder", [False, True])
def test_frozen_qk_computes_as_v_does(decoder):
  x = tokens()
  y, graph = harness.forward(layer("FrozenQK"), x, decoder)
  p = graph.variables
  logits = heads(x @ p["q"]) @ heads(x @ p["k"]).swapaxes(-1, -2)
  if decoder:
    logits = np.where(np.tri(7, dtype=bool), logits, -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(y, output(weights, x, p), atol=1e-4)


def mixing(w, decoder, length=7):
  """I + W - the mean of W over the keys that a row of the table may see."""
  seen = np.tri(w.shape[-1]) if decoder else np.ones(w.shape[-2:])
  w = w * seen
  a = np.eye(w.shape[-1]) + w - w.sum(-1, keepdims=True) / seen.sum(-1)[:, None]
  return (a * seen)[:, :length, :length]


@pytest.mark.parametrize("decoder", [False, True])
def test_mixit_adds_centered_noise_to_the_identity(decoder):
  x = tokens()
  y, graph = harness.forward(layer("MixiT", max_length=9, softmax=False), x, decoder)
  weights = mixing(graph.variables["mixing"], decoder)
  np.testing.assert_allclose(
      y, output(np.broadcast_to(weights, (2, *weights.shape)), x, graph.variables),
      atol=1e-4)
  if decoder:  # A full row of a text keeps its sum.
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_mixit_gives_padding_no_weight():
  x = tokens()
  y, graph = harness.forward(
      layer("MixiT", max_length=9, softmax=False), x, False, sequence_id=PADDED)
  weights = mixing(graph.variables["mixing"], False) * (PADDED > 0)[:, None, None, :]
  expected = output(weights, x, graph.variables)
  np.testing.assert_allclose(y[PADDED > 0], expected[PADDED > 0], atol=1e-4)


@pytest.mark.parametrize("notation", ["FrozenQK", "MixiT"])
def test_only_the_values_and_the_output_are_trained(notation):
  options = {"max_length": 9, "softmax": False} if notation == "MixiT" else {}
  *_, gradients = harness.forward(
      layer(notation, **options), tokens(), True, gradients=True)
  assert set(gradients) == {"v", "o"}


@pytest.mark.parametrize("notation", ["FrozenQK", "MixiT"])
def test_a_decoder_decodes_as_a_full_pass(notation):
  extra = ["SyntheticAttention.softmax = False"] if notation == "MixiT" else []
  decoding.parse(notation, *extra)
  decoding.check_greedy_decoding()


@pytest.mark.parametrize("bindings", [
    [], ["SyntheticAttention.softmax = True"],
    ["SOFTMAX = True", "decoder/SyntheticAttention.softmax = %SOFTMAX"]])
def test_mixit_with_a_softmax_is_one_sentence(bindings):
  with pytest.raises(ValueError, match="`SyntheticAttention.softmax` is True, but MixiT"
                     ".*bind it to False"):
    models.parse_gin([], ["synthesizer_stack.attention = ['V', 'MixiT']", *bindings])
  models.parse_gin(["studies/mixit.gin"], ["table_length = 8"])
