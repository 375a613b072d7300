"""Pattern: heads written by hand, such as "the previous token"."""

import math
from typing import NamedTuple

import gin
import mesh_tensorflow as mtf
from synthesizer_mtf import checks
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.functions import base
from synthesizer_mtf.attention.inputs import masks
from synthesizer_mtf.attention.inputs.attention_inputs import AttentionInputs
import tensorflow.compat.v1 as tf

_FAR = 1 << 20  # longer than any sequence

# Stands for the logarithm of a zero weight. Next to weights that sum to 1, float32
# cannot tell 1e-13 from 0. Learned logits can still outweigh it.
_LOG_OF_ZERO = math.log(1e-13)


class Window(NamedTuple):
  """The keys of a pattern, and their weights.

  Attributes:
    first: the offset of the first key from the query.
    last: the offset of the last key. Both are clipped to the segment, so that at its
      border one key is left.
    slope: 1 if weights grow from first to last as 1, 8, 27, ...; -1 if they grow from
      last to first; 0 if they are equal.
  """
  first: int
  last: int
  slope: int = 0


WINDOWS = {
    "current": Window(0, 0),
    "previous": Window(-1, -1),
    "next": Window(1, 1),
    "left_context": Window(-_FAR, -2, slope=1),
    "right_context": Window(2, _FAR, slope=-1),
    "end": Window(-_FAR, _FAR, slope=1),
    "start": Window(-_FAR, _FAR, slope=-1),
    "uniform": Window(-_FAR, _FAR),
}
PAPER = tuple(name for name in WINDOWS if name != "uniform")
_LOOK_RIGHT = ("next", "right_context", "end")


@gin.configurable(module="synthesizer_mtf")
class FixedPatterns(base.SynthesizingFunction):
  """S(X) = log P with P chosen by hand for each head (arXiv:2002.10260).

  The weights P[i, j] of query i and key j, in a segment of n tokens:
    current, previous, next: 1 for j = i, i - 1 and i + 1;
    left_context: (j + 1)^3 / Z for j from 0 to i - 2;
    right_context: the mirror image, (n - j)^3 / Z for j from i + 2 to n - 1;
    end: (j + 1)^3 / Z for all j; start: its mirror image;
    uniform: 1 / n for all j. It is not in that paper. In a mixture it leaves the head
      to the other parts, as the paper leaves one head to the dot product.

  Z makes a row sum to 1. Departures: at the border of the segment, where no key is
  left, the token at the border gets the weight 1. The paper has patterns in encoders
  only. In a decoder the segment ends with the query: `start` and `uniform` weigh the
  tokens so far, and other patterns that need later tokens are refused. The paper's
  variant over words is left out, as T5 does not know the words of its pieces.

  There are no variables, and sequences can have any length.
  """

  encodes_order = True

  def __init__(self, patterns: list[str] | tuple[str, ...] = PAPER):
    """Declares the parameters.

    Args:
      patterns: a list of names of patterns, one for each head. A shorter list is
        repeated, a longer one cut.

    Raises:
      ValueError: `patterns` is not a list, is empty or has an unknown name.
    """
    name = self.parameter("patterns")
    if not isinstance(patterns, (list, tuple)) or not patterns:
      raise checks.Error(
          f"`{name}` is {patterns!r} but must be a list of at least one name; use "
          f"some of {', '.join(WINDOWS)}.")
    unknown = [p for p in patterns if p not in tuple(WINDOWS)]
    if unknown:
      raise checks.Error(
          f"`{name}` names {unknown[0]!r}, which is not a pattern; use some of "
          f"{', '.join(WINDOWS)}.")
    self.patterns = tuple(patterns)

  def logits(self, inputs: AttentionInputs) -> list[logit_forms.Logits]:
    """One `Table`, with `batch` only if length or packing of segments matter.

    Raises:
      ValueError: a pattern needs later tokens and the stack is a decoder.
    """
    used = self.patterns[:inputs.heads.size]
    if inputs.in_decoder:
      self._check_decoder(used)
    return [logit_forms.Table(inputs.once_per_stack(
        ("fixed_patterns", used), lambda: _log_weights(used, inputs)))]

  def _check_decoder(self, used):
    later = [p for p in used if p in _LOOK_RIGHT]
    if later:
      name = self.parameter("patterns")
      raise checks.Error(
          f"`{name}` names {later[0]!r} in a decoder, but it needs tokens after "
          f"the query, which a decoder has not made yet; bind `decoder/{name}` to "
          f"some of {', '.join(p for p in WINDOWS if p not in _LOOK_RIGHT)}, or "
          "choose another attention for `decoder/synthesizer_stack.attention`.")


def _log_weights(patterns, inputs):
  """log P for patterns, which are repeated over the heads.

  Returns:
    <float32>[batch, heads, length, memory_length], without `batch` if all examples
    share it, and without `length` in incremental mode.
  """
  query, key = inputs.query_position, inputs.memory_position
  length = query + 1 if inputs.in_decoder else inputs.segment_length()
  first, last, slope = (
      _per_head(values, inputs)
      for values in zip(*(WINDOWS[name] for name in patterns)))
  first, last = (
      _cut(query, offset, length, inputs) for offset in (first, last))
  dims = inputs.logit_dims(first, key)
  inside = mtf.logical_and(
      mtf.greater_equal(key, first, output_shape=dims),
      mtf.less_equal(key, last, output_shape=dims))
  cubic = mtf.cast(mtf.not_equal(slope, 0), tf.float32)
  log_weights = mtf.sub(
      _log(_rank(key, first, last, slope, inputs)) * (3 * cubic),
      _log_sum(last - first + 1, cubic), output_shape=dims)
  return mtf.maximum(log_weights + masks.mask_bias(inside), _LOG_OF_ZERO)


def _cut(query, offset, length, inputs):
  """query + offset, clipped to the segment: <int32>[..., heads, ...]."""
  index = mtf.add(query, offset, output_shape=inputs.logit_dims(query, offset))
  return mtf.minimum(mtf.maximum(index, 0), length - 1,
                     output_shape=inputs.logit_dims(index, length))


def _rank(key, first, last, slope, inputs):
  """1, 2, 3, ... from `first` on; from `last` backwards if the slope is not 1.

  It is at least 1 everywhere, so that it has a logarithm outside of the window.
  """
  rising = mtf.cast(mtf.equal(slope, 1), tf.int32)
  steps = mtf.multiply(
      key, 2 * rising - 1, output_shape=inputs.logit_dims(key, slope))
  start = rising * (1 - first) + (1 - rising) * (last + 1)
  return mtf.maximum(
      mtf.add(steps, start, output_shape=inputs.logit_dims(steps, start)), 1)


def _per_head(values, inputs):
  """<int32>[heads]: one of `values` for each head, repeated or cut."""
  which = mtf.mod(
      mtf.range(inputs.context.mesh, inputs.heads, tf.int32), len(values))
  return sum(mtf.cast(mtf.equal(which, i), tf.int32) * value
             for i, value in enumerate(values))


def _log_sum(count, cubic):
  """log(1 + 8 + ... + count^3) if `cubic` is 1, or log(count) if it is 0."""
  log_count = _log(count)
  # The sum of cubes is (count (count + 1) / 2)^2.
  triangle = log_count + _log(count + 1) - math.log(2)
  return triangle * (2 * cubic) + log_count * (1 - cubic)


def _log(integers):
  return mtf.log(mtf.cast(integers, tf.float32))

