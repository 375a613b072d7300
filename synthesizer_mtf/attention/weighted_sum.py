"""The sum of the values, weighted by the logits themselves: no softmax.

The Random Synthesizer without its softmax is the token mixing of an MLP-Mixer
(arXiv:2005.00743, section 2, "MLP-Mixers are Random Synthesizers"): one linear
map over the positions, with one map for each head.
"""

import mesh_tensorflow as mtf
from synthesizer_mtf.attention import attend
from synthesizer_mtf.attention import attention_mask
from synthesizer_mtf.attention import logit_forms
from synthesizer_mtf.attention.inputs import attention_inputs
import tensorflow.compat.v1 as tf


def weighted_sum(inputs: attention_inputs.AttentionInputs,
                 logits: list[logit_forms.Logits], values: mtf.Tensor,
                 mask: attention_mask.AttentionMask) -> mtf.Tensor:
  """The sum of the values, weighted by the sum of the logits.

  Args:
    inputs: an `AttentionInputs`.
    logits: a list of results of `AttentionInputs.read`.
    values: <float>[batch, heads, memory_length, d_kv]
    mask: an `AttentionMask`. Masked keys have the weight 0.

  Returns:
    <float>[batch, heads, length, d_kv] in the dtype of the values; `length` is
    absent in incremental mode. The weights are computed in float32. A query whose
    keys are all masked gets zeros.
  """
  weights = attend.total(logits, inputs)
  if mask.pairs is not None:
    seen = mtf.cast(mask.pairs, tf.float32)
    weights = mtf.multiply(
        weights, seen, output_shape=inputs.logit_dims(weights, seen))
  if mask.keys is not None:
    # The key mask is the same for all queries, so it masks the smaller tensor.
    values *= mtf.cast(mask.keys, values.dtype)
  return mtf.einsum([mtf.cast(weights, values.dtype), values],
                    output_shape=inputs.query_dims + values.shape.dims[-1:])
