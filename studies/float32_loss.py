"""A loss with bits enough to compare attentions whose activations are bfloat16.

Mesh TensorFlow's loss has the dtype of the activations. In bfloat16 it has 8 bits, so
that one between 4 and 8 nats is a multiple of .03. The gin file studies/gpu_runs.gin
binds this one.
"""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer
from synthesizer_mtf.fast import cross_entropy
import tensorflow.compat.v1 as tf


@gin.configurable(module="studies")
def float32_loss(model: transformer.Unitransformer, context: transformer.Context,
                 logits: mtf.Tensor, targets: mtf.Tensor,
                 vocabulary: mtf.Dimension) -> mtf.Tensor:
  """The mean cross entropy <float32>[] of the targets that are not padding.

  It is Mesh's loss without label smoothing and z_loss; all after the logits is float32.

  Args:
    model: the decoder, which knows the number of tokens.
    context: of the call.
    logits: <float>[batch, length, vocabulary]
    targets: <int32>[batch, length]; 0 is padding.
    vocabulary: a dimension of the logits, which no layout splits.
  """
  losses = cross_entropy.cross_entropy(
      mtf.cast(logits, tf.float32), targets, vocabulary)
  total = mtf.reduce_sum(losses * mtf.cast(mtf.greater(targets, 0), tf.float32))
  return total / model.loss_denominator(targets, context.num_microbatches)
