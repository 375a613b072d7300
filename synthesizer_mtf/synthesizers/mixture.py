"""Mixtures: a weighted sum of the logits of several synthesizing functions."""

import collections
import contextlib

import gin
import mesh_tensorflow as mtf
import numpy as np
from synthesizer_mtf import watch
from synthesizer_mtf.synthesizers import base
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
class Mixture(base.SynthesizingFunction):
  """alpha_1 S_1(X) + ... + alpha_N S_N(X) (arXiv:2005.00743, section 3.1).

  The weights are a softmax over the parts, so that they sum to 1. The paper
  writes them per head and layer, and learns them from equal ones.

  Beyond the paper, they can start unequal, so that one part dominates, and move
  to given ones while the model trains. Between the two steps of
  `annealing_steps` the learned weights fade out linearly, and after them the
  given ones are exact: a part whose weight is 0 is no longer used nor trained.

  Variables: `alpha` [heads, parts], [parts] if weights are per layer, or none;
  and those of the parts. Parts which would share a variable's name each have a
  scope, `part_0`, `part_1`, and so on; V and D share `q` if D asks for it.
  """

  def __init__(self, synthesizers, weights="per_head", initial_weights=None,
               final_weights=None, annealing_steps=None):
    """Declares the parameters.

    Args:
      synthesizers: a list of at least one synthesizing function.
      weights: "per_head"; "per_layer", one weight for all heads of a layer; or
        "sum", the plain sum without weights.
      initial_weights: the weights before training, a dict from names of the
        notation, such as {"V": 0.99}, where the other parts share the rest; or a
        list with one for each part. All must be above 0. None for equal ones.
      final_weights: the weights at the end of `annealing_steps`, given in the
        same way, such as {"R": 1.0}; 0 is possible. None for learned ones.
      annealing_steps: (first, last), training steps. The step is that of the
        checkpoint where the model is evaluated or decodes.

    Raises:
      ValueError: there is no part, or a parameter is out of range.
    """
    if not synthesizers:
      raise ValueError(
          "`SyntheticAttention.synthesizers` is empty but needs at least one "
          "synthesizing function; name one, for example @RandomLogits().")
    if weights not in ("per_head", "per_layer", "sum"):
      raise ValueError(
          f"`Mixture.weights` is {weights!r} but must be \"per_head\", "
          "\"per_layer\" or \"sum\"; change `Mixture.weights`.")
    self.synthesizers = list(synthesizers)
    self.weights = weights
    self.initial_weights = self._numbers("initial_weights", initial_weights)
    self.final_weights = self._numbers("final_weights", final_weights)
    self.annealing_steps = annealing_steps
    self._check_annealing(final_weights)

  def logits(self, inputs):
    parts = []
    for synthesizer, scope in zip(self.synthesizers, self._scopes()):
      with scope:
        parts.append(synthesizer.logits(inputs))
    if len(parts) > 1 and self.weights != "sum":
      parts = [[term.scaled(alpha) for term in terms]
               for terms, alpha in zip(parts, self.alphas(inputs))]
    return sum(parts, [])

  def alphas(self, inputs):
    """The weight of each part: a list of <float32>[heads] or <float32>[]."""
    dim = mtf.Dimension("parts", len(self.synthesizers))
    heads = [inputs.heads] if self.weights == "per_head" else []
    alpha = mtf.softmax(mtf.cast(inputs.variable(
        "alpha", heads + [dim], 0.0, mean=self._initial_logits()),
                                 tf.float32), dim)
    if self.final_weights is not None:
      alpha = self._annealed(alpha)
    watch.show_alpha(alpha, self.synthesizers, inputs)
    return mtf.unstack(alpha, dim)

  def _initial_logits(self):
    """The values of `alpha` before training, a number for each part.

    Adafactor's steps are relative to the size of a variable, so that from 0 the
    weights would hardly move. The softmax of ones is that of zeros.
    """
    if self.initial_weights is None:
      return 1.0
    logits = np.log(self.initial_weights)
    return (1.0 + logits - logits.mean()).tolist()

  def _annealed(self, alpha):
    """The weights at the present step, <float32>[heads, parts]."""
    step = tf.train.get_global_step()
    if step is None:
      raise ValueError(
          "`Mixture.annealing_steps` needs the training step, but the graph has "
          "none; call `tf.train.create_global_step()` before the model.")
    first, last = map(float, self.annealing_steps)
    progress = tf.clip_by_value(
        (tf.cast(step, tf.float32) - first) / (last - first), 0.0, 1.0)
    final = self.final_weights.astype(np.float32)
    return mtf.slicewise(
        lambda weights: weights * (1 - progress) + final * progress, [alpha],
        splittable_dims=alpha.shape.dims[:-1],
        grad_function=lambda op, grad: [grad * (1 - progress)])

  def _numbers(self, name, given):
    """The weights of all parts as an array, from a dict or a list, or None."""
    if given is None or len(self.synthesizers) == 1:
      return None
    if self.weights == "sum":
      raise ValueError(
          f"`Mixture.{name}` is {given!r} but `Mixture.weights` is \"sum\", which "
          "has no weights; leave one of them out. In a sum a part starts with "
          "no effect if its own `stddev` is 0.")
    names = self._names()
    if isinstance(given, dict):
      unknown = set(given) - set(names)
      if unknown:
        raise ValueError(
            f"`Mixture.{name}` is {given!r} but the mixture is "
            f"{'+'.join(names)}; name parts of it, or bind "
            f"`Mixture.{name} = None`.")
      others = [n for n in names if n not in given]
      rest = 1 - sum(given.get(n, 0) for n in names)
      weights = [given[n] if n in given else rest / len(others) for n in names]
    else:
      weights = list(given)
    self._check_numbers(name, given, weights)
    return np.array(weights, float)

  def _check_numbers(self, name, given, weights):
    lowest = "above" if name == "initial_weights" else "at least"
    low = [w for w in weights if w < 0 or (w == 0 and lowest == "above")]
    if (low or len(weights) != len(self.synthesizers) or
        abs(sum(weights) - 1) > 1e-6):
      raise ValueError(
          f"`Mixture.{name}` is {given!r} but needs a weight {lowest} 0 for each "
          f"of {'+'.join(self._names())}, and they must sum to 1; change it.")

  def _check_annealing(self, final_weights):
    steps = self.annealing_steps
    if final_weights is None and steps is None:
      return
    if final_weights is None:
      raise ValueError(
          f"`Mixture.annealing_steps` is {steps!r} but `Mixture.final_weights` is "
          "missing; bind it to what the weights become, such as {'R': 1.0}.")
    if not (isinstance(steps, (list, tuple)) and len(steps) == 2 and
            all(isinstance(s, int) for s in steps) and 0 <= steps[0] < steps[1]):
      raise ValueError(
          f"`Mixture.annealing_steps` is {steps!r} but must be two training "
          "steps, the second after the first, such as (1000, 10000); change it.")

  def _names(self):
    """The names of the parts in the notation."""
    from synthesizer_mtf import notation  # pylint: disable=g-import-not-at-top
    return [notation.part_name(s) for s in self.synthesizers]

  def _scopes(self):
    """A context manager for each part: its own scope where names would clash."""
    count = collections.Counter(
        name for s in self.synthesizers for name in s.variable_names
        if not (name == "q" and _shares_query(self.synthesizers)))
    return [
        tf.variable_scope(f"part_{i}")
        if any(count[name] > 1 for name in s.variable_names)
        else contextlib.nullcontext()
        for i, s in enumerate(self.synthesizers)]


def _shares_query(synthesizers):
  return any(getattr(s, "share_query", False) for s in synthesizers)
