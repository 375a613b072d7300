"""LightConv and DyConv against NumPy, and errors.

tests/stack has whole models with them: decoding, meshes, TPUs.
"""

import numpy as np
import pytest
from support import harness
from support import models
from support import reference
import synthesizer_mtf

NAMES = ["LightConv", "DyConv"]
both = pytest.mark.parametrize("name", NAMES)
PACKED = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 2, 2, 2, 2, 2, 2]])
PADDED = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
FULL = {"kernels": "per_channel", "pointwise": True, "use_bias": True}


def make(name, **kwargs):
  return synthesizer_mtf.attention_layer(name, **{
      "num_heads": 3, "key_value_size": 5, "dropout_rate": 0.0,
      "kernel_size": 4, **kwargs})


def tokens(length=7, seed=0):
  return np.random.RandomState(seed).randn(
      2, length, harness.D_MODEL).astype(np.float32)


def numpy_layer(name, p, x, ids, decoder, heads):
  """Wu et al., equations 1 to 3 and the module around them, with loops."""
  def bias(which):
    return p.get(which, 0.0)

  gate = 1 / (1 + np.exp(-(x @ p["gate"] + bias("gate_bias"))))
  glu = (x @ p["v"] + bias("v_bias")) * gate
  size = p["W"].shape[-2]
  left = size - 1 if decoder else (size - 1) // 2
  out = np.zeros_like(glu)
  batch, length, channels = glu.shape
  for b in range(batch):
    for i in range(length):
      logits = p["W"] if name == "LightConv" else (
          np.einsum("c,ckh->kh", glu[b, i], p["W"]) + bias("W_bias"))
      kernel = reference.softmax(logits.T)  # [heads, kernel]
      for c in range(channels):
        for j in range(size):
          at = i + j - left
          if 0 <= at < length and ids[b, at] == ids[b, i]:
            out[b, i, c] += kernel[c * heads // channels, j] * glu[b, at, c]
  out += bias("bias")
  if "pointwise" in p:
    out = out @ p["pointwise"] + bias("pointwise_bias")
  return out @ p["o"] + bias("o_bias")


@both
@pytest.mark.parametrize("decoder, ids, packed", [
    (False, PADDED, False), (True, PADDED, False), (False, PACKED, True),
    (True, PACKED, True)],
                         ids=["encoder", "decoder", "packed encoder", "packed decoder"])
@pytest.mark.parametrize("kwargs", [{}, FULL], ids=["per_head", "per_channel"])
def test_output_and_gradients_equal_the_papers_formula(
    name, decoder, ids, packed, kwargs):
  x = tokens()
  weights = np.random.RandomState(1).randn(*x.shape) * (ids > 0)[..., None]
  y, graph, grads = harness.forward(
      make(name, **kwargs), x, decoder, ids, packed=packed, gradients=True,
      loss_weights=weights)
  p = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  assert set(grads) == set(p)

  def formula(p):
    return numpy_layer(name, p, x, ids, decoder, 15 if kwargs else 3)

  np.testing.assert_allclose(y[ids > 0], formula(p)[ids > 0], atol=2e-5)
  if not kwargs or decoder:
    reference.check_gradients(grads, p, lambda p: np.sum(weights * formula(p)))


@both
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_kernels_may_be_even_or_longer_than_the_sequence(name, decoder):
  x = tokens()
  for kernel_size in (1, 2, 7, 16):
    y, graph = harness.forward(make(name, kernel_size=kernel_size), x, decoder)
    expected = numpy_layer(
        name, graph.variables, x, np.ones((2, 7)), decoder, 3)
    np.testing.assert_allclose(y, expected, atol=2e-5)


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


# Parameters.


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


@both
def test_a_list_of_another_length_is_an_error(name):
  with pytest.raises(ValueError) as error:
    sizes(f"synthesizer_stack.attention = '{name}'",
          f"encoder/{name}.kernel_size = [3, 7, 15]")
  assert (f"`encoder/{name}.kernel_size` has 3 entries, [3, 7, 15], but the "
          "stack has 2 blocks; give one entry for each block"
          ) in str(error.value)


@both
def test_a_list_needs_a_stack_that_gives_the_number_of_the_block(name):
  with pytest.raises(ValueError, match=rf"`{name}.kernel_size` is \[3, 7\].*"
                     "only `synthesizer_stack` hands"):
    harness.forward(make(name, kernel_size=[3, 7]), tokens(), True)


@pytest.mark.parametrize("kwargs, message", [
    ({"kernel_size": 0}, "kernel_size` is 0 but must be"),
    ({"kernel_size": [3, 2.5]}, "kernel_size` is 2.5 but must be"),
    ({"kernel_size": []}, "kernel_size` is an empty list"),
    ({"kernels": "all"}, "kernels` is 'all' but must be 'per_head' or"),
    ({"num_heads": 0}, "num_heads` is 0"),
    ({"dropout_rate": 1.0}, "dropout_rate` is 1.0")])
def test_a_bad_parameter_is_named(kwargs, message):
  for name in NAMES:
    with pytest.raises(ValueError, match=f"`{name}.{message}"):
      make(name, **kwargs)


@both
def test_without_d_kv_the_heads_divide_d_model(name):
  layer = synthesizer_mtf.attention_layer(name, num_heads=harness.D_MODEL)
  _, graph = harness.forward(layer, tokens(), True)
  assert graph.variables["v"].shape == (harness.D_MODEL, harness.D_MODEL)
  layer = synthesizer_mtf.attention_layer(name, num_heads=4)
  with pytest.raises(ValueError, match=f"`{name}.num_heads` is 4 but must "
                     "divide the 11 channels"):
    harness.forward(layer, tokens(), True)


@both
def test_a_split_length_is_an_error(name):
  models.parse_gin([], models.TINY + [f"synthesizer_stack.attention = '{name}'"])
  m = models.Model(mesh_shape="model:2", layout="length:model")
  with m.tf_graph.as_default(), pytest.raises(
      ValueError, match="` splits length over the mesh, but "):
    ids = m.ids(np.ones((2, 6), int))
    m.model.call_simple(ids, ids, True, mode="train")
