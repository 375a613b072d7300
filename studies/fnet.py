"""FNet's token mixing, a row of the study of encoders."""

import math

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.attention.inputs import segments
import tensorflow.compat.v1 as tf


@gin.configurable(module="studies")
class FNet(transformer.TransformerLayer):
  """Re(F_length F_d_model x): Fourier transforms for attention (arXiv:2105.03824).

  The layer has no variables. It mixes all positions, so it is for encoders, and refuses
  packed rows. As in the paper, padding takes part; T5 has set it to 0. Departure: the
  transforms are unitary, divided by sqrt(length * d_model). The paper's are not, but
  its norms come after the sum with x, and T5's before.
  """

  def __init__(self) -> None:
    """Tells gin that there are no parameters."""

  def call(self, context: transformer.Context, x: mtf.Tensor,
           losses: list | None = None) -> mtf.Tensor:
    """Calls the layer.

    Args:
      context: a `transformer.Context`.
      x: <float>[batch, length, d_model]
      losses: ignored.

    Returns:
      a tensor with the shape and dtype of x.

    Raises:
      ValueError: the stack is a decoder, or rows are packed.
    """
    del losses
    if context.model.autoregressive or segments.is_packed(context):
      raise checks.Error(
          "`synthesizer_stack.attention` is @FNet, which mixes all positions of a row; "
          "take it for `encoder/synthesizer_stack.attention` alone, and bind "
          "`mesh_train_dataset_fn.pack = False`.")
    return (self._transformed(x, mtf.cos, context) -
            self._transformed(x, mtf.sin, context))

  def _transformed(self, x, wave, context):
    """The product of x with the same wave over both dimensions."""
    for dim in (context.model.model_dim, context.length_dim):
      frequency = mtf.Dimension("frequency", dim.size)
      steps = mtf.multiply(
          mtf.range(x.mesh, dim, tf.int32), mtf.range(x.mesh, frequency, tf.int32),
          output_shape=[dim, frequency])
      angle = mtf.to_float(mtf.mod(steps, dim.size)) * (2 * math.pi / dim.size)
      waves = wave(angle) * dim.size ** -0.5
      moved = [frequency if d == dim else d for d in x.shape.dims]
      x = mtf.replace_dimensions(mtf.einsum(
          [x, mtf.cast(waves, x.dtype)], output_shape=moved), frequency, dim)
    return x
