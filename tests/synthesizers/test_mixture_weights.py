"""The weights that a user gives to the parts of a mixture."""

import numpy as np
import pytest
from support import reference
from synthesizer_mtf import attention
from synthesizer_mtf.attention import mixture


def made(**parameters):
  return mixture.Mixture([
      attention.RandomLogits(), attention.DotProductLogits(), attention.DenseLogits()],
                         **parameters)


def test_parts_without_a_weight_share_the_rest():
  for given, expected in [
      ({"V": 0.7}, [0.15, 0.7, 0.15]), ({"V": 0.2, "D": 0.3}, [0.5, 0.2, 0.3]),
      ({"R": 1.0}, [1, 0, 0]), ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
      ((0, 1, 0), [0, 1, 0])]:
    weights = made(final_weights=given, annealing_steps=(0, 9)).final_weights
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
  np.testing.assert_allclose(
      made(initial_weights={"V": 0.7}).initial_weights, [0.15, 0.7, 0.15])


def test_weights_that_are_no_distribution_and_steps_out_of_order_are_named():
  for name, given, message in [
      ("initial_weights", {"T": 0.5}, "but the mixture is R.V.D; name parts"),
      ("initial_weights", {"V": 1.0}, "needs a weight above 0 for each of R.V"),
      ("initial_weights", [0, 0.5, 0.5], "above 0"),
      ("initial_weights", [0.5, 0.5], "and they must sum to 1"),
      ("final_weights", {"V": 1.2}, "needs a weight at least 0"),
      ("final_weights", [1.5, -0.5, 0], "at least 0"),
      ("final_weights", [0.2, 0.3, 0.4], "sum to 1"),
      *[("annealing_steps", steps, "must be two training steps")
        for steps in (5, (5,), (5, 5), (-1, 5), (0.0, 5))]]:
    steps = {"annealing_steps": (0, 9), "final_weights": {"R": 1.0}} if (
        name != "initial_weights") else {}
    with pytest.raises(ValueError, match=f"`Mixture.{name}` is .*{message}"):
      made(**{**steps, name: given})


def test_parameters_that_contradict_each_other_are_named():
  for parameters, message in [
      ({"initial_weights": {"V": 0.9}, "weights": "sum"}, "has no weights"),
      ({"final_weights": {"R": 1.0}}, "`Mixture.annealing_steps` is None"),
      ({"annealing_steps": (0, 9)}, "`Mixture.final_weights` is missing")]:
    with pytest.raises(ValueError, match=message):
      made(**parameters)


def test_the_logits_of_weights_have_the_mean_1():
  weights = np.array([0.15, 0.7, 0.15])
  logits = mixture.initial_logits(weights)
  assert np.mean(logits) == pytest.approx(1)
  np.testing.assert_allclose(reference.softmax(np.array(logits)), weights)
