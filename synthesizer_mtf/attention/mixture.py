"""Mixtures: a weighted sum of the logits of several synthesizing functions."""

import collections
import contextlib
from typing import Any

import gin
import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import checks
from synthesizer_mtf.attention import functions
from synthesizer_mtf.attention import intermediates
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
class Mixture(base.SynthesizingFunction):
  """alpha_1 S_1(X) + ... + alpha_N S_N(X) (arXiv:2005.00743, section 3.1).

  The weights are a softmax over the parts, so they sum to 1. The paper learns weights
  per head and layer, which start equal.

  Beyond the paper, weights can start unequal, so that one part dominates, and move to
  final weights in training. The learned weights fade out linearly between the two steps
  of `annealing_steps`. After these steps the final weights are exact: a part whose
  weight is 0 has no effect and is not trained.

  Variables: `alpha` [heads, parts], [parts] if weights are per layer, or none; and
  those of the parts. If parts have a variable name in common, each has its own scope,
  `part_0`, `part_1`, and so on. V and D share `q` if `share_query` of D is True.
  """

  variables = {"alpha": base.Axes()}

  def __init__(self, synthesizers: list[base.SynthesizingFunction],
               weights: str = "per_head",
               initial_weights: dict[str, float] | list[float] | None = None,
               final_weights: dict[str, float] | list[float] | None = None,
               annealing_steps: tuple[int, int] | None = None):
    """Declares the parameters.

    Args:
      synthesizers: a list of at least one synthesizing function.
      weights: "per_head"; "per_layer", one weight for all heads of a layer; or
        "sum", the plain sum without weights.
      initial_weights: the weights before training: a dict from names of the
        notation, such as {"V": 0.99}, with the rest shared by the other parts; or a
        list with one weight for each part. All must be above 0. None for equal ones.
      final_weights: the weights at the end of `annealing_steps`, in the same form,
        such as {"R": 1.0}; 0 is possible. None for learned ones.
      annealing_steps: (first, last), training steps. Evaluation and decoding use the
        step of the checkpoint.

    Raises:
      ValueError: there is no part, a part is not a synthesizing function, or a
        parameter is out of range.
    """
    if not synthesizers:
      raise checks.Error(
          "`SyntheticAttention.synthesizers` is empty but needs at least one "
          "synthesizing function; name one, for example @RandomLogits().")
    for part in synthesizers:
      if not isinstance(part, base.SynthesizingFunction):
        raise checks.Error(
            f"`SyntheticAttention.synthesizers` has the entry {part!r}, which is "
            "not a synthesizing function; write it as @RandomLogits(), with the "
            "parentheses, or bind `synthesizer_stack.attention = \"R+V\"`.")
    if weights not in ("per_head", "per_layer", "sum"):
      raise checks.Error(
          f"`Mixture.weights` is {weights!r} but must be \"per_head\", "
          "\"per_layer\" or \"sum\"; change `Mixture.weights`.")
    self.synthesizers = list(synthesizers)
    self.weights = weights
    self.initial_weights = self._given("initial_weights", initial_weights)
    self.final_weights = self._given("final_weights", final_weights, zero=True)
    self.annealing_steps = annealing_steps
    if final_weights is not None:
      check_steps(annealing_steps)
    elif annealing_steps is not None:
      raise checks.Error(
          f"`Mixture.annealing_steps` is {annealing_steps!r} but "
          "`Mixture.final_weights` is missing; bind it to what the weights "
          "become, such as {'R': 1.0}.")

  @property
  def encodes_order(self) -> bool:  # type: ignore[override]  # The parts decide.
    """Whether any of the parts depends on the order."""
    return any(s.encodes_order for s in self.synthesizers)

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    parts = self.parts(inputs)
    if len(parts) == 1 or self.weights == "sum":
      return [term for terms in parts for term in terms]
    return [logit_forms.Weighted(term, alpha)
            for terms, alpha in zip(parts, inputs.once(lambda: self.alphas(inputs)))
            for term in terms]

  def parts(self, inputs: AttentionInputs) -> list[list[logit_forms.Logits]]:
    """The logits of each part, without weights."""
    made = []
    if _shares_query(self.synthesizers):
      inputs.share_query()
    for synthesizer, scope in zip(self.synthesizers, self._scopes()):
      with scope:
        made.append(synthesizer.logits(inputs))
    return made

  def alphas(self, inputs: AttentionInputs) -> list[mtf.Tensor]:
    """The weight of each part: a list of <float32>[heads] or <float32>[]."""
    dim = mtf.Dimension("parts", len(self.synthesizers))
    heads = [inputs.heads] if self.weights == "per_head" else []
    initial = self.initial_weights
    # Ones have the softmax of zeros; `initial_logits` says why not zeros.
    mean = 1.0 if initial is None else initial_logits(initial)
    alpha = mtf.cast(
        inputs.variable("alpha", heads + [dim], 0.0, mean=mean), tf.float32)
    alpha = mtf.softmax(alpha, dim)
    if self.final_weights is not None:
      assert self.annealing_steps is not None  # The constructor checks it.
      alpha = annealed(
          alpha, self.final_weights, self.annealing_steps)
    intermediates.sow_alpha(alpha, self.synthesizers, inputs)
    return mtf.unstack(alpha, dim)

  def _given(self, name, given, zero=False):
    """The weights given by a parameter, or None."""
    if given is None or len(self.synthesizers) == 1:
      return None
    if self.weights == "sum":
      raise checks.Error(
          f"`Mixture.{name}` is {given!r} but `Mixture.weights` is \"sum\", which "
          "has no weights; leave one of them out. In a sum a part starts without "
          "effect if its own `stddev` is 0.")
    return given_weights(
        f"Mixture.{name}", given,
        [functions.part_name(s) for s in self.synthesizers], zero)

  def _scopes(self):
    """A context manager for each part: its own scope if names would clash."""
    count = collections.Counter(
        name for s in self.synthesizers for name in s.variable_names
        if not (name == "q" and _shares_query(self.synthesizers)))
    return [
        tf.variable_scope(f"part_{i}")
        if any(count[name] > 1 for name in s.variable_names)
        else contextlib.nullcontext()
        for i, s in enumerate(self.synthesizers)]


def _shares_query(synthesizers):
  return any(s.share_query for s in synthesizers)


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
