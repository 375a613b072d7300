"""Fixed and strided attention against dense attention under the same sets.

tests/stack has whole models with them: decoding, meshes, TPUs.
"""

import itertools

import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import examples
from support import harness
from support import models
from support import reference
import synthesizer_mtf
from synthesizer_mtf.attention.others import sparse_fixed
import tensorflow.compat.v1 as tf

HEADS, D_KV = 3, 5
LENGTH = 13
PADDED = np.array([[1] * 13, [1] * 8 + [0] * 5])
PACKED = np.array([[1] * 7 + [2] * 4 + [3] + [0], [1] * 2 + [2] * 11])
PREFIX = np.array([[0] * 6 + list(range(6, 13)), [0] * 2 + list(range(2, 13))])

# Names and parameters. Only a few of the strides divide the length.
CASES = [
    ("SparseFixed", {"stride": 4, "columns": 2}),
    ("SparseFixed", {"stride": 5, "columns": 2, "distinct_columns": False}),
    ("SparseFixed", {"stride": 13, "columns": 3}),
    ("SparseFixed", {"stride": 17, "columns": 8}),
    ("SparseFixed", {"stride": 1, "columns": 1}),
    ("SparseStrided", {"stride": 4}),
    ("SparseStrided", {"stride": 13}),
    ("SparseStrided", {"stride": 17}),
    ("SparseStrided", {"stride": 1}),
]
FEW = [CASES[0], CASES[5]]
PATTERNS = ["merged", "local", "summary", "alternate"]


def ids_of(cases):
  return ["-".join([name] + [str(v) for v in kwargs.values()])
          for name, kwargs in cases]


def each(cases):
  return pytest.mark.parametrize("name, kwargs", cases, ids=ids_of(cases))


def make(name, **kwargs):
  return synthesizer_mtf.attention_layer(name, **{
      "num_heads": HEADS, "key_value_size": D_KV, "dropout_rate": 0.0,
      **kwargs})


def tokens(batch=2, length=LENGTH, seed=1):
  return examples.tokens(batch, length, seed)


def in_set(name, i, j, head, stride, columns=None, distinct_columns=True,
           pattern="merged"):
  """Whether j is in the set of i, as arXiv:1904.10509, section 4.3, has it."""
  if name == "SparseStrided":
    a1, a2 = abs(i - j) <= stride, (i - j) % stride == 0
  else:
    a1 = i // stride == j // stride
    turn = head // 2 if pattern == "alternate" else head
    turn = turn % (stride // columns) if distinct_columns else 0
    t = stride - columns * (turn + 1)
    a2 = j % stride in range(t, t + columns)
  if pattern == "alternate":
    pattern = ["local", "summary"][head % 2]
  return {"merged": a1 or a2, "local": a1, "summary": a2}[pattern]


def mask(name, kwargs, ids, decoder, priority=None, heads=HEADS):
  """The mask <bool>[batch, heads, length, memory_length], pair by pair."""
  batch, length = ids.shape
  position = reference.positions(ids)
  result = np.zeros((batch, heads, length, length), bool)
  for b, h, i, j in itertools.product(
      range(batch), range(heads), range(length), range(length)):
    seen = ids[b, i] == ids[b, j] and in_set(
        name, position[b, i], position[b, j], h, **kwargs)
    if priority is not None:
      seen = seen and priority[b, i] >= priority[b, j]
    elif decoder:
      seen = seen and j <= i
    result[b, h, i, j] = seen
  return result


def dense(p, x, seen, heads=HEADS):
  """Dot-product attention to the keys in `seen`: [batch, length, d_model]."""
  q, k, v = [np.einsum("bnd,dhk->bhnk", x, reference.per_head(p[name], heads))
             for name in "qkv"]
  weights = np.exp(np.einsum("bhik,bhjk->bhij", q, k)) * seen
  total = weights.sum(-1, keepdims=True)
  mean = np.einsum("bhij,bhjk->bhik", weights / np.where(total, total, 1), v)
  return np.einsum("bhik,hkd->bid", mean,
                   p["o"].reshape(heads, -1, x.shape[-1]))


def check(name, kwargs, ids, decoder, priority=None, **more):
  """Compares a layer with dense attention, where there is no padding."""
  x = tokens(*ids.shape)
  y, graph = harness.forward(
      make(name, **kwargs), x, decoder, ids, scale=0.3, **more)
  expected = dense(graph.variables, x,
                   mask(name, kwargs, ids, decoder, priority))
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


# Sets follow the positions within packed examples.
KINDS = [(PADDED, False), (PACKED, True), (PACKED, False), (PADDED, True)]


@pytest.mark.parametrize("name, kwargs, ids, decoder", [
    (*case, *kind) for i, case in enumerate(CASES)
    for kind in (KINDS[:2], KINDS[2:])[i % 2]])
def test_equals_dense_attention_under_the_same_sets(name, kwargs, ids, decoder):
  check(name, kwargs, ids, decoder, packed=ids is PACKED)


@pytest.mark.parametrize("name, kwargs, ids, decoder", [
    (name, {**kwargs, "pattern": pattern}, *kind)
    for i, (name, kwargs) in enumerate(FEW)
    for j, pattern in enumerate(PATTERNS[1:])
    for kind in KINDS[i + j:i + j + 1]])
def test_each_head_sees_the_keys_of_its_pattern(name, kwargs, ids, decoder):
  check(name, kwargs, ids, decoder, packed=ids is PACKED)


@each([CASES[0], CASES[3], CASES[4], CASES[5], CASES[7]])
def test_a_prefix_is_seen_from_both_sides(name, kwargs):
  check(name, kwargs, np.ones((2, LENGTH), int), True, PREFIX,
        context={"read_priority": PREFIX, "write_priority": PREFIX})


@each(FEW)
@pytest.mark.parametrize("ids, pattern", [(PACKED, "merged"), (PADDED, "alternate")],
                         ids=["packed", "alternate"])
def test_every_gradient_equals_a_finite_difference(name, kwargs, ids, pattern):
  x = tokens()
  kwargs = {**kwargs, "pattern": pattern}
  weights = np.arange(x.size).reshape(x.shape) / x.size * (ids > 0)[..., None]
  _, graph, grads = harness.forward(
      make(name, **kwargs), x, True, ids, packed=ids is PACKED, scale=0.3,
      gradients=True, loss_weights=weights)
  values = {k: v.astype(np.float64) for k, v in graph.variables.items()}
  assert set(grads) == set(values) == set("qkvo")
  seen = mask(name, kwargs, ids, True)
  reference.check_gradients(
      grads, values, lambda p: (dense(p, x, seen) * weights).sum())


# Parameters with all pairs in the sets: in one block, in the window, or as far keys.
COMPLETE = [
    ("SparseFixed", {"stride": 20, "columns": 3}),
    ("SparseFixed", {"stride": 4, "columns": 4}),
    ("SparseFixed", {"stride": 4, "columns": 4, "pattern": "summary"}),
    ("SparseStrided", {"stride": 12}),
    ("SparseStrided", {"stride": 1, "pattern": "summary"}),
]


@pytest.mark.parametrize("name, kwargs, ids, decoder", [
    (*case, *((PADDED, True), (PACKED, False))[i % 2])
    for i, case in enumerate(COMPLETE)])
def test_equals_the_transformers_attention_with_all_pairs_and_relative_bias(
    name, kwargs, ids, decoder):
  results = []
  for notation, parameters in (("V", {}), (name, kwargs)):
    y, _, grads = harness.forward(
        make(notation, relative_attention_type="bias_shared", **parameters),
        tokens(), decoder, ids, packed=ids is PACKED, gradients=True,
        loss_weights=tokens(seed=2) * (ids > 0)[..., None], scale=0.3)
    results.append({**grads, "output": y[ids > 0]})
  assert "relative_attention_bias" in results[0]
  assert results[0].keys() == results[1].keys()
  for key, value in results[0].items():
    np.testing.assert_allclose(
        results[1][key], value, rtol=1e-3, atol=1e-4, err_msg=key)


def largest(name, length, packed, decoder, **kwargs):
  """The size of the largest tensor, and the multiply-adds of all matrix products."""
  layer = make(name, relative_attention_type="bias", **kwargs)
  graph = harness.LayerGraph(layer, decoder, 2, length)
  with graph.tf_graph.as_default():
    batch = graph.batch_dim, graph.length_dim
    ids = graph.constant(np.ones((2, length), int), *batch)
    x = graph.constant(tokens(2, length), *batch,
                       mtf.Dimension("d_model", harness.D_MODEL))
    y = graph.call(graph.context(
        sequence_id=ids if packed else mtf.minimum(ids, 1)), x)
    mtf.gradients([mtf.reduce_sum(y)], [
        v.outputs[0] for v in graph.graph.trainable_variables])
  sizes, products = [], 0
  for operation in graph.graph.operations:
    sizes += [t.size for t in operation.outputs]
    if isinstance(operation, mtf.ops.EinsumOperation):
      dims = {d for t in operation.inputs + operation.outputs
              for d in t.shape.dims}
      products += mtf.Shape(list(dims)).size
  return max(sizes), products


@pytest.mark.parametrize("name, packed, decoder", [
    ("SparseFixed", False, True), ("SparseFixed", True, False),
    ("SparseStrided", False, True), ("SparseStrided", True, False)])
def test_cost_grows_with_the_length_to_the_power_of_1_5(
    name, packed, decoder):
  """From n = 64, l = 8 to n = 1024, l = 32 the cost grows by 64, not by 256."""
  columns = {"columns": 2} if name == "SparseFixed" else {}
  small = largest(name, 64, packed, decoder, stride=8, **columns)
  large = largest(name, 1024, packed, decoder, stride=32, **columns)
  for few, many in zip(small, large):
    assert many / few < 80
  assert large[0] < 2 * HEADS * 1024 * 1024 / 4


@each(FEW)
def test_bfloat16_stays_within_its_error_of_float32(name, kwargs):
  x = tokens()
  y, graph = harness.forward(make(name, **kwargs), x, False, PADDED, scale=0.3)
  z, _ = harness.forward(make(name, **kwargs), x, False, PADDED,
                         activation="bfloat16", values=graph.variables)
  scale = np.abs(y).max()
  assert 0 < np.abs(z - y)[PADDED > 0].max() < 0.04 * scale


@each(FEW)
def test_dropout_drops_a_key_for_all_queries_alike(name, kwargs):
  layer = make(name, num_heads=1, key_value_size=11, dropout_rate=0.5, **kwargs)
  eye = np.eye(11, dtype=np.float32)
  x = np.stack([eye] * 20)  # the output shows the weight of each key
  kept, graph = harness.forward(layer, x, False, values={"v": eye, "o": eye})
  y, _ = harness.forward(
      layer, x, False, mode="train", values=graph.variables)
  seen = mask(name, kwargs, np.ones((20, 11), int), False, heads=1)[:, 0]
  np.testing.assert_array_equal(kept > 0, seen)
  factor = np.where(seen, y / np.where(seen, kept, 1), -1)
  for key in np.moveaxis(factor, 2, 1).reshape(-1, 11):
    assert len(set(key[key >= 0].round(3))) == 1
  assert set(factor.round(3).ravel()) == {-1.0, 0.0, 2.0}


@pytest.mark.parametrize("name, kwargs, ids", [(*FEW[0], PACKED), (*FEW[1], PADDED)])
def test_further_batch_dimensions_change_nothing(name, kwargs, ids):
  """T5's trainer has `outer_batch` before `batch`, and beam search `beam`."""
  layer = make(name, relative_attention_type="bias", **kwargs)
  expected, plain = harness.forward(
      layer, tokens(), True, ids, packed=ids is PACKED)
  graph = harness.LayerGraph(layer, True, 2, LENGTH, values=plain.variables)
  with graph.tf_graph.as_default():
    dims = [mtf.Dimension("outer_batch", 1), graph.batch_dim,
            mtf.Dimension("beam", 1)]
    segments = graph.constant(ids[None, :, None], *dims, graph.length_dim)
    context = graph.context(
        sequence_id=segments if ids is PACKED else mtf.minimum(segments, 1))
    context.batch_dims = dims
    y, = graph.run(graph.call(context, graph.constant(
        tokens()[None, :, None], *dims, graph.length_dim,
        mtf.Dimension("d_model", harness.D_MODEL))))
  np.testing.assert_allclose(y[0, :, 0], expected, atol=1e-5)


@each([("SparseFixed", {"stride": 4, "columns": 1, "pattern": "summary",
                        "distinct_columns": False})])
def test_a_query_with_an_empty_set_gets_zeros_and_sees_no_later_token(
    name, kwargs):
  y, _ = harness.forward(make(name, **kwargs), tokens(), True)
  assert not y[:, :3].any() and y[:, 3].all()


def test_heads_have_columns_of_their_own_unless_told_otherwise():
  """Heads with equal variables and equal sets have equal outputs."""
  values = {name: np.tile(np.random.RandomState(n).randn(11, 5) * 0.3, HEADS)
            for n, name in enumerate("qkv")}
  values["o"] = np.eye(15)[:, :11]
  rows = []
  for distinct in (False, True):
    y, _ = harness.forward(
        make("SparseFixed", stride=4, columns=1, distinct_columns=distinct),
        tokens(), True, values=values)
    rows.append(np.abs(y[..., :5] - y[..., 5:10]).max(-1).max(0))
  assert rows[0].max() < 1e-6
  assert rows[1][:4].max() < 1e-6 < rows[1][4:].min()


def test_packed_false_gives_the_results_of_unpacked_rows():
  promised, _ = harness.forward(
      make("SparseFixed", packed=False, **CASES[0][1]), tokens(), False, PADDED,
      packed=True)
  unpacked, _ = harness.forward(
      make("SparseFixed", **CASES[0][1]), tokens(), False, PADDED)
  np.testing.assert_allclose(
      promised[PADDED > 0], unpacked[PADDED > 0], atol=1e-6)


def test_layers_of_a_stack_share_their_masks_if_their_sets_agree():
  counts = []
  for strides in ([4, 4], [4, 5]):
    graph = harness.LayerGraph(None, True, 2, LENGTH)
    with graph.tf_graph.as_default():
      context = graph.context()
      x = graph.constant(tokens(), graph.batch_dim, graph.length_dim,
                         mtf.Dimension("d_model", harness.D_MODEL))
      for n, stride in enumerate(strides):
        with tf.variable_scope(f"block_{n}"):
          x = make("SparseStrided", stride=stride).call(context, x)
    counts.append(sum(isinstance(key, tuple) and "mask near" in str(key)
                      for key in context.cache))
  assert counts == [1, 2]


def test_blocks_of_a_model_can_take_the_two_sets_in_turn():
  models.parse_gin([], models.TINY + [
      "decoder/synthesizer_stack.attention = "
      "[@decoder/a/SparseFixed, @decoder/b/SparseFixed]",
      "decoder/a/SparseFixed.pattern = 'local'",
      "decoder/b/SparseFixed.pattern = 'summary'"])
  m = models.Model()
  layers = [l for l in m.model.decoder.layer_stack.layers
            if isinstance(l, sparse_fixed.SparseFixed)]
  assert [l.pattern for l in layers] == ["local", "summary"]
