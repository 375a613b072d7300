"""Mixtures: a weighted sum of the logits of several synthesizing functions."""

import collections
import contextlib

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import watch
from synthesizer_mtf.synthesizers import base
import tensorflow.compat.v1 as tf


@gin.configurable(module="synthesizer_mtf")
class Mixture(base.SynthesizingFunction):
  """alpha_1 S_1(X) + ... + alpha_N S_N(X) (arXiv:2005.00743, section 3.1).

  The weights are a softmax over the parts, so that they sum to 1, and start
  equal. The paper writes them per head and layer.

  Variables: `alpha` [heads, parts], [parts] if weights are per layer, or none;
  and those of the parts. Parts which would share a variable's name each have a
  scope, `part_0`, `part_1`, and so on; V and D share `q` if D asks for it.
  """

  def __init__(self, synthesizers, weights="per_head"):
    """Declares the parameters.

    Args:
      synthesizers: a list of at least one synthesizing function.
      weights: "per_head"; "per_layer", one weight for all heads of a layer; or
        "sum", the plain sum without weights.

    Raises:
      ValueError: there is no part, one of them is something else, or `weights`
        is not one of the three.
    """
    if not synthesizers:
      raise ValueError(
          "`SyntheticAttention.synthesizers` is empty but needs at least one "
          "synthesizing function; name one, for example @RandomLogits().")
    for part in synthesizers:
      if not isinstance(part, base.SynthesizingFunction):
        raise ValueError(
            f"`SyntheticAttention.synthesizers` has the entry {part!r}, which is "
            "no synthesizing function; write it as @RandomLogits(), with the "
            "parentheses, or bind `synthesizer_stack.attention = \"R+V\"`.")
    if weights not in ("per_head", "per_layer", "sum"):
      raise ValueError(
          f"`Mixture.weights` is {weights!r} but must be \"per_head\", "
          "\"per_layer\" or \"sum\"; change `Mixture.weights`.")
    self.synthesizers = list(synthesizers)
    self.weights = weights

  def logits(self, inputs):
    parts = []
    if _shares_query(self.synthesizers):
      inputs.share_query()
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
    # Adafactor's steps are relative to the size of a variable, so that from 0
    # the weights would hardly move. The softmax of ones is that of zeros.
    alpha = mtf.cast(
        inputs.variable("alpha", heads + [dim], 0.0, mean=1.0), tf.float32)
    alpha = mtf.softmax(alpha, dim)
    watch.show_alpha(alpha, self.synthesizers, inputs)
    return mtf.unstack(alpha, dim)

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
