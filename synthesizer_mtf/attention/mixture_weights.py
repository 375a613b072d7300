"""Weights of mixtures that start unequal, or move to final weights."""

from typing import Any

import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import splits
import tensorflow.compat.v1 as tf


def given_weights(parameter: str, given: dict[str, float] | list[float],
                  names: list[str], zero: bool = False) -> np.ndarray:
  """The weights that a user gives to the parts of a mixture.

  Args:
    parameter: the gin name of the parameter, for messages.
    given: a dict from some of the names to weights, with the rest of 1 shared by the
      other parts; or a list with a weight for each part.
    names: a list of the names of all parts.
    zero: whether a weight can be 0.

  Returns:
    <float64>[parts], with the sum 1.

  Raises:
    ValueError: a name is unknown, or a weight out of range.
  """
  shares = given
  if isinstance(given, dict):
    if set(given) - set(names):
      raise checks.Error(
          f"`{parameter}` is {given!r} but the mixture is {'+'.join(names)}; name "
          f"parts of it, or bind `{parameter} = None`.")
    rest = 1 - sum(given.get(name, 0) for name in names)
    others = sum(name not in given for name in names)
    shares = [given[n] if n in given else rest / others for n in names]
  weights = np.array(shares, float)
  if (weights.shape != (len(names),) or abs(weights.sum() - 1) > 1e-6 or
      weights.min() < 0 or (not zero and weights.min() == 0)):
    raise checks.Error(
        f"`{parameter}` is {given!r} but needs a weight "
        f"{'at least' if zero else 'above'} 0 for each of {'+'.join(names)}, and "
        "they must sum to 1; change it.")
  return weights


def initial_logits(weights: np.ndarray) -> list[float]:
  """The logits with the mean 1 whose softmax is the weights, as a list.

  Adafactor's steps are relative to the size of a variable, so logits of 0 would hardly
  move.
  """
  values = np.log(weights)
  return (1 + values - values.mean()).tolist()


def check_steps(steps: Any) -> None:
  """Raises a ValueError if `steps` are not two training steps in order."""
  if not (isinstance(steps, (list, tuple)) and len(steps) == 2 and
          all(isinstance(s, int) for s in steps) and 0 <= steps[0] < steps[1]):
    raise checks.Error(
        f"`Mixture.annealing_steps` is {steps!r} but must be two training steps, "
        "the second after the first, such as (1000, 10000); change it.")


def annealed(learned: mtf.Tensor, final: np.ndarray,
             steps: tuple[int, int]) -> mtf.Tensor:
  """Weights that move linearly from the learned to the final ones.

  Args:
    learned: <float32>[heads, parts] or <float32>[parts]
    final: <float64>[parts]
    steps: (first, last), training steps.

  Returns:
    a tensor with the shape of `learned`, the weights at the current step.

  Raises:
    ValueError: the graph has no step.
  """
  step = tf.train.get_global_step()
  if step is None:
    raise checks.Error(
        "`Mixture.annealing_steps` needs the training step, but the graph has "
        "none; call `tf.train.create_global_step()` before the model.")
  first, last = map(float, steps)
  progress = tf.clip_by_value(
      (tf.cast(step, tf.float32) - first) / (last - first), 0.0, 1.0)
  final = final.astype(np.float32)
  return splits.slicewise(
      lambda weights: weights * (1 - progress) + final * progress, [learned],
      splittable_dims=learned.shape.dims[:-1],
      grad_function=lambda op, grad: [grad * (1 - progress)])
