"""From the attentions of a layer to R, T and FR, against NumPy."""

import numpy as np
import pytest
from support import reference
from synthesizer_mtf.tools.calibrate import means
from synthesizer_mtf.tools.calibrate import moments
from synthesizer_mtf.tools.calibrate import targets

HEADS, LENGTH = 3, 8


def attentions(lengths, causal, logits):
  """`Means` of texts; logits [heads, n, n] is a function of the length n."""
  mean = means.Means(HEADS, LENGTH)
  for n in lengths:
    seen = np.tri(n) if causal else np.ones([n, n])
    weights = reference.softmax(np.where(seen > 0, logits(n), -1e30))
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    rest = (0, LENGTH - n)
    mean.add(moments.Sums(np.pad(weights, [(0, 0), rest, rest]),
                           np.pad(seen, [rest, rest]),
                           np.pad(entropy, [(0, 0), rest])))
  return mean


def random(n):
  return 2 * np.random.RandomState(n).randn(HEADS, n, n)


def test_means_count_the_texts_that_have_a_pair():
  mean = attentions([3, 5], False, random)
  np.testing.assert_array_equal(mean.pairs[:6, 4], [1, 1, 1, 1, 1, 0])
  three, five = (reference.softmax(random(n)) for n in (3, 5))
  np.testing.assert_allclose(mean.weights[:, :3, :3], three + five[:, :3, :3])
  np.testing.assert_allclose(mean.weights[:, 4, :5], five[:, 4])
  assert not mean.weights[:, 5:].any()


@pytest.mark.parametrize("causal", [False, True])
def test_divergence_is_the_mean_over_queries(causal):
  mean = attentions([3, 5, 5], causal, random)
  table = np.random.RandomState(1).randn(HEADS, LENGTH, LENGTH)
  divergences = []
  for n in (3, 5, 5):
    seen = np.tri(n) if causal else np.ones([n, n])
    p, q = (reference.softmax(np.where(seen > 0, logits, -1e30))
            for logits in (random(n), table[:, :n, :n]))
    divergences.append((np.where(seen > 0, p, 0) * np.log(
        np.where(seen > 0, p / np.where(seen > 0, q, 1), 1))).sum(-1))
  np.testing.assert_allclose(
      mean.divergence(table), np.concatenate(divergences, -1).mean(-1), rtol=1e-9)
  # Softmax forgets constants of rows, and a decoder has no keys above the triangle.
  table -= 2e3 * np.random.RandomState(2).rand(LENGTH, 1)
  if causal:
    table = np.where(np.tri(LENGTH) > 0, table, targets.FLOOR)
  np.testing.assert_allclose(
      mean.divergence(table), np.concatenate(divergences, -1).mean(-1), rtol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[7], [3, 5, 7, 7]])
def test_a_constant_attention_is_found_again(causal, lengths):
  table = np.random.RandomState(2).randn(HEADS, LENGTH, LENGTH)
  mean = attentions(lengths, causal, lambda n: table[:, :n, :n])
  np.testing.assert_allclose(
      mean.divergence(targets.pair_logits(mean)), 0, atol=1e-9)
  line = np.random.RandomState(2).randn(HEADS, 2 * LENGTH - 1)
  distance = np.arange(LENGTH) - np.arange(LENGTH)[:, None] + LENGTH - 1
  mean = attentions(lengths, causal, lambda n: line[:, distance[:n, :n]])
  np.testing.assert_allclose(
      mean.divergence(targets.by_distance(mean)[:, distance]), 0, atol=1e-9)


def test_in_a_decoder_r_is_the_log_of_the_mean_weights_and_a_floor():
  mean = attentions([3, 5, 5], True, random)
  logits = targets.pair_logits(mean)
  seen = np.tri(LENGTH) * (np.arange(LENGTH) < 5)[:, None] > 0
  np.testing.assert_allclose(logits[:, seen], np.log(
      mean.weights[:, seen] / mean.pairs[seen]))
  np.testing.assert_allclose(np.exp(logits[:, ~seen]), 1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_gives_uniform_rows(causal):
  mean = attentions([3, 6], causal, lambda n: np.zeros([HEADS, n, n]))
  shape = {"T": (HEADS, LENGTH), "T_after": (HEADS, LENGTH - 1)}
  for name, shapes in (("R", {"R": (HEADS, LENGTH, LENGTH)}), ("T", shape)):
    made = targets.replacement(name, mean, None, shapes)
    np.testing.assert_allclose(mean.divergence(made.logits), 0, atol=1e-12)
    seen = made.logits[:, mean.pairs > 0]
    np.testing.assert_allclose(np.ptp(made.logits[:, 5, :6], -1), 0, atol=1e-12)
    assert seen.min() > targets.FLOOR


@pytest.mark.parametrize("causal", [False, True])
def test_t_meets_the_weight_of_each_distance(causal):
  mean = attentions([3, 5, 8, 8], causal, random)
  made = targets.replacement(
      "T", mean, None, {"T": (HEADS, 9), "T_after": (HEADS, 8)})
  table, after = made.variables["T"], made.variables["T_after"]
  expected, observed = np.zeros([2, HEADS, 2 * LENGTH - 1])
  for n in (3, 5, 8, 8):
    logits = np.zeros([HEADS, n, n])
    for i in range(n):
      for j in range(n):
        logits[:, i, j] = (table[:, i - j] if j <= i else
                           -1e30 if causal else after[:, j - i - 1])
    q, p = (reference.softmax(np.where(np.tri(n) > 0, x, -1e30) if causal else x)
            for x in (logits, random(n)))
    for i in range(n):
      for j in range(n):
        expected[:, j - i] += q[:, i, j]
        observed[:, j - i] += p[:, i, j]
  np.testing.assert_allclose(expected, observed, rtol=1e-4, atol=1e-6)
  assert (table[:, 8] == targets.FLOOR).all()


def test_the_bias_of_the_layer_is_subtracted():
  mean = attentions([8], False, random)
  line = np.random.RandomState(3).randn(HEADS, 2 * LENGTH - 1)
  distance = np.arange(LENGTH) - np.arange(LENGTH)[:, None] + LENGTH - 1
  bias = line[:, distance]
  for name, shapes in (("R", {"R": (HEADS, 10, 10)}), ("T", {
      "T": (HEADS, LENGTH), "T_after": (HEADS, LENGTH - 1)})):
    alone = targets.replacement(name, mean, None, shapes)
    less = targets.replacement(name, mean, bias, shapes)
    np.testing.assert_allclose(less.logits, alone.logits)
    if name == "R":
      np.testing.assert_allclose(
          (less.variables["R"] - alone.variables["R"])[:, :8, :8], -bias)
      assert (less.variables["R"][:, 8:] == targets.FLOOR).all()
    else:
      np.testing.assert_allclose(
          less.variables["T"] - alone.variables["T"], -line[:, LENGTH - 1::-1])
      np.testing.assert_allclose(
          less.variables["T_after"] - alone.variables["T_after"], -line[:, LENGTH:])


def test_with_equal_weights_the_factors_are_those_of_the_svd():
  table = np.random.RandomState(4).randn(9, 7)
  for rank in (1, 3, 12):
    left, right, error = targets.low_rank(table, np.ones([9, 7]), rank)
    assert left.shape == (9, rank) and right.shape == (7, rank)
    centered = table - table.mean(-1, keepdims=True)
    optimum = (np.linalg.svd(centered, compute_uv=False)[rank:] ** 2).sum()
    np.testing.assert_allclose(error.sum(), optimum, rtol=1e-6, atol=1e-9)
    rest = table - left @ right.T
    rest -= rest.mean(-1, keepdims=True)
    np.testing.assert_allclose((rest ** 2).sum(), optimum, rtol=1e-6, atol=1e-9)


def test_the_factors_of_a_triangle_ignore_what_is_above_it():
  generator = np.random.RandomState(5)
  table = generator.randn(9, 2) @ generator.randn(2, 9) + generator.randn(9, 1)
  weights = np.tri(9) * generator.randint(1, 5, [9, 1])
  _, _, error = targets.low_rank(
      np.where(np.tri(9) > 0, table, 1e3), weights, 2, 2000, 1e-6)
  variance = (weights * (table - table.mean()) ** 2).sum()
  assert error.sum() < 1e-3 * variance


@pytest.mark.parametrize("causal", [False, True])
def test_fr_is_the_nearer_to_v_of_two_approximations_of_r(causal):
  mean = attentions([3, 6, 8, 8], causal, random)
  bias = np.random.RandomState(6).randn(HEADS, LENGTH, LENGTH)
  shapes = {"R1": (HEADS, 9, 2), "R2": (HEADS, 9, 2)}
  made = targets.replacement("FR", mean, bias, shapes)
  product = np.einsum("hik,hjk->hij", made.variables["R1"], made.variables["R2"])
  seen = mean.pairs > 0
  np.testing.assert_allclose(
      (product[:, :8, :8] + bias)[:, seen], made.logits[:, seen])
  np.testing.assert_allclose(product[:, 8], product[:, 7])  # As the last known one.
  table = targets.pair_logits(mean) - bias
  tables = []
  for weights in (np.stack([mean.pairs] * HEADS), mean.weights):
    factors = [targets.low_rank(*pair, 2) for pair in zip(table, weights)]
    tables.append(mean.divergence(np.stack([a @ b.T for a, b, _ in factors]) + bias))
  np.testing.assert_allclose(mean.divergence(made.logits), np.min(tables, 0))
  assert not np.allclose(*tables)
  full = targets.replacement("FR", mean, bias, {
      "R1": (HEADS, LENGTH, LENGTH), "R2": (HEADS, LENGTH, LENGTH)})
  np.testing.assert_allclose(
      mean.divergence(full.logits), mean.divergence(table + bias), atol=1e-6)


def test_alpha_is_exact():
  alpha = targets.alpha([0, 1, 1])
  assert alpha.dtype == np.float32 and np.array_equal(
      alpha, alpha.astype("float16"))  # bfloat16 has it, too.
  weights = np.exp(alpha - alpha.max(-1, keepdims=True), dtype=np.float32)
  np.testing.assert_array_equal(
      weights / weights.sum(-1, keepdims=True), [[1, 0], [0, 1], [0, 1]])
