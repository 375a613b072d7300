"""Controls for what queries and keys learn: Frozen-QK and MixiT (arXiv:2506.01115).

They register themselves from outside the package. The gin files studies/frozen_qk.gin
and studies/mixit.gin choose them.
"""

import gin
import mesh_tensorflow as mtf
import synthesizer_mtf
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.functions import dot_product
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf


@gin.configurable(module="studies")
class FrozenDotProductLogits(dot_product.DotProductLogits):
  """S(X) = F_Q(X) F_K(X)^T, with `q` and `k` never trained (arXiv:2506.01115).

  Gradients pass through both projections to the tokens; only the two matrices stay, and
  have no variables of the optimizer. In a mixture, a function that shares `q` with this
  one has to come after it. Departure: the initial values are T5's, normal with the
  standard deviations (d_model d_kv)^-0.5 and d_model^-0.5.

  Variables: `q` and `k`, [d_model, heads * d_kv], not trainable.
  """

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    d_model = inputs.context.model.model_dim
    for name, size in [("q", d_model.size * inputs.d_kv.size), ("k", d_model.size)]:
      # The projections below find these variables, and do not make their own.
      inputs.variable(name, [d_model, inputs.combined], size ** -0.5, trainable=False)
    return super().logits(inputs)


@gin.configurable(module="studies")
class MixiTLogits(base.LengthTables):
  """A = I + W - mean of W's row: fixed random weights (arXiv:2506.01115).

  The sum of each row is 1, and the identity carries the signal through the depth. W is
  drawn once from a normal distribution with the standard deviation max_length^-0.5, and
  never trained. In a decoder W is 0 for later keys, and the mean is over the others. A
  is no logit but the weight itself, so bind `SyntheticAttention.softmax = False`.

  Departures: for texts shorter than max_length, the mean is over all keys of the table,
  so the sum of a row is near 1 only; padding has the weight 0. In the authors' code the
  standard deviation can also fall with a width of the model; here it is a parameter.

  Variables: `mixing` [heads, length, memory_length], not trainable.
  """

  variables = {"mixing": base.Axes(heads=-3, positions=(-2, -1), linear=False)}

  def __init__(self, max_length: int = 512, stddev: float | None = None):
    """Declares the parameters.

    Args:
      max_length: the longest sequence, in tokens.
      stddev: the standard deviation of W; max_length^-0.5 if None.

    Raises:
      ValueError: `max_length` is below 1, or `stddev` below 0.
    """
    super().__init__(max_length)
    self.stddev = max_length ** -0.5 if stddev is None else stddev
    checks.check_not_negative(self.parameter("stddev"), self.stddev)

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    self.check_length(inputs)
    return [logit_forms.ByPosition(self._weights(inputs))]

  def _weights(self, inputs):
    """<float>[heads, length, memory_length]: A for all positions of the table."""
    dims = [mtf.Dimension(n, self.max_length) for n in ("length", "memory_length")]
    w = inputs.variable(
        "mixing", [inputs.heads, *dims], self.stddev, trainable=False)
    query, key = (mtf.range(w.mesh, dim, tf.int32) for dim in dims)
    seen = mtf.cast(
        mtf.greater_equal(query, key, output_shape=dims) if not inputs.sees_later
        else mtf.ones(w.mesh, dims, tf.int32), w.dtype)
    one = mtf.cast(mtf.equal(query, key, output_shape=dims), w.dtype)
    w = mtf.multiply(w, seen, output_shape=w.shape)
    mean = mtf.divide(mtf.reduce_sum(w, reduced_dim=dims[1]),
                      mtf.reduce_sum(seen, reduced_dim=dims[1]))
    return mtf.add(one, mtf.sub(w, mean, output_shape=w.shape),
                   output_shape=w.shape)


CONTROLS = {"FrozenQK": FrozenDotProductLogits, "MixiT": MixiTLogits}
for _name, _class in CONTROLS.items():
  synthesizer_mtf.register(_name, _class)


@gin.config.register_finalize_hook
def check_softmax(config: gin_internals.Config) -> None:
  """Raises a ValueError if gin chooses MixiT and leaves the softmax on."""
  choices = [gin_internals.resolved(config, parameters.get("attention"))
             for (_, selector), parameters in config.items()
             if selector.endswith(".synthesizer_stack")]
  entries = [entry for choice in choices
             for entry in (choice if isinstance(choice, (list, tuple)) else [choice])]
  names = {name.strip() for entry in entries for name in str(entry).split("+")}
  softmax = [gin_internals.resolved(config, parameters["softmax"])
             for (_, selector), parameters in config.items()
             if selector.endswith(".SyntheticAttention") and "softmax" in parameters]
  if "MixiT" in names and (not softmax or any(softmax)):
    raise checks.Error(
        "`SyntheticAttention.softmax` is True, but MixiT's numbers are the weights "
        "themselves: bind it to False, or use --gin_file=studies/mixit.gin.")
