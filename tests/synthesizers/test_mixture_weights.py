"""The weights that a user gives to the parts of a mixture."""

import numpy as np
import pytest
from support import reference
from synthesizer_mtf.attention import mixture

PARTS = ["R", "V", "D"]


@pytest.mark.parametrize("given, zero, expected", [
    ({"V": 0.7}, False, [0.15, 0.7, 0.15]),
    ({"V": 0.2, "D": 0.3}, False, [0.5, 0.2, 0.3]),
    ({"R": 1.0}, True, [1, 0, 0]),
    ([0.2, 0.3, 0.5], False, [0.2, 0.3, 0.5]),
    ((0, 1, 0), True, [0, 1, 0])])
def test_parts_without_a_weight_share_the_rest(given, zero, expected):
  weights = mixture.given_weights("p", given, PARTS, zero)
  np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given, zero", [
    ({"T": 0.5}, True), ({"V": 1.2}, True), ([1.5, -0.5, 0], True),
    ([0.5, 0.5], True), ([0.2, 0.3, 0.4], True), ([0, 0.5, 0.5], False)])
def test_weights_that_are_no_distribution_over_the_parts_are_errors(given, zero):
  with pytest.raises(ValueError, match="`p` is "):
    mixture.given_weights("p", given, PARTS, zero)


def test_the_logits_of_weights_have_the_mean_1():
  weights = np.array([0.15, 0.7, 0.15])
  logits = mixture.initial_logits(weights)
  assert np.mean(logits) == pytest.approx(1)
  np.testing.assert_allclose(reference.softmax(np.array(logits)), weights)


@pytest.mark.parametrize("steps", [
    None, 5, (5,), (5, 6, 7), (6, 5), (5, 5), (-1, 5), (0.0, 5), "ab"])
def test_annealing_needs_two_steps_in_order(steps):
  with pytest.raises(ValueError, match="must be two training steps"):
    mixture.check_steps(steps)
