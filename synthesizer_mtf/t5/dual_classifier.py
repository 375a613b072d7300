"""A classifier of two texts, which one encoder reads separately.

T5's trainer builds it if gin binds

  make_bitransformer.bitransformer_cls = @DualEncoderClassifier

The first half of the inputs is one text, and the second half is the other. Each is
padded at its end, as in `synth_lra_retrieval`.
"""

from collections.abc import Sequence

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf import checks
from synthesizer_mtf.t5 import classifier


@gin.configurable(module="synthesizer_mtf")
class DualEncoderClassifier(classifier.EncoderClassifier):
  """softmax(W f([x1, x2, x1 * x2, x1 - x2])) (arXiv:2011.04006, section 2.2.3).

  x1 and x2 are the pooled texts, and f is the layers of `hidden_sizes`. As in Long
  Range Arena, the texts do not attend to each other. Long Range Arena's code has two
  layers in f, and by default leaves out the product and the difference.

  Variables: those of `EncoderClassifier`, but the first kernel of the head is
  [parts=4, d_model, ...], or parts=2 without the product and the difference.
  """

  def __init__(self, encoder: transformer.Unitransformer,
               decoder: transformer.Unitransformer, pooling: str = "mean",
               hidden_sizes: Sequence[int] = (), interaction: bool = True):
    """Declares the parameters.

    Args:
      encoder: as in the base class.
      decoder: as in the base class.
      pooling: as in the base class.
      hidden_sizes: as in the base class.
      interaction: whether the head also reads x1 * x2 and x1 - x2.

    Raises:
      ValueError: a parameter is out of range.
    """
    super().__init__(encoder, decoder, pooling=pooling, hidden_sizes=hidden_sizes)
    checks.check_boolean("DualEncoderClassifier.interaction", interaction)
    self.interaction = interaction

  def _pooled(self, inputs, *args):
    """<float>[batch, parts, d_model], and the losses of the encoder's layers."""
    (x1, loss1), (x2, loss2) = (
        super(DualEncoderClassifier, self)._pooled(text, *args)
        for text in _halves(inputs))
    parts = [x1, x2, x1 * x2, x1 - x2] if self.interaction else [x1, x2]
    loss = None if loss1 is None else loss1 + loss2
    return mtf.stack(parts, "parts", axis=len(x1.shape) - 1), loss


def _halves(inputs):
  """Splits <int32>[batch, length] into two <int32>[batch, length / 2]."""
  length = inputs.shape.dims[-1]
  if length.size % 2:
    raise checks.Error(
        f"`{checks.called('utils.run.sequence_length')}` gives the inputs "
        f"{length.size} ids, but DualEncoderClassifier reads two texts of the same "
        "length; make it even.")
  half = length.size // 2
  return [mtf.slice(inputs, begin, half, length.name) for begin in (0, half)]
