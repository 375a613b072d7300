"""A loss with bits enough to compare attentions whose activations are bfloat16.

Mesh TensorFlow's loss has the dtype of the activations. In bfloat16 it has 8 bits, so
that one between 4 and 8 nats is a multiple of .03. The gin file studies/gpu_runs.gin
binds this one.
"""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.fast import vocabulary
import tensorflow.compat.v1 as tf


@gin.configurable(module="studies")
def float32_loss(model: transformer.Unitransformer, context: transformer.Context,
                 logits: mtf.Tensor, targets: mtf.Tensor,
                 output_vocab_dim: mtf.Dimension) -> mtf.Tensor:
  """Mesh's loss <float32>[]: all after the logits is float32.

  The arguments are those of `vocabulary.mean_loss`.
  """
  return vocabulary.mean_loss(
      model, context, mtf.cast(logits, tf.float32), targets, output_vocab_dim)
