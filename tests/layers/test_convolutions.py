"""LightConv and DyConv against NumPy, in each mode and on meshes, and errors."""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
import numpy as np
import pytest
from support import harness
from support import meshes
from support import models
from support import reference
from support.decoding import check_beam_search
from support.decoding import check_continuation
from support.decoding import check_greedy_decoding
from support.decoding import EOS
from support.meshes import LAYOUT
import synthesizer_mtf
import tensorflow.compat.v1 as tf

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
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("ids, packed", [
    (None, False), (PADDED, False), (PACKED, True)],
                         ids=["plain", "padded", "packed"])
@pytest.mark.parametrize("kwargs", [{}, FULL], ids=["per_head", "per_channel"])
def test_equals_the_papers_formula(name, decoder, ids, packed, kwargs):
  x = tokens()
  y, graph, grads = harness.forward(
      make(name, **kwargs), x, decoder, ids, packed=packed, gradients=True)
  p = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  ids = np.ones((2, 7), int) if ids is None else ids
  expected = numpy_layer(name, p, x, ids, decoder, 15 if kwargs else 3)
  seen = ids > 0
  np.testing.assert_allclose(y[seen], expected[seen], atol=2e-5)
  assert all(np.abs(grad).max() > 0 for grad in grads.values())


@both
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_gradients_equal_finite_differences(name, packed):
  """Differentiates the loss of the NumPy layer numerically."""
  x, ids = tokens(), PACKED if packed else PADDED
  loss_weights = np.random.RandomState(1).randn(*x.shape) * (ids > 0)[..., None]
  _, graph, grads = harness.forward(
      make(name, use_bias=True), x, True, ids, packed=packed, gradients=True,
      loss_weights=loss_weights)
  p = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  generator = np.random.RandomState(2)
  assert set(grads) == set(p)
  for key, value in p.items():
    direction = generator.randn(*value.shape)
    losses = [np.sum(loss_weights * numpy_layer(
        name, {**p, key: value + step * direction}, x, ids, True, 3))
              for step in (-1e-5, 1e-5)]
    np.testing.assert_allclose(
        np.sum(grads[key] * direction), (losses[1] - losses[0]) / 2e-5,
        rtol=1e-3, atol=1e-3, err_msg=key)


@both
@pytest.mark.parametrize("kernel_size", [1, 2, 7, 16])
def test_kernels_may_be_even_or_longer_than_the_sequence(name, kernel_size):
  x = tokens()
  for decoder in (False, True):
    y, graph = harness.forward(make(name, kernel_size=kernel_size), x, decoder)
    expected = numpy_layer(
        name, graph.variables, x, np.ones((2, 7)), decoder, 3)
    np.testing.assert_allclose(y, expected, atol=2e-5)


@pytest.mark.parametrize("name, decoder", [("LightConv", False), ("DyConv", True)])
def test_packed_examples_equal_the_same_examples_one_per_row(name, decoder):
  x, layer = tokens(), make(name, **FULL)
  y, _ = harness.forward(layer, x, decoder, PACKED, packed=True)
  for row, segment in ((0, 1), (0, 2), (1, 2)):
    mine = PACKED[row] == segment
    alone = np.zeros_like(x)
    alone[:, :mine.sum()] = x[row, mine]
    ids = np.broadcast_to(np.arange(7) < mine.sum(), (2, 7)).astype(int)
    expected, _ = harness.forward(layer, alone, decoder, ids)
    np.testing.assert_allclose(
        y[row, mine], expected[0, :mine.sum()], atol=1e-5)


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


@both
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
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


# Whole models.


def parse(name, *bindings):
  models.parse_gin([], models.TINY + [
      f"synthesizer_stack.attention = '{name}'",
      "Unitransformer.shared_embedding_and_softmax_weights = False",
      f"{name}.kernel_size = 4", *bindings])


def full(name):
  return [f"{name}.{key} = {value!r}" for key, value in FULL.items()]


@pytest.mark.parametrize("name, wide", [("LightConv", True), ("DyConv", False)])
def test_greedy_decoding_gives_the_argmax_of_the_full_pass(name, wide):
  parse(name, *(full(name) if wide else []))
  check_greedy_decoding()


@both
@pytest.mark.parametrize("kernel_size, prefix", [(4, False), (30, True)],
                         ids=["causal", "prefix"])
def test_a_language_model_continues_as_the_full_pass(name, kernel_size, prefix):
  parse(name, f"{name}.kernel_size = {kernel_size}",
        f"Unitransformer.input_full_attention = {prefix}")
  m = models.Model("lm")
  start = np.array([[5, 9, EOS, 0, 0, 0, 0, 0], [8, EOS, 0, 0, 0, 0, 0, 0]])
  check_continuation(m, start)


@both
def test_the_decoding_state_holds_only_the_tokens_under_the_kernel(name):
  parse(name)
  m = models.Model("lm")
  length = mtf.Dimension("length", 9)
  with m.tf_graph.as_default():
    positions = mtf.range(m.mesh, length, tf.int32)
    context = transformer.Context(
        model=m.model, mesh=m.mesh, batch_dims=[mtf.Dimension("batch", 1)],
        length_dim=length, variable_dtype=mtf.VariableDType(),
        mode="first_part", new_states=[], position=positions,
        position_is_default=True,
        initial_position=mtf.constant(
            m.mesh, 5, mtf.Shape([mtf.Dimension("batch", 1)]), tf.int32))
    with tf.variable_scope("decoder"):
      m.model._call_internal(context, m.ids([[2, 3, 4, 5, 6, 0, 0, 0, 0]]))
  assert [s.shape.to_integer_list for s in context.new_states] == [
      [1, 4, 2, 6]] * 2


def test_beam_search_scores_its_result_as_the_full_pass_does():
  parse("DyConv")
  check_beam_search()


@pytest.mark.slow
@pytest.mark.parametrize("name, packed, wide", [
    ("LightConv", False, False), ("LightConv", True, True),
    ("DyConv", True, False)])
def test_loss_and_gradients_do_not_depend_on_mesh_or_recomputation(
    name, packed, wide):
  more = full(name) if wide else []
  expected = meshes.loss_and_gradients(name, "", packed, *more)
  for mesh_shape, bindings in (
      ("batch:2", []), ("model:2", []),
      ("", ["LayerStack.recompute_grads = True"])):
    other = meshes.loss_and_gradients(name, mesh_shape, packed, *more, *bindings)
    for key, value in expected.items():
      np.testing.assert_allclose(other[key], value, atol=1e-4, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name, packed", [
    ("LightConv", False), ("DyConv", True)])
def test_a_training_step_lowers_to_eight_cores_and_splits_the_variables(
    name, packed):
  m, mesh_impl, _ = meshes.lowered_step(name, packed, *full(name))
  ours = [v for v in m.graph.trainable_variables if f"/{name}/" in v.name]
  assert len(ours) == 2 * (10 if name == "LightConv" else 11)
  for variable in ours:
    if not variable.name.endswith("/o_bias"):  # [d_model]
      assert np.prod(mesh_impl.slice_shape(variable.shape)) * 4 == variable.size


# Parameters.


def sizes(*bindings, decoder=False):
  models.parse_gin([], models.TINY + list(bindings))
  model = models.build()
  layers = (model.decoder if decoder else model.encoder).layer_stack.layers
  return [layer.kernel_size for layer in layers
          if type(layer).__name__ in NAMES]


@both
def test_each_block_takes_its_entry_of_a_list_of_kernel_sizes(name):
  bindings = [f"synthesizer_stack.attention = '{name}'",
              f"encoder/{name}.kernel_size = [3, 7]",
              f"decoder/{name}.kernel_size = 5"]
  assert sizes(*bindings) == [3, 7]
  assert sizes(*bindings, decoder=True) == [5, 5]


def test_blocks_with_other_attentions_have_an_entry_in_the_list():
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
                     "only `synthesizer_stack` tells"):
    harness.forward(make(name, kernel_size=[3, 7]), tokens(), True)


@both
@pytest.mark.parametrize("kwargs, message", [
    ({"kernel_size": 0}, "kernel_size` is 0 but must be"),
    ({"kernel_size": [3, 2.5]}, "kernel_size` is 2.5 but must be"),
    ({"kernel_size": []}, "kernel_size` is an empty list"),
    ({"kernels": "all"}, "kernels` is 'all' but must be 'per_head' or"),
    ({"num_heads": 0}, "num_heads` is 0"),
    ({"dropout_rate": 1.0}, "dropout_rate` is 1.0")])
def test_a_bad_parameter_is_named(name, kwargs, message):
  with pytest.raises(ValueError, match=f"`{name}.{message}"):
    make(name, **kwargs)


@both
def test_without_d_kv_the_heads_divide_d_model(name):
  gin.clear_config()
  layer = synthesizer_mtf.attention_layer(name, num_heads=harness.D_MODEL)
  _, graph = harness.forward(layer, tokens(), True)
  assert graph.variables["v"].shape == (harness.D_MODEL, harness.D_MODEL)
  layer = synthesizer_mtf.attention_layer(name, num_heads=4)
  with pytest.raises(ValueError, match=f"`{name}.num_heads` is 4 but must "
                     "divide the 11 channels"):
    harness.forward(layer, tokens(), True)


@both
@pytest.mark.parametrize("layout, message", [
    (LAYOUT, ".num_heads` is 3 but `utils.run.layout_rules` splits heads"),
    ("length:model", "` splits length over the mesh, but ")])
def test_an_impossible_layout_is_an_error(name, layout, message):
  parse(name, "num_heads = 3")
  m = models.Model(mesh_shape="model:2", layout=layout)
  with m.tf_graph.as_default(), pytest.raises(ValueError) as error:
    ids = m.ids(np.ones((2, 6), int))
    m.model.call_simple(ids, ids, True, mode="train")
  assert message in str(error.value)
