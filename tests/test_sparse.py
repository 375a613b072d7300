"""Fixed and strided attention against dense attention under the same sets."""

import itertools

import harness
import mesh_tensorflow as mtf
import numpy as np
import pytest
import reference
import synthesizer_mtf

HEADS, D_KV = 3, 5
LENGTH = 13
PADDED = np.array([[1] * 13, [1] * 8 + [0] * 5])
PACKED = np.array([[1] * 7 + [2] * 4 + [3] + [0], [1] * 2 + [2] * 11])
PREFIX = np.array([[0] * 6 + list(range(6, 13)), [0] * 2 + list(range(2, 13))])

# name, parameters: the length is a multiple of few of the strides.
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


both_stacks = pytest.mark.parametrize(
    "decoder", [False, True], ids=["encoder", "decoder"])


def make(name, **kwargs):
  return synthesizer_mtf.attention_layer(name, **{
      "num_heads": HEADS, "key_value_size": D_KV, "dropout_rate": 0.0, **kwargs})


def tokens(batch=2, length=LENGTH, seed=1):
  generator = np.random.RandomState(seed)
  return generator.randn(batch, length, harness.D_MODEL).astype(np.float32)


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


def visible(name, kwargs, ids, decoder, priority=None, heads=HEADS):
  """<bool>[batch, heads, length, memory_length], pair by pair."""
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
  """Dot-product attention to what is seen: [batch, length, d_model]."""
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
                   visible(name, kwargs, ids, decoder, priority))
  np.testing.assert_allclose(y[ids > 0], expected[ids > 0], atol=2e-5)


@each(CASES)
@both_stacks
def test_equals_dense_attention_under_the_same_sets(name, kwargs, decoder):
  check(name, kwargs, PADDED, decoder)


@each(CASES)
@both_stacks
def test_sets_follow_the_positions_within_packed_examples(
    name, kwargs, decoder):
  check(name, kwargs, PACKED, decoder, packed=True)


@each(FEW)
@pytest.mark.parametrize("ids", [PADDED, PACKED], ids=["padded", "packed"])
@both_stacks
@pytest.mark.parametrize("pattern", PATTERNS[1:])
def test_heads_see_what_the_pattern_gives_them(
    name, kwargs, ids, decoder, pattern):
  check(name, {**kwargs, "pattern": pattern}, ids, decoder,
        packed=ids is PACKED)


@each(CASES)
def test_a_prefix_is_seen_from_both_sides(name, kwargs):
  check(name, kwargs, np.ones((2, LENGTH), int), True, PREFIX,
        context={"read_priority": PREFIX, "write_priority": PREFIX})
