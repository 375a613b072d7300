"""LightConv and DyConv, beside what test_random_configurations.py draws of them."""

import numpy as np
import pytest
from support import harness
from support import models
from support.examples import PACKED
from support.examples import PADDED
from support.examples import tokens
import synthesizer_mtf

NAMES = ["LightConv", "DyConv"]
both = pytest.mark.parametrize("name", NAMES)


def make(name, **kwargs):
  return synthesizer_mtf.attention_layer(name, **{
      "num_heads": 3, "key_value_size": 5, "dropout_rate": 0.0,
      "kernel_size": 4, **kwargs})


@both
def test_dropout_drops_entries_of_the_normalized_kernel(name):
  """If all weights are 1/k, the sums of the kept ones are multiples of 1/(k keep)."""
  channels = harness.D_MODEL
  layer = make(name, dropout_rate=0.5, num_heads=channels, key_value_size=1)
  x = np.ones((2, 9, channels), np.float32)
  y, _ = harness.forward(layer, x, False, mode="train", values={
      "v": np.eye(channels), "gate": np.zeros((channels, channels)),
      "W": np.zeros([4, channels] if name == "LightConv" else
                    [channels, 4, channels]),
      "o": np.eye(channels)})
  kept = y[:, 1:-2] / 0.5 * 4 * 0.5  # away from the ends; the gate is a half
  np.testing.assert_allclose(kept, kept.round(), atol=1e-5)
  assert len(np.unique(kept.round())) > 1  # of 0 to 4
  assert np.ptp(kept, axis=1).max() < 1e-5  # the same at each position


@pytest.mark.parametrize("name, packed", [("LightConv", True), ("DyConv", False)])
def test_bfloat16_activations_keep_a_float32_softmax(name, packed):
  x, ids = tokens(), PACKED if packed else PADDED
  results = [harness.forward(make(name), x, True, ids, packed=packed,
                             activation=dtype, gradients=True)
             for dtype in ("float32", "bfloat16")]
  scale = np.abs(results[0][0]).max()
  assert np.abs(results[0][0] - results[1][0])[ids > 0].max() < 0.04 * scale
  for key, grad in results[0][2].items():
    error = np.abs(grad - results[1][2][key]).max()
    assert error < 0.05 * np.abs(grad).max(), key


@both
def test_the_kernel_is_drawn_as_in_the_authors_code(name):
  layer = make(name, num_heads=40, kernel_size=9)
  _, graph = harness.forward(layer, tokens(), True, scale=None)
  fan_in = 9 if name == "LightConv" else 200
  expected = np.sqrt(2 / (fan_in + 9 * 40))
  assert abs(graph.variables["W"].std() / expected - 1) < 0.15


def sizes(*bindings, decoder=False):
  models.parse_gin([], models.TINY + list(bindings))
  model = models.build()
  layers = (model.decoder if decoder else model.encoder).layer_stack.layers
  return [layer.kernel_size for layer in layers
          if type(layer).__name__ in NAMES]


def test_each_block_takes_its_entry_of_a_list_of_kernel_sizes():
  bindings = ["synthesizer_stack.attention = 'LightConv'",
              "encoder/LightConv.kernel_size = [3, 7]",
              "decoder/LightConv.kernel_size = 5"]
  assert sizes(*bindings) == [3, 7]
  assert sizes(*bindings, decoder=True) == [5, 5]
  # Blocks with other attentions have an entry, too.
  assert sizes('synthesizer_stack.attention = ["V", "DyConv"]',
               "DyConv.kernel_size = [3, 7]") == [7]


def test_without_d_kv_the_heads_divide_d_model():
  layer = synthesizer_mtf.attention_layer("LightConv", num_heads=harness.D_MODEL)
  _, graph = harness.forward(layer, tokens(), True)
  assert graph.variables["v"].shape == (harness.D_MODEL, harness.D_MODEL)
  layer = synthesizer_mtf.attention_layer("DyConv", num_heads=4)
  with pytest.raises(ValueError, match="`DyConv.num_heads` is 4 but must divide the 11 "
                     "channels"):
    harness.forward(layer, tokens(), True)


def test_a_split_length_is_an_error():
  models.parse_gin([], models.TINY + ["synthesizer_stack.attention = 'DyConv'"])
  m = models.Model(mesh_shape="model:2", layout="length:model")
  with m.tf_graph.as_default(), pytest.raises(
      ValueError, match="` splits length over the mesh, but "):
    ids = m.ids(np.ones((2, 6), int))
    m.model.call_simple(ids, ids, True, mode="train")
